// Short floats: float16, bfloat16, and float8 e4m3fn with an exponent per block. The definitions are in
// by_range.py of ops/cpu; how memory is gone over, in blockwise.cuh. The ranges of blocks larger
// than a piece are found by linear.cu.
#include "blockwise.cuh"
#include "floats.cuh"

struct Fp8 {
    signed char* exponents;
    i32 exponent;
    float down, up;

    __device__ __forceinline__ void prepare() { down = power_of_two(-exponent), up = power_of_two(exponent); }
    __device__ __forceinline__ void set(Range range) {
        u32 largest = max(__float_as_uint(range.smallest()) & 0x7fffffffu,
                          __float_as_uint(range.largest()) & 0x7fffffffu);
        // 448 is 1.75 * 2^8: a larger mantissa needs one more. Subnormal numbers end up below the range.
        exponent = (i32)(largest >> 23) - 127 - 8 + ((largest & 0x7fffffu) > 0x600000u);
        exponent = largest ? min(max(exponent, -126), 119) : 0;
        prepare();
    }
    __device__ __forceinline__ void write(i64 b) const { exponents[b] = (signed char)exponent; }
    __device__ __forceinline__ void write_broken(i64 b) const { exponents[b] = -128; }
    __device__ __forceinline__ bool load(i64 b) {
        exponent = exponents[b];
        if (exponent < -126 || exponent > 119) return false;
        prepare();
        return true;
    }
    __device__ __forceinline__ u32 symbol(float a) const { return round_to_fp8(a * down); }
    __device__ __forceinline__ float value(u32 symbol) const { return from_fp8(symbol) * up; }
};

// Without tables, every element by itself.
struct Fp16 {
    __device__ __forceinline__ bool load(i64) { return true; }
    __device__ __forceinline__ u32 symbol(float a) const { return round_to_fp16(a); }
    __device__ __forceinline__ float value(u32 symbol) const { return from_fp16(symbol); }
};
struct Bf16 {
    __device__ __forceinline__ bool load(i64) { return true; }
    __device__ __forceinline__ u32 symbol(float a) const { return round_to_bf16(a); }
    __device__ __forceinline__ float value(u32 symbol) const { return from_bf16(symbol); }
};

// Where a sum is not finite, the symbol stands for the residual alone.
template <class Form>
__device__ __forceinline__ void round_all(Form form, float* residual, const float* gradient, i64 n,
                                          u16* symbols, Report* report) {
    Place place = find_place(n, n);
    float a[ITEMS];
    Range range = {0, 0};
    i64 nonfinite = take_up(residual, gradient, place, a, &range);
    add_to_report(report, quantize(form, residual, place, a, symbols), nonfinite);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    fp8_blocks(float* residual, const float* gradient, i64 n, i64 block, u8* symbols, signed char* exponents,
               Report* reports) {
    quantize_blocks(Fp8{exponents}, residual, gradient, n, block, symbols, reports + 1);
}
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    fp8_pieces(float* residual, const float* gradient, i64 n, i64 block, const Range* ranges, u8* symbols,
               signed char* exponents, Report* reports) {
    quantize_pieces(Fp8{exponents}, residual, gradient, n, block, ranges, symbols, reports + 1);
}

// reports: null, or a pass's, whose values are put back if it tells of sums that are not finite.
#define HALVES(name, Form)                                                                                  \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                              \
        name(float* residual, const float* gradient, i64 n, u16* symbols, Report* reports) {                \
        round_all(Form{}, residual, gradient, n, symbols, reports + 1);                                     \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                              \
        name##_values(const u16* symbols, i64 n, i64 block, i64 bits, float* out, const Report* reports) {  \
        add_values(Form{}, symbols, n, n, out, reports ? reports + 1 : reports);                            \
    }

HALVES(fp16, Fp16)
HALVES(bf16, Bf16)

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    fp8_values(const u8* symbols, i64 n, i64 block, i64 bits, signed char* exponents, float* out,
               const Report* reports) {
    add_values(Fp8{exponents}, symbols, n, block, out, reports ? reports + 1 : reports);
}
