// What the kernels share: types, scans over a warp and a block, short floats.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

#define INLINE __device__ __forceinline__
#define FULL_WARP 0xffffffffu

// Inclusive sum over the lanes of a warp.
template <class T> INLINE T warp_scan(T value) {
    u32 lane = threadIdx.x & 31;
    for (u32 step = 1; step < 32; step <<= 1) {
        T below = __shfl_up_sync(FULL_WARP, value, step);
        if (lane >= step) value += below;
    }
    return value;
}

// The largest over the lanes of a warp.
INLINE u32 warp_max(u32 value) {
    for (u32 step = 16; step; step >>= 1) value = max(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}

// Inclusive sum over the threads of a block, a multiple of 32, all of which must call it; `total` receives that of all.
template <class T> INLINE T block_scan(T value, T* total) {
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

// Short floats, as float_formats.py of ops/cpu has them.
INLINE u32 magnitude_bits(float a) { return __float_as_uint(a) & 0x7fffffffu; }
INLINE bool is_finite(float a) { return magnitude_bits(a) < 0x7f800000u; }

// The magnitude bits of a format with `dropped` bits less in its mantissa. `least` and `largest`: float32 bits of its
// smallest normal number's exponent and its largest number.
INLINE u32 round_magnitude(float a, u32 dropped, u32 least, u32 largest) {
    u32 magnitude = min(magnitude_bits(a), largest);
    u32 exponent = max(magnitude & 0x7f800000u, least);
    // A float32 of this size has no place for the bits to be dropped: adding it rounds.
    u32 shift = exponent + (dropped << 23);
    float shifted = __uint_as_float(magnitude) + __uint_as_float(shift);
    return __float_as_uint(shifted) - shift + ((exponent - least) >> dropped);
}

// The value of magnitude bits with so many bits of mantissa, whose exponents are `bias` less than a float32's.
INLINE float widen_magnitude(u32 magnitude, u32 mantissa, u32 bias) {
    float normal = __uint_as_float((magnitude << (23 - mantissa)) + (bias << 23));
    float smallest = __uint_as_float((bias + 1 - mantissa) << 23);
    return magnitude >> mantissa ? normal : (float)magnitude * smallest;
}

INLINE float with_sign(float magnitude, u32 sign) {
    return __uint_as_float(__float_as_uint(magnitude) | sign);
}

INLINE u32 round_to_fp16(float a) {
    return round_magnitude(a, 13, 113u << 23, 0x477fe000u) | (__float_as_uint(a) >> 16 & 0x8000u);
}
INLINE float from_fp16(u32 bits) {
    u32 magnitude = bits & 0x7fffu, infinite = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    float a = magnitude < 0x7c00u ? widen_magnitude(magnitude, 10, 112) : __uint_as_float(infinite);
    return with_sign(a, bits << 16 & 0x80000000u);
}

INLINE u32 round_to_fp8(float a) {
    return round_magnitude(a, 20, 121u << 23, 0x43e00000u) | (__float_as_uint(a) >> 24 & 0x80u);
}
INLINE float from_fp8(u32 bits) {
    return with_sign(widen_magnitude(bits & 0x7fu, 3, 120), bits << 24 & 0x80000000u);
}

INLINE u32 round_to_bf16(float a) {
    u32 bits = __float_as_uint(a), magnitude = min(magnitude_bits(a), 0x7f7f0000u);
    bits = magnitude | (bits & 0x80000000u);
    return (bits + (bits >> 16 & 1u) + 0x7fffu) >> 16;
}
INLINE float from_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// 2^exponent, exponent in -126 to 127.
INLINE float power_of_two(i32 exponent) {
    return __uint_as_float((u32)(exponent + 127) << 23);
}
