// Passes that only look, and momentum: one launch for all parameters of a bucket.
#include "parts.cuh"
#include "radix_select.cuh"

// This thread's elements of a tile: f(part, i) of each, `element` being i's place among all parameters'.
template <class F> INLINE void of_tile(GRID, F f) {
    u32 number = owners[blockIdx.x];
    const Part part = parts[number];
    i64 first = (blockIdx.x - part.first_tile) * TILE;
    for (u32 k = 0; k < TILE / THREADS; k++) {
        i64 i = first + k * THREADS + threadIdx.x;
        if (i < part.n) f(part, number, i);
    }
}

// velocity = momentum * velocity + gradient where that is finite; out receives it wherever.
OVER_TILES momentum(GRID, i64 bits, float* out) {
    float by = __uint_as_float((u32)bits);
    of_tile(parts, owners, [&](const Part& part, u32, i64 i) {
        float total = part.residual[i] * by + part.gradient_at(i);
        out[part.base + i] = total;
        if (is_finite(total)) part.residual[i] = total;
    });
}

// The bits of the largest magnitude of each gradient, a NaN's above all; zeros before.
OVER_TILES largest(GRID, u32* found) {
    u32 own = 0;
    of_tile(parts, owners, [&](const Part& part, u32, i64 i) {
        own = max(own, magnitude_bits(part.gradient_at(i)));
    });
    own = warp_max(own);
    if ((threadIdx.x & 31) == 0) atomicMax(&found[owners[blockIdx.x]], own);
}

// The sum of squares of each gradient, as whole numbers of a power of two (interface.py); zeros before.
OVER_TILES exact_squares(GRID, const i64* scales, i64* totals) {
    u32 owner = owners[blockIdx.x];
    double scale = __longlong_as_double(scales[owner]);
    i64 own = 0, all;
    of_tile(parts, owners, [&](const Part& part, u32, i64 i) {
        double a = part.gradient_at(i);
        own += (i64)(a * a * scale);
    });
    block_scan(own, &all);
    if (threadIdx.x == 0) atomicAdd((u64*)&totals[owner], (u64)all);
}

// Element number `i` of a sample of m of n, as uniform.py has it.
INLINE i64 sampled_place(i64 i, i64 m, i64 n) {
    u32 h = (u32)i;
    h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
    i64 low = i * n / m, high = (i + 1) * n / m;
    return low + (i64)h % (high - low);
}

// Samples of residual + gradient: `block` of each of n elements. Tiles are those of the samples.
OVER_TILES samples(GRID, float* out) {
    const Part part = parts[owners[blockIdx.x]];
    i64 first = (blockIdx.x - part.first_tile) * TILE, end = min(first + TILE, part.block);
    for (i64 i = first + threadIdx.x; i < end; i += THREADS)
        out[part.base + i] = part.sum_at(sampled_place(i, part.block, part.n));
}

// The magnitude of a rank among each parameter's samples, and whether one is not finite: u32 [m, 2], zeros before.
extern "C" __global__ void ranked(const Part* parts, const float* samples, const i64* ranks, u32* found) {
    __shared__ Search search;
    const Part part = parts[blockIdx.x];
    if (threadIdx.x == 0) search = {0, (u32)ranks[blockIdx.x]};
    for (u32 level = 0; level < LEVELS; level++)
        select_level(level, &search, [&](const Counter& counter) {
            for (i64 i = threadIdx.x; i < part.block; i += blockDim.x) {
                float a = samples[part.base + i];
                counter.count(magnitude_bits(a));
                if (!is_finite(a)) found[2 * blockIdx.x + 1] = 1;
            }
        });
    if (threadIdx.x == 0) found[2 * blockIdx.x] = search.prefix;
}
