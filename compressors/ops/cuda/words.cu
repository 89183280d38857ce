// The elements that words name; a thread a word.
#include "common.cuh"

#define THREADS 256

__device__ __forceinline__ i64 number() { return (i64)blockIdx.x * THREADS + threadIdx.x; }

// Sets the elements that words name to zero; dense[0] has position `base`.
extern "C" __global__ void __launch_bounds__(THREADS)
    clear_named(const u32* words, i64 k, i64 base, float* dense, i64 n) {
    if (number() >= k) return;
    i64 at = (i64)(words[number()] >> 1) - base;
    if (at >= 0 && at < n) dense[at] = 0.0f;
}
