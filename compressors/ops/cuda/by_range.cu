// Symbols that follow from an element and the range of its block: see by_range.py of ops/cpu, and blockwise.cuh.
#include "blockwise.cuh"

struct Linear {
    float *lows, *steps;
    i64 bits;
    float low, step, half_low, half_step, inverse;

    INLINE void attach(void* first, void* second, i64 b) { lows = (float*)first, steps = (float*)second, bits = b; }
    INLINE void prepare() {
        half_low = low * 0.5f;
        half_step = step * 0.5f;
        inverse = step > 0.0f ? __fdiv_rn(2.0f, step) : 0.0f;
    }
    INLINE void set(Range range) {
        low = without_sign_of_zero(range.smallest());
        float high = without_sign_of_zero(range.largest());
        float scale = __uint_as_float((u32)(127 - bits) << 23);  // 2^-bits
        step = high * scale - low * scale;
        if (!(step >= __uint_as_float(1u << 23))) step = 0.0f;  // less than 2^-126
        prepare();
    }
    static INLINE float without_sign_of_zero(float a) { return a == 0.0f ? 0.0f : a; }
    INLINE void write(i64 b) const { lows[b] = low, steps[b] = step; }
    INLINE void load(i64 b) {
        low = lows[b], step = steps[b];
        prepare();
    }
    INLINE u32 symbol(float a) const {
        i32 symbol = (i32)((a * 0.5f - half_low) * inverse), top = (1 << bits) - 1;
        return symbol < top ? symbol : top;
    }
    INLINE float value(u32 symbol) const {
        float half = half_low + half_step * ((float)symbol + 0.5f);
        return half + half;
    }
};

struct Fp8 {
    i8* exponents;
    i32 exponent;
    float down, up;

    INLINE void attach(void* first, void*, i64) { exponents = (i8*)first; }
    INLINE void prepare() { down = power_of_two(-exponent), up = power_of_two(exponent); }
    INLINE void set(Range range) {
        u32 largest = range.magnitude();
        // 448 is 1.75 * 2^8: a larger mantissa needs one more. Subnormal numbers end up below the range.
        exponent = (i32)(largest >> 23) - 127 - 8 + ((largest & 0x7fffffu) > 0x600000u);
        exponent = largest ? min(max(exponent, -126), 119) : 0;
        prepare();
    }
    INLINE void write(i64 b) const { exponents[b] = (i8)exponent; }
    INLINE void load(i64 b) {
        exponent = exponents[b];
        prepare();
    }
    INLINE u32 symbol(float a) const { return round_to_fp8(a * down); }
    INLINE float value(u32 symbol) const { return from_fp8(symbol) * up; }
};

// Without tables, every element by itself.
struct Fp16 : Bare {
    INLINE u32 symbol(float a) const { return round_to_fp16(a); }
    INLINE float value(u32 symbol) const { return from_fp16(symbol); }
};
struct Bf16 : Bare {
    INLINE u32 symbol(float a) const { return round_to_bf16(a); }
    INLINE float value(u32 symbol) const { return from_bf16(symbol); }
};
struct Float32 : Bare {
    INLINE float value(u32 symbol) const { return __uint_as_float(symbol); }
};

// Takes up pieces. `ranges`: one for each block, zeros before.
OVER_TILES find_ranges(GRID, Range* ranges, REPORTS) {
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

FORM(fp16_16, Fp16, u16)
FORM(bf16_16, Bf16, u16)
FORM(linear_8, Linear, u8)
FORM(linear_16, Linear, u16)
FORM(fp8_8, Fp8, u8)
VALUES(f32_32, Float32, u32)
