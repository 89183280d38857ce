// Streams of bits, little endian, lowest bit first. Blocks read and write them in shared memory, a part
// (span) at a time, and move spans to and from global memory, where they may begin at any byte.
#pragma once
#include "common.cuh"

// Into how many 32-bit words a span of so many bytes is loaded, at most.
#define SPAN_WORDS(bytes) (((bytes) + 3) / 4 + 2)

// The byte of a span's first word at which it begins: words lie in shared memory as they do in global memory.
__device__ __forceinline__ u32 skew_of(const u8* at) { return (u32)((u64)at & 3); }

// Copies a span of global memory to `words`, where it begins at byte skew_of(from); zeros around it, at least
// 32 of them behind it. All threads of the block take part; they must meet before they read it.
__device__ __forceinline__ void load_span(const u8* from, u32 bytes, u32* words) {
    u32 skew = skew_of(from), end = skew + bytes;
    const u32* aligned = (const u32*)(from - skew);
    for (u32 w = threadIdx.x; w < SPAN_WORDS(end); w += blockDim.x) {
        u32 word = 0;
        if (4 * w >= skew && 4 * w + 4 <= end)
            word = aligned[w];
        else
            for (u32 byte = max(4 * w, skew); byte < min(4 * w + 4, end); byte++)
                word |= (u32)from[byte - skew] << (8 * (byte & 3));
        words[w] = word;
    }
}

// The reverse: copies the span that begins at byte skew_of(to) of `words` to global memory, and touches no
// byte outside it there.
__device__ __forceinline__ void store_span(const u32* words, u8* to, u32 bytes) {
    u32 skew = skew_of(to), end = skew + bytes;
    u32* aligned = (u32*)(to - skew);
    for (u32 w = threadIdx.x; 4 * w < end; w += blockDim.x) {
        if (4 * w >= skew && 4 * w + 4 <= end)
            aligned[w] = words[w];
        else
            for (u32 byte = max(4 * w, skew); byte < min(4 * w + 4, end); byte++)
                to[byte - skew] = (u8)(words[w] >> (8 * (byte & 3)));
    }
}

__device__ __forceinline__ void clear(u32* words, u32 count) {
    for (u32 w = threadIdx.x; w < count; w += blockDim.x) words[w] = 0;
}

// 32 bits from number `bit` on.
__device__ __forceinline__ u32 get_bits(const u32* words, u32 bit) {
    u64 both = (u64)words[(bit >> 5) + 1] << 32 | words[bit >> 5];
    return (u32)(both >> (bit & 31));
}

// Sets the bits of `value` from number `bit` on, in shared memory that is zero there; several threads may set
// bits of one word.
__device__ __forceinline__ void put_bits(u32* words, u32 bit, u32 value) {
    u64 both = (u64)value << (bit & 31);
    if ((u32)both) atomicOr(words + (bit >> 5), (u32)both);
    if (both >> 32) atomicOr(words + (bit >> 5) + 1, (u32)(both >> 32));
}

// Eight neighbours, moved at once where they are aligned.
#define EIGHT 8u
template <class T> struct alignas(EIGHT * sizeof(T) < 16 ? EIGHT * sizeof(T) : 16) Eight {
    T at[EIGHT];
};

template <class T> __device__ __forceinline__ bool aligned_for_eight(const T* at) {
    return ((u64)at & (alignof(Eight<T>) - 1)) == 0;
}

// from[0] to from[count - 1], count up to 8, and zeros.
template <class T> __device__ __forceinline__ Eight<T> load_eight(const T* from, u32 count) {
    if (count == EIGHT && aligned_for_eight(from)) return *(const Eight<T>*)from;
    Eight<T> eight;
    for (u32 j = 0; j < EIGHT; j++) eight.at[j] = j < count ? from[j] : (T)0;
    return eight;
}

template <class T> __device__ __forceinline__ void store_eight(const Eight<T>& eight, T* to, u32 count) {
    if (count == EIGHT && aligned_for_eight(to))
        *(Eight<T>*)to = eight;
    else
        for (u32 j = 0; j < EIGHT; j++)
            if (j < count) to[j] = eight.at[j];
}

// How many of a thread's eight elements exist, of which `behind` lie from its first on.
__device__ __forceinline__ u32 up_to_eight(i64 behind) {
    return behind < 0 ? 0 : behind < EIGHT ? (u32)behind : EIGHT;
}

// Writes the `bytes` lowest bytes of a word to any address.
__device__ __forceinline__ void store_bytes(u8* to, u32 word, u32 bytes) {
    for (u32 j = 0; j < bytes; j++) to[j] = (u8)(word >> (8 * j));
}

// Reads `bytes` bytes, up to four, at any address.
__device__ __forceinline__ u32 load_bytes(const u8* from, u32 bytes) {
    u32 word = 0;
    for (u32 j = 0; j < bytes; j++) word |= (u32)from[j] << (8 * j);
    return word;
}
