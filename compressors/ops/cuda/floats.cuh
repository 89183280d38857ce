// Short floating point formats, as float_formats.py of ops/cpu has them: rounded to nearest, ties to
// even, subnormal numbers included; what is larger than the largest finite number becomes that number.
#pragma once
#include "common.cuh"

__device__ __forceinline__ bool is_finite(float a) {
    return (__float_as_uint(a) & 0x7fffffffu) < 0x7f800000u;
}

// The magnitude bits of a format with `dropped` bits less in its mantissa. `least` and `largest`: float32
// bits of its smallest normal number's exponent and its largest number.
__device__ __forceinline__ u32 round_magnitude(float a, u32 dropped, u32 least, u32 largest) {
    u32 magnitude = min(__float_as_uint(a) & 0x7fffffffu, largest);
    u32 exponent = max(magnitude & 0x7f800000u, least);
    // A float32 of this size has no place for the bits to be dropped: adding it rounds.
    u32 shift = exponent + (dropped << 23);
    float shifted = __uint_as_float(magnitude) + __uint_as_float(shift);
    return __float_as_uint(shifted) - shift + ((exponent - least) >> dropped);
}

// The value of magnitude bits with `mantissa` bits of mantissa, whose exponents are `bias` less than a
// float32's.
__device__ __forceinline__ float widen_magnitude(u32 magnitude, u32 mantissa, u32 bias) {
    float normal = __uint_as_float((magnitude << (23 - mantissa)) + (bias << 23));
    float smallest = __uint_as_float((bias + 1 - mantissa) << 23);
    return magnitude >> mantissa ? normal : (float)magnitude * smallest;
}

__device__ __forceinline__ float with_sign(float magnitude, u32 sign) {
    return __uint_as_float(__float_as_uint(magnitude) | sign);
}

__device__ __forceinline__ u32 round_to_fp16(float a) {
    return round_magnitude(a, 13, 113u << 23, 0x477fe000u) | (__float_as_uint(a) >> 16 & 0x8000u);
}
__device__ __forceinline__ float from_fp16(u32 bits) {
    u32 magnitude = bits & 0x7fffu, infinite = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    float a = magnitude < 0x7c00u ? widen_magnitude(magnitude, 10, 112) : __uint_as_float(infinite);
    return with_sign(a, bits << 16 & 0x80000000u);
}

__device__ __forceinline__ u32 round_to_fp8(float a) {
    return round_magnitude(a, 20, 121u << 23, 0x43e00000u) | (__float_as_uint(a) >> 24 & 0x80u);
}
__device__ __forceinline__ float from_fp8(u32 bits) {
    return with_sign(widen_magnitude(bits & 0x7fu, 3, 120), bits << 24 & 0x80000000u);
}

__device__ __forceinline__ u32 round_to_bf16(float a) {
    u32 bits = __float_as_uint(a), magnitude = min(bits & 0x7fffffffu, 0x7f7f0000u);
    bits = magnitude | (bits & 0x80000000u);
    return (bits + (bits >> 16 & 1u) + 0x7fffu) >> 16;
}
__device__ __forceinline__ float from_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// 2^exponent, exponent in -126 to 127.
__device__ __forceinline__ float power_of_two(i32 exponent) {
    return __uint_as_float((u32)(exponent + 127) << 23);
}
