// The parameters that a pass goes over, as the host lays them out (ops.py), and what the pass reports.
//
// Tiles of all parameters stand one after the other; a block of threads works on one, and `owners` says whose it is.
// Sums of squares are added up by the host, in order: floats that are added atomically differ from run to run.
#pragma once
#include "common.cuh"

enum Kind { FLOAT32, FLOAT16, BFLOAT16 };

struct Part {
    float* residual;       // null: zeros that nobody keeps
    const void* gradient;
    i64 n, base;           // base: its first position in the update, or its first symbol
    i64 first_tile, kind;  // kind: of the gradient
    i64 block, first_block;

    INLINE float gradient_at(i64 i) const {
        if (kind == FLOAT32) return ((const float*)gradient)[i];
        u32 bits = ((const u16*)gradient)[i];
        return kind == FLOAT16 ? from_fp16(bits) : from_bf16(bits);
    }
    INLINE float sum_at(i64 i) const {
        return residual ? residual[i] + gradient_at(i) : gradient_at(i);
    }
};

// The first and the last arguments of kernels over tiles.
#define GRID const Part *parts, const u32 *owners
#define REPORTS Report *reports, double *squares_of

struct Report {
    i64 end;        // words in the output after the parameter
    i64 nonfinite;  // how many sums were infinite or no number
    i64 tau;        // bits of the float32 that was sent by, where the pass finds it
};

// Writes what a tile's threads have kept, and adds to a report. All threads of a block must call it.
INLINE void report_tile(Report* report, double* squares_of_tile, double squares, i64 nonfinite) {
    double all;
    block_scan(squares, &all);
    if (threadIdx.x == 0) *squares_of_tile = all;
    if (nonfinite) atomicAdd((u64*)&report->nonfinite, (u64)nonfinite);
}

struct alignas(16) Four {
    float x, y, z, w;
};

INLINE bool aligned_for_four(const float* at) { return ((u64)at & 15) == 0; }

// Tiles of 4096 elements: 256 threads with 16 each, in LOADS loads of four; a warp's elements lie together, 128 a
// load. Tiles begin where the residual is aligned to 16 bytes, which may be up to three elements before its first.
#define THREADS 256
#define ITEMS 16
#define LOADS 4
#define TILE (THREADS * ITEMS)
#define OVER_TILES extern "C" __global__ void __launch_bounds__(THREADS)

// Where this thread's elements of a tile of a parameter begin: every 128 from there come four.
INLINE i64 first_of(const Part& part, i64 tile) {
    i64 shift = (i64)((u64)part.residual >> 2 & 3);
    return tile * TILE - shift + (threadIdx.x >> 5) * (LOADS * 128) + (threadIdx.x & 31) * 4;
}

// This thread's elements of a tile, from i on; zeros for those outside [0, n). Where floats are aligned, all loads are
// on their way before the first is looked at; otherwise element(j) reads one.
template <class F> INLINE void load_fours(const float* floats, i64 i, i64 n, float (*to)[4], F element) {
    if (floats && i >= 0 && i + (LOADS - 1) * 128 + 4 <= n && aligned_for_four(floats + i)) {
        Four fours[LOADS];
        for (u32 k = 0; k < LOADS; k++) fours[k] = *(const Four*)(floats + i + k * 128);
        for (u32 k = 0; k < LOADS; k++) {
            to[k][0] = fours[k].x, to[k][1] = fours[k].y;
            to[k][2] = fours[k].z, to[k][3] = fours[k].w;
        }
    } else {
        for (u32 j = 0; j < ITEMS; j++) {
            i64 at = i + j / 4 * 128 + j % 4;
            to[j / 4][j % 4] = at >= 0 && at < n ? element(at) : 0.0f;
        }
    }
}
INLINE void load_residual(const Part& part, i64 i, float (*to)[4]) {
    load_fours(part.residual, i, part.n, to, [&](i64 at) { return part.residual[at]; });
}
INLINE void load_gradient(const Part& part, i64 i, float (*to)[4]) {
    const float* floats = part.kind == FLOAT32 ? (const float*)part.gradient : nullptr;
    load_fours(floats, i, part.n, to, [&](i64 at) { return part.gradient_at(at); });
}

// Sums of a byte a load: how many elements of each are sent, at most 128 a warp. In 64 bits they are of two kinds, and
// the second one's sum begins at bit KIND_BITS.
#define KIND_BITS 31
INLINE u32 sum_of_loads(u32 bytes) {
    return (bytes & 255u) + (bytes >> 8 & 255u) + (bytes >> 16 & 255u) + (bytes >> 24);
}
INLINE u64 sum_of_loads(u64 bytes) {
    return (u64)sum_of_loads((u32)(bytes >> 32)) << KIND_BITS | sum_of_loads((u32)bytes);
}

// How many elements of a tile stand before this warp's, and in all. `counts`, bytes as above, are this thread's;
// `before` receives those of the lanes before it, `totals` the warp's. All threads of a block must call it.
template <class T> INLINE T place_warp(T counts, T* before, T* totals, T* in_tile) {
    __shared__ T warp_counts[THREADS / 32];
    u32 warp = threadIdx.x >> 5;
    T scanned = warp_scan(counts), begin = 0;
    *before = scanned - counts, *totals = __shfl_sync(FULL_WARP, scanned, 31), *in_tile = 0;
    if ((threadIdx.x & 31) == 0) warp_counts[warp] = sum_of_loads(*totals);
    __syncthreads();
    for (u32 w = 0; w < THREADS / 32; w++) {
        if (w == warp) begin = *in_tile;
        *in_tile += warp_counts[w];
    }
    return begin;
}

// Writes elements i to i + 3, but for those outside [0, n).
INLINE void store_four(float* to, i64 i, i64 n, const float* from) {
    if (i >= 0 && i + 4 <= n && aligned_for_four(to + i)) {
        Four four = {from[0], from[1], from[2], from[3]};
        *(Four*)(to + i) = four;
    } else {
        for (u32 c = 0; c < 4; c++)
            if (i + c >= 0 && i + c < n) to[i + c] = from[c];
    }
}
