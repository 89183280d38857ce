// What the kernels share: types, bit access at any alignment, scans over a warp and a block.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

#define FULL_WARP 0xffffffffu

// Inclusive sum over the lanes of a warp.
template <class T> __device__ __forceinline__ T warp_scan(T value) {
    u32 lane = threadIdx.x & 31;
    for (u32 step = 1; step < 32; step <<= 1) {
        T below = __shfl_up_sync(FULL_WARP, value, step);
        if (lane >= step) value += below;
    }
    return value;
}

// The largest over the lanes of a warp.
__device__ __forceinline__ u32 warp_max(u32 value) {
    for (u32 step = 16; step; step >>= 1) value = max(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}

// Inclusive sum over the threads of a block; all of them must call it. Up to 1024 threads, a multiple of 32.
// `total` receives the sum over the block.
template <class T> __device__ __forceinline__ T block_scan(T value, T* total) {
    __shared__ T sums[32];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    T scanned = warp_scan(value);
    __syncthreads();  // the sums of a call before this one have been read
    if (lane == 31) sums[warp] = scanned;
    __syncthreads();
    T before = 0, all = 0;
    for (u32 w = 0; w < warps; w++) {
        if (w < warp) before += sums[w];
        all += sums[w];
    }
    *total = all;
    return scanned + before;
}
