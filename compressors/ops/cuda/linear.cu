// Uniform quantization in blocks: Oland and Raj, section 3.1 and Algorithms 1 and 2. The definitions of
// step, symbol and value are in by_range.py of ops/cpu; how memory is gone over, in blockwise.cuh.
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

FORM(linear_8, Linear, u8)
FORM(linear_16, Linear, u16)
