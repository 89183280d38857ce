// Uniform quantization in blocks: Oland and Raj, section 3.1 and Algorithms 1 and 2. The definitions of
// step, symbol and value are in by_range.py of ops/cpu; how memory is gone over, in blockwise.cuh.
#include "blockwise.cuh"

struct Linear {
    float *lows, *steps;
    i64 bits;
    float low, step, half_low, half_step, inverse;

    __device__ __forceinline__ void prepare() {
        half_low = low * 0.5f;
        half_step = step * 0.5f;
        inverse = step > 0.0f ? __fdiv_rn(2.0f, step) : 0.0f;
    }
    __device__ __forceinline__ void set(Range range) {
        low = without_sign_of_zero(range.smallest());
        float high = without_sign_of_zero(range.largest());
        float scale = __uint_as_float((u32)(127 - bits) << 23);  // 2^-bits
        step = high * scale - low * scale;
        if (!(step >= __uint_as_float(1u << 23))) step = 0.0f;  // less than 2^-126
        prepare();
    }
    static __device__ __forceinline__ float without_sign_of_zero(float a) { return a == 0.0f ? 0.0f : a; }
    __device__ __forceinline__ void write(i64 b) const { lows[b] = low, steps[b] = step; }
    __device__ __forceinline__ void write_broken(i64 b) const { steps[b] = __uint_as_float(0x7fc00000u); }
    __device__ __forceinline__ bool load(i64 b) {
        low = lows[b], step = steps[b];
        prepare();
        return step == step;
    }
    __device__ __forceinline__ u32 symbol(float a) const {
        i32 symbol = (i32)((a * 0.5f - half_low) * inverse), top = (1 << bits) - 1;
        return symbol < top ? symbol : top;
    }
    __device__ __forceinline__ float value(u32 symbol) const {
        float half = half_low + half_step * ((float)symbol + 0.5f);
        return half + half;
    }
};

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    find_ranges(float* residual, const float* gradient, i64 n, i64 block, Range* ranges, Report* reports) {
    find_ranges_of(residual, gradient, n, block, ranges, reports + 1);
}

#define PASSES(size, Symbol)                                                                                \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                              \
        quantize_blocks_##size(float* residual, const float* gradient, i64 n, i64 block, i64 bits,          \
                               Symbol* symbols, float* lows, float* steps, Report* reports) {               \
        quantize_blocks(Linear{lows, steps, bits}, residual, gradient, n, block, symbols, reports + 1);     \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                              \
        quantize_pieces_##size(float* residual, const float* gradient, i64 n, i64 block,                    \
                               const Range* ranges, i64 bits, Symbol* symbols, float* lows, float* steps,   \
                               Report* reports) {                                                           \
        quantize_pieces(Linear{lows, steps, bits}, residual, gradient, n, block, ranges, symbols,           \
                        reports + 1);                                                                       \
    }

PASSES(8, u8)
PASSES(16, u16)

// reports: null, or a pass's, whose values are put back if it tells of sums that are not finite.
#define VALUES(size, Symbol)                                                                                \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                              \
        values_##size(const Symbol* symbols, i64 n, i64 block, i64 bits, float* lows, float* steps,         \
                      float* out, const Report* reports) {                                                  \
        add_values(Linear{lows, steps, bits}, symbols, n, block, out, reports ? reports + 1 : reports);     \
    }

VALUES(8, u8)
VALUES(16, u16)
