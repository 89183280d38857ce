// What is to be known of a gradient or residual that no pass goes over: whether it is zero everywhere, whether
// it is finite, its sum of squares, a sample of it. A block of 256 threads looks at 4096 neighbours.
#include "gradients.cuh"
#include "report.cuh"

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

// Joins 1 to *found where an element is not zero; one that is no number is not.
template <class T> __device__ __forceinline__ void find_nonzero(const T* values, i64 n, i32* found) {
    bool any = false;
    each(n, [&](i64 i) { any |= !(widen(values[i]) == 0.0f); });
    if (__any_sync(FULL_WARP, any) && (threadIdx.x & 31) == 0) atomicOr(found, 1);
}

// A pass that sends nothing and changes nothing: reports how many elements are not finite.
template <class T> __device__ __forceinline__ void count_nonfinite(const T* values, i64 n, Report* reports) {
    i64 count = 0;
    each(n, [&](i64 i) { count += !is_finite(widen(values[i])); });
    add_to_report(reports + 1, 0, count);
}

extern "C" __global__ void __launch_bounds__(THREADS) squares(const float* values, i64 n, double* sum) {
    double own = 0, all;
    each(n, [&](i64 i) { own += (double)values[i] * (double)values[i]; });
    block_scan(own, &all);
    if (threadIdx.x == 0) atomicAdd(sum, all);
}

// One step of a sum whose order is always the same, see ops/cpu/ordered_sum.py: sums[b] becomes the sum of
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

// The values at m places spread over n elements, which sampling.py of ops/cpu defines.
extern "C" __global__ void __launch_bounds__(THREADS) sample(const float* values, i64 n, i64 m, float* taken) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < m) taken[i] = values[sample_place(i, n, m)];
}

#define LOOKS(type, T)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        find_nonzero_##type(const T* values, i64 n, i32* found) {                                           \
        find_nonzero(values, n, found);                                                                     \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        count_nonfinite_##type(const T* values, i64 n, Report* reports) {                                   \
        count_nonfinite(values, n, reports);                                                                \
    }

LOOKS(float32, float)
LOOKS(float16, Half)
LOOKS(bfloat16, Brain)
