// A sum of squares whose order is always the same, see ops/cpu/looking.py. A block of 256 threads looks at 4096
// neighbours.
#include "common.cuh"

#define THREADS 256
#define ITEMS 16
#define TILE (THREADS * ITEMS)

// Calls look(i) for this thread's elements of n, those of a warp side by side.
template <class Look> __device__ __forceinline__ void each(i64 n, Look look) {
    for (u32 k = 0; k < ITEMS; k++) {
        i64 i = (i64)blockIdx.x * TILE + k * THREADS + threadIdx.x;
        if (i < n) look(i);
    }
}

// One step of a sum whose order is always the same, sums[b] becomes the sum of
// tile b, of which thread t adds up elements t, t + 256, ...; then 128 threads add what the other 128 have,
// and so on.
template <class Value> __device__ __forceinline__ void sum_tile(i64 n, double* sums, Value value) {
    __shared__ double lanes[THREADS];
    double own = 0;
    each(n, [&](i64 i) { own = __dadd_rn(own, value(i)); });
    lanes[threadIdx.x] = own;
    for (u32 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) lanes[threadIdx.x] = __dadd_rn(lanes[threadIdx.x], lanes[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = lanes[0];
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_squares(const float* values, i64 n, double* sums) {
    sum_tile(n, sums, [=](i64 i) { return __dmul_rn((double)values[i], (double)values[i]); });
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_sums(const double* values, i64 n, double* sums) {
    sum_tile(n, sums, [=](i64 i) { return values[i]; });
}
