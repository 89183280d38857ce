// Adds an update to a dense array: ops/cpu/sparse.py. A thread an element sent; positions are distinct, so
// the order does not matter. Positions of n and more are passed over.
#include "common.cuh"

#define THREADS 256

// Adds amount(i, whether the sign is minus) to the element that word i names.
template <class Amount>
__device__ __forceinline__ void add(const u32* words, i64 k, float* dense, i64 n, Amount amount) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    u32 word = words[i], position = word >> 1;
    if (position < n) dense[position] = __fadd_rn(dense[position], amount(i, word & 1));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_taus(const u32* words, i64 k, i64 tau_bits, float* dense, i64 n) {
    float tau = __uint_as_float((u32)tau_bits);
    add(words, k, dense, n, [=](i64, u32 minus) { return minus ? -tau : tau; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_levels(const u32* words, const u8* levels, i64 k, i64 tau_bits, float* dense, i64 n) {
    float tau = __uint_as_float((u32)tau_bits);
    add(words, k, dense, n, [=](i64 i, u32 minus) {
        float amount = __fmul_rn((float)levels[i], tau);
        return minus ? -amount : amount;
    });
}

// The values have their signs.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_values(const u32* words, const float* values, i64 k, float* dense, i64 n) {
    add(words, k, dense, n, [=](i64 i, u32) { return values[i]; });
}
