// Uniform quantization in blocks: Oland and Raj, section 3.1 and Algorithms 1 and 2. The definitions of
// step, symbol and value are in by_range.py of ops/cpu; how memory is gone over, in blockwise.cuh.
#include "blockwise.cuh"

struct Linear {
    float *lows, *steps;
    i64 bits;
    float low, step, half_low, half_step, inverse;

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

// Takes up pieces. `ranges`: one for each block, zeros before.
KERNEL find_ranges(const Part* parts, const u32* owners, Range* ranges, Report* reports, double* squares_of) {
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

#define PASSES(size, Symbol)                                                                                \
    KERNEL quantize_blocks_##size(const Part* parts, const u32* owners, i64 bits, Symbol* symbols,          \
                                  float* lows, float* steps, Report* reports, double* squares) {            \
        quantize_blocks(Linear{lows, steps, bits}, parts, owners, symbols, reports, squares);               \
    }                                                                                                       \
    KERNEL quantize_pieces_##size(const Part* parts, const u32* owners, const Range* ranges, i64 bits,      \
                                  const i64* bits_of, Symbol* symbols, float* lows, float* steps,           \
                                  Report* reports, double* squares) {                                       \
        Linear form = {lows, steps, bits_of ? bits_of[owners[blockIdx.x]] : bits};                          \
        quantize_pieces(form, parts, owners, ranges, symbols, reports, squares);                            \
    }

PASSES(8, u8)
PASSES(16, u16)
VALUES(linear_values_8, Linear, u8)
VALUES(linear_values_16, Linear, u16)
