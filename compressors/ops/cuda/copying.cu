// Copies bytes from any address to any other, in whole 32-bit words on both sides: a block of 256 threads
// moves 8 KiB through shared memory, where they are shifted.
#include "bits.cuh"

#define THREADS 256
#define TILE 8192

extern "C" __global__ void __launch_bounds__(THREADS) copy_bytes(const u8* from, i64 bytes, u8* to) {
    __shared__ u32 words[SPAN_WORDS(TILE + 3)], shifted[SPAN_WORDS(TILE + 3)];
    i64 first = (i64)blockIdx.x * TILE;
    u32 count = bytes - first < TILE ? (u32)(bytes - first) : TILE;
    load_span(from + first, count, words);
    __syncthreads();
    u32 skew = skew_of(from), new_skew = skew_of(to);
    for (u32 w = threadIdx.x; 4 * w < new_skew + count; w += THREADS) {
        u32 at = 8 * (4 * w + skew);  // of the bits, were they not shifted
        shifted[w] = at < 8 * new_skew ? words[0] << (8 * (new_skew - skew)) : get_bits(words, at - 8 * new_skew);
    }
    __syncthreads();
    store_span(shifted, to + first, count);
}
