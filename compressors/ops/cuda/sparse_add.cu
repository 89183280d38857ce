// Adds an update to a dense array: ops/cpu/sparse.py. A thread an element sent; positions are distinct, so
// the order does not matter. A position's element is `shift` behind it; what is none of [0, n) is passed over.
#include "common.cuh"

#define THREADS 256

// Adds amount(i, whether the sign is minus) to the element that word i names.
template <class Amount>
__device__ __forceinline__ void add(const u32* words, i64 k, i64 shift, float* dense, i64 n, Amount amount) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    u32 word = words[i];
    i64 at = (i64)(word >> 1) + shift;
    if (at >= 0 && at < n) dense[at] = __fadd_rn(dense[at], amount(i, word & 1));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_taus(const u32* words, i64 k, i64 tau_bits, i64 shift, float* dense, i64 n) {
    float tau = __uint_as_float((u32)tau_bits);
    add(words, k, shift, dense, n, [=](i64, u32 minus) { return minus ? -tau : tau; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_levels(const u32* words, const u8* levels, i64 k, i64 tau_bits, i64 shift, float* dense, i64 n) {
    float tau = __uint_as_float((u32)tau_bits);
    add(words, k, shift, dense, n, [=](i64 i, u32 minus) {
        float amount = __fmul_rn((float)levels[i], tau);
        return minus ? -amount : amount;
    });
}

// The values have their signs.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_values(const u32* words, const float* values, i64 k, i64 shift, float* dense, i64 n) {
    add(words, k, shift, dense, n, [=](i64 i, u32) { return values[i]; });
}
