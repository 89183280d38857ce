// Whether values and tables from the wire are such as the passes write; a thread looks at 16 of them, those of
// a warp side by side.
#include "faults.cuh"
#include "floats.cuh"

#define THREADS 256
#define ITEMS 16

// Sets a fault unless `good` holds for 0 to n - 1.
template <class Good> __device__ __forceinline__ void check(i64 n, i32* faults, i32 fault, Good good) {
    bool bad = false;
    for (u32 k = 0; k < ITEMS; k++) {
        i64 i = ((i64)blockIdx.x * ITEMS + k) * blockDim.x + threadIdx.x;
        if (i < n && !good(i)) bad = true;
    }
    if (__any_sync(FULL_WARP, bad) && (threadIdx.x & 31) == 0) set_fault(faults, fault);
}

#define CHECK extern "C" __global__ void __launch_bounds__(THREADS)

CHECK wgt(const u32* words, const float* values, i64 n, i64 tau_bits, i32* faults) {
    float tau = __uint_as_float((u32)tau_bits);
    check(n, faults, FAULT_VALUE, [=](i64 i) {
        float value = values[i];
        return is_finite(value) && fabsf(value) >= tau && (value < 0.0f) == (words[i] & 1u);
    });
}

CHECK levels(const u8* levels, i64 n, i32* faults) {
    check(n, faults, FAULT_LEVEL, [=](i64 i) { return levels[i] != 0; });
}

CHECK f32(const float* values, i64 n, i32* faults) {
    check(n, faults, FAULT_FLOAT, [=](i64 i) { return is_finite(values[i]); });
}

// exponent: the bits of the format's exponent; all of them are set where a number is infinite or none.
CHECK halves(const u16* symbols, i64 n, i64 exponent, i32* faults) {
    check(n, faults, FAULT_FLOAT, [=](i64 i) { return (symbols[i] & (u32)exponent) != (u32)exponent; });
}

CHECK linear_tables(const float* lows, const float* steps, i64 blocks, i64 bits, i32* faults) {
    float last_centre = (float)(1 << bits) - 0.5f;
    check(blocks, faults, FAULT_RANGE, [=](i64 b) {
        float low = lows[b], step = steps[b], highest = low * 0.5f + (step * 0.5f) * last_centre;
        bool step_fits = __float_as_uint(step) == 0 || step >= __uint_as_float(1u << 23);  // 2^-126
        bool low_fits = is_finite(low) && __float_as_uint(low) != 0x80000000u;
        return step_fits && low_fits && is_finite(highest + highest);
    });
}

CHECK quantile_means(const u16* tables, i64 n, i32* faults) {
    check(n, faults, FAULT_MEAN, [=](i64 i) { return (tables[i] & 0x7fffu) <= 0x77ffu; });
}

CHECK fp8_symbols(const u8* symbols, i64 n, i32* faults) {
    check(n, faults, FAULT_FLOAT8, [=](i64 i) { return (symbols[i] & 0x7fu) != 0x7fu; });
}

CHECK exponents(const i8* exponents, i64 blocks, i64 least, i64 most, i32* faults) {
    check(blocks, faults, FAULT_SCALE, [=](i64 b) { return exponents[b] >= least && exponents[b] <= most; });
}
