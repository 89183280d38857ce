// Symbols of 1 to 16 bits side by side, without gaps: kernels/bitpack.py.
//
// Eight symbols of b bits are b whole bytes, so a thread moves eight of them and shares no byte with
// another. A block of 256 threads moves 2048 symbols, at most 4 KiB of packed bytes, through shared memory:
// symbols are read and written eight at a time, packed bytes as 32-bit words.
#include "bits.cuh"
#include "faults.cuh"

#define THREADS 256
#define TILE (THREADS * EIGHT)
#define MOST_BYTES (TILE * 2)

// Of a tile's packed bytes: where they are, and how many.
__device__ __forceinline__ u32 tile_bytes(i64 k, u32 bits) {
    i64 left = k - (i64)blockIdx.x * TILE;
    return ((left < TILE ? (u32)left : TILE) * bits + 7) >> 3;
}
__device__ __forceinline__ i64 tile_begin(u32 bits) { return (i64)blockIdx.x * (TILE / 8) * bits; }

template <class S>
__device__ __forceinline__ void pack(const S* symbols, i64 k, u32 bits, u8* out, i32* faults) {
    __shared__ u32 words[SPAN_WORDS(MOST_BYTES + 3)];
    u8* to = out + tile_begin(bits);
    i64 first = (i64)blockIdx.x * TILE + threadIdx.x * EIGHT;
    Eight<S> group = load_eight(symbols + first, up_to_eight(k - first));
    u8* staged = (u8*)words + skew_of(to) + threadIdx.x * bits;
    u32 waiting = 0, width = 0, seen = 0;
    for (u32 j = 0; j < EIGHT; j++) {
        seen |= group.at[j];
        waiting |= (u32)group.at[j] << width;
        for (width += bits; width >= 8; width -= 8) {
            *staged++ = (u8)waiting;
            waiting >>= 8;
        }
    }
    if (seen >> bits) set_fault(faults, FAULT_WIDE_SYMBOL);
    __syncthreads();
    store_span(words, to, tile_bytes(k, bits));
}

template <class S>
__device__ __forceinline__ void unpack(const u8* body, i64 k, u32 bits, S* symbols, i32* faults) {
    __shared__ u32 words[SPAN_WORDS(MOST_BYTES + 3)];
    const u8* from = body + tile_begin(bits);
    load_span(from, tile_bytes(k, bits), words);
    __syncthreads();
    i64 first = (i64)blockIdx.x * TILE + threadIdx.x * EIGHT;
    u32 count = up_to_eight(k - first), at = 8 * skew_of(from) + threadIdx.x * EIGHT * bits;
    Eight<S> group;
    for (u32 j = 0; j < count; j++) group.at[j] = (S)(get_bits(words, at + j * bits) & ((1u << bits) - 1));
    store_eight(group, symbols + first, count);
    // The span's bits behind the last symbol: its padding, and zeros.
    if (count && first + count == k && get_bits(words, at + count * bits)) set_fault(faults, FAULT_PADDING);
}

#define KERNELS(name, S)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                  \
        pack_##name(const S* symbols, i64 k, i64 bits, u8* out, i32* faults) {                             \
        pack(symbols, k, (u32)bits, out, faults);                                                          \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                  \
        unpack_##name(const u8* body, i64 k, i64 bits, S* symbols, i32* faults) {                          \
        unpack(body, k, (u32)bits, symbols, faults);                                                       \
    }

KERNELS(uint8, u8)
KERNELS(uint16, u16)
