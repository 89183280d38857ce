// Loads and stores of four float32 at once.
#pragma once
#include "common.cuh"

struct alignas(16) Four {
    float x, y, z, w;
};

__device__ __forceinline__ bool aligned_for_four(const float* at) { return ((u64)at & 15) == 0; }

// LOADS times four elements, i to i + 3 and every `stride` from there; zeros for those outside
// [0, n). Where they are aligned, all loads are on their way before the first is looked at.
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
