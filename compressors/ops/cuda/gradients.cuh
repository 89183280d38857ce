// Gradients of any type as float32, and loads of four elements at once.
#pragma once
#include "common.cuh"

struct Half {
    u16 bits;
};
struct Brain {
    u16 bits;
};

__device__ __forceinline__ float widen(float a) { return a; }
__device__ __forceinline__ float widen(Brain a) { return __uint_as_float((u32)a.bits << 16); }
__device__ __forceinline__ float widen(Half a) {
    u32 magnitude = a.bits & 0x7fffu, sign = (u32)(a.bits & 0x8000u) << 16;
    float value = magnitude >> 10 ? __uint_as_float((magnitude << 13) + (112u << 23))
                                  : (float)magnitude * __uint_as_float(103u << 23);  // times 2^-24
    if (magnitude >= 0x7c00u) value = __uint_as_float((magnitude << 13) + (224u << 23));
    return __uint_as_float(__float_as_uint(value) | sign);
}

template <class T> struct alignas(4 * sizeof(T)) Four {
    T x, y, z, w;
};

template <class T> __device__ __forceinline__ bool aligned_for_four(const T* at) {
    return ((u64)at & (4 * sizeof(T) - 1)) == 0;
}

// LOADS times four elements as float32, i to i + 3 and every `stride` from there; zeros for those outside
// [0, n). Where they are aligned, all loads are on their way before the first is looked at.
template <u32 LOADS, class T>
__device__ __forceinline__ void load_fours(const T* from, i64 i, i64 stride, i64 n, float (*to)[4]) {
    if (i >= 0 && i + (LOADS - 1) * stride + 4 <= n && aligned_for_four(from + i)) {
        Four<T> fours[LOADS];
        for (u32 k = 0; k < LOADS; k++) fours[k] = *(const Four<T>*)(from + i + k * stride);
        for (u32 k = 0; k < LOADS; k++) {
            to[k][0] = widen(fours[k].x), to[k][1] = widen(fours[k].y);
            to[k][2] = widen(fours[k].z), to[k][3] = widen(fours[k].w);
        }
    } else {
        for (u32 k = 0; k < LOADS; k++)
            for (u32 c = 0; c < 4; c++) {
                i64 at = i + k * stride + c;
                to[k][c] = at >= 0 && at < n ? widen(from[at]) : 0.0f;
            }
    }
}

// Writes elements i to i + 3, but for those outside [0, n).
__device__ __forceinline__ void store_four(float* to, i64 i, i64 n, const float* from) {
    if (i >= 0 && i + 4 <= n && aligned_for_four(to + i)) {
        Four<float> four = {from[0], from[1], from[2], from[3]};
        *(Four<float>*)(to + i) = four;
    } else {
        for (u32 c = 0; c < 4; c++)
            if (i + c >= 0 && i + c < n) to[i + c] = from[c];
    }
}

// Place number i of m spread over n elements, as sampling.py of ops/cpu defines them.
__device__ __forceinline__ i64 sample_place(i64 i, i64 n, i64 m) {
    u32 hash = (u32)i;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    hash ^= hash >> 16;
    i64 low = i * n / m, high = (i + 1) * n / m;
    return low + hash % (high - low);
}
