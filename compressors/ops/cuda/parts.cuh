// The parameters that a pass goes over, as the host lays them out (device.py), and what the pass reports.
//
// Tiles of all parameters stand one after the other; a block of threads works on one, and `owners` says whose it is.
// Sums of squares are written by tile and added up by the host, in order: floats that are added atomically would
// come to other bits in every run.
#pragma once
#include "common.cuh"

enum Kind { FLOAT32, FLOAT16, BFLOAT16 };

struct Part {
    float* residual;       // null: zeros that nobody keeps
    const void* gradient;
    i64 n, base;           // base: its first position in the update, or its first symbol
    i64 first_tile, kind;  // kind: of the gradient
    i64 block, first_block;

    __device__ __forceinline__ float gradient_at(i64 i) const {
        if (kind == FLOAT32) return ((const float*)gradient)[i];
        u32 bits = ((const u16*)gradient)[i];
        return kind == FLOAT16 ? from_fp16(bits) : from_bf16(bits);
    }
    __device__ __forceinline__ float sum_at(i64 i) const {
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
__device__ __forceinline__ void report_tile(Report* report, double* squares_of_tile, double squares, i64 nonfinite) {
    double all;
    block_scan(squares, &all);
    if (threadIdx.x == 0) *squares_of_tile = all;
    if (nonfinite) atomicAdd((u64*)&report->nonfinite, (u64)nonfinite);
}

struct alignas(16) Four {
    float x, y, z, w;
};

__device__ __forceinline__ bool aligned_for_four(const float* at) { return ((u64)at & 15) == 0; }

// LOADS times four elements, i to i + 3 and every `stride` from there; zeros for those outside [0, n). Where they
// are aligned, all loads are on their way before the first is looked at.
template <u32 LOADS>
__device__ __forceinline__ void load_fours(const float* from, i64 i, i64 stride, i64 n, float (*to)[4]) {
    if (i >= 0 && i + (LOADS - 1) * stride + 4 <= n && aligned_for_four(from + i)) {
        Four fours[LOADS];
        for (u32 k = 0; k < LOADS; k++) fours[k] = *(const Four*)(from + i + k * stride);
        for (u32 k = 0; k < LOADS; k++) {
            to[k][0] = fours[k].x, to[k][1] = fours[k].y;
            to[k][2] = fours[k].z, to[k][3] = fours[k].w;
        }
    } else {
        for (u32 k = 0; k < LOADS; k++)
            for (u32 c = 0; c < 4; c++) {
                i64 at = i + k * stride + c;
                to[k][c] = at >= 0 && at < n ? from[at] : 0.0f;
            }
    }
}

// The same of a parameter's gradient.
template <u32 LOADS>
__device__ __forceinline__ void load_gradient(const Part& part, i64 i, i64 stride, float (*to)[4]) {
    if (part.kind == FLOAT32) return load_fours<LOADS>((const float*)part.gradient, i, stride, part.n, to);
    for (u32 k = 0; k < LOADS; k++)
        for (u32 c = 0; c < 4; c++) {
            i64 at = i + k * stride + c;
            to[k][c] = at >= 0 && at < part.n ? part.gradient_at(at) : 0.0f;
        }
}

// Writes elements i to i + 3, but for those outside [0, n).
__device__ __forceinline__ void store_four(float* to, i64 i, i64 n, const float* from) {
    if (i >= 0 && i + 4 <= n && aligned_for_four(to + i)) {
        Four four = {from[0], from[1], from[2], from[3]};
        *(Four*)(to + i) = four;
    } else {
        for (u32 c = 0; c < 4; c++)
            if (i + c >= 0 && i + c < n) to[i + c] = from[c];
    }
}

// Tiles of 4096 elements: 256 threads with 16 each, in LOADS loads of four; a warp's elements lie together, 128 a
// load. Tiles begin where the residual is aligned to 16 bytes, which may be up to three elements before its first.
#define THREADS 256
#define LOADS 4
#define TILE (THREADS * LOADS * 4)
#define OVER_TILES extern "C" __global__ void __launch_bounds__(THREADS)

// Where this thread's elements of a tile of a parameter begin: every 128 from there come four.
__device__ __forceinline__ i64 first_of(const Part& part, i64 tile) {
    i64 shift = (i64)((u64)part.residual >> 2 & 3);
    return tile * TILE - shift + (threadIdx.x >> 5) * (LOADS * 128) + (threadIdx.x & 31) * 4;
}
