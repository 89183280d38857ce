// Symbols that follow from an element and the range of its block: bins of equal width (Oland and Raj, section 3.1
// and Algorithms 1 and 2), and short floats: float16, bfloat16, and float8 e4m3fn with an exponent per block. The
// definitions are in by_range.py of ops/cpu; how memory is gone over, in blockwise.cuh.
#include "blockwise.cuh"

struct Linear {
    float *lows, *steps;
    i64 bits;
    float low, step, half_low, half_step, inverse;

    static __device__ __forceinline__ Linear of(void* lows, void* steps, i64 bits) {
        return {(float*)lows, (float*)steps, bits};
    }
    __device__ __forceinline__ void set_bits(i64) {}  // only quantizing needs them
    __device__ __forceinline__ void attach(const u64* tables) { lows = (float*)tables[0], steps = (float*)tables[1]; }
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

struct Fp8 {
    signed char* exponents;
    i32 exponent;
    float down, up;

    static __device__ __forceinline__ Fp8 of(void* exponents, void*, i64) { return {(signed char*)exponents}; }
    __device__ __forceinline__ void set_bits(i64) {}
    __device__ __forceinline__ void attach(const u64* tables) { exponents = (signed char*)tables[0]; }
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
struct Fp16 : Bare {
    __device__ __forceinline__ u32 symbol(float a) const { return round_to_fp16(a); }
    __device__ __forceinline__ float value(u32 symbol) const { return from_fp16(symbol); }
};
struct Bf16 : Bare {
    __device__ __forceinline__ u32 symbol(float a) const { return round_to_bf16(a); }
    __device__ __forceinline__ float value(u32 symbol) const { return from_bf16(symbol); }
};
struct Float32 : Bare {
    __device__ __forceinline__ float value(u32 symbol) const { return __uint_as_float(symbol); }
};

// Takes up pieces. `ranges`: one for each block, zeros before.
KERNEL find_ranges(GRID, Range* ranges, REPORTS) {
    Place place = Place::find(parts, owners);
    float a[ITEMS];
    Range range = {0, 0};
    i64 nonfinite = take_up(place, a, &range);
    write_items(place, a);
    range = range.of_block();
    if (threadIdx.x == 0) {
        atomicMax(&ranges[place.b].low, range.low);
        atomicMax(&ranges[place.b].high, range.high);
    }
    report_tile(reports + place.number, squares_of + blockIdx.x, 0, nonfinite);
}

// Where a sum is not finite, the symbol stands for the residual alone.
#define HALF(name, Form)                                                                                    \
    KERNEL name##_blocks(GRID, i64, u16* symbols, void*, void*, REPORTS) {                                  \
        Place place = Place::find(parts, owners);                                                           \
        float a[ITEMS];                                                                                     \
        Range range = {0, 0};                                                                               \
        i64 nonfinite = take_up(place, a, &range);                                                          \
        double squares = quantize(Form{}, place, a, symbols);                                               \
        report_tile(reports + place.number, squares_of + blockIdx.x, squares, nonfinite);                   \
    }                                                                                                       \
    VALUES(name, Form, u16)

HALF(fp16_16, Fp16)
HALF(bf16_16, Bf16)
FORM(linear_8, Linear, u8)
FORM(linear_16, Linear, u16)
FORM(fp8_8, Fp8, u8)
VALUES(f32_32, Float32, u32)
