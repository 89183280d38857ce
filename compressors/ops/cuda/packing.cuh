// Numbers of 1 to 16 bits side by side, without gaps: number i is bits i * b to i * b + b - 1.
//
// Eight numbers of b bits are b whole bytes, so a thread moves eight of them and shares no byte with
// another. A block of 256 threads moves 2048 numbers, at most 4 KiB of packed bytes, through shared memory:
// packed bytes are read and written as 32-bit words.
#pragma once
#include "bits.cuh"
#include "faults.cuh"

#define PACKING_THREADS 256
#define PACKING_TILE (PACKING_THREADS * EIGHT)
#define PACKING_WORDS SPAN_WORDS(PACKING_TILE * 2 + 3)

// A block's packed bytes: how many, and where they begin.
__device__ __forceinline__ u32 packing_bytes(i64 k, u32 bits) {
    i64 left = k - (i64)blockIdx.x * PACKING_TILE;
    return ((left < PACKING_TILE ? (u32)left : PACKING_TILE) * bits + 7) >> 3;
}
__device__ __forceinline__ i64 packing_begin(u32 bits) { return (i64)blockIdx.x * (PACKING_TILE / 8) * bits; }

// The first of this thread's numbers.
__device__ __forceinline__ i64 packing_first() { return (i64)blockIdx.x * PACKING_TILE + threadIdx.x * EIGHT; }

// Packs this thread's eight of k numbers, zeros behind the last.
__device__ __forceinline__ void pack_eight(const Eight<u32>& numbers, i64 k, u32 bits, u8* out) {
    __shared__ u32 words[PACKING_WORDS];
    u8* to = out + packing_begin(bits);
    u8* staged = (u8*)words + skew_of(to) + threadIdx.x * bits;
    u32 waiting = 0, width = 0;
    for (u32 j = 0; j < EIGHT; j++) {
        waiting |= numbers.at[j] << width;
        for (width += bits; width >= 8; width -= 8) {
            *staged++ = (u8)waiting;
            waiting >>= 8;
        }
    }
    __syncthreads();
    store_span(words, to, packing_bytes(k, bits));
}

// Unpacks this thread's eight of k numbers; behind the last they may be anything.
__device__ __forceinline__ Eight<u32> unpack_eight(const u8* body, i64 k, u32 bits, i32* faults) {
    __shared__ u32 words[PACKING_WORDS];
    const u8* from = body + packing_begin(bits);
    load_span(from, packing_bytes(k, bits), words);
    __syncthreads();
    i64 first = packing_first();
    u32 count = up_to_eight(k - first), at = 8 * skew_of(from) + threadIdx.x * EIGHT * bits;
    Eight<u32> numbers;
    for (u32 j = 0; j < EIGHT; j++) numbers.at[j] = get_bits(words, at + j * bits) & ((1u << bits) - 1);
    // The span's bits behind the last number: its padding, and zeros.
    if (count && first + count == k && get_bits(words, at + count * bits)) set_fault(faults, FAULT_PADDING);
    return numbers;
}
