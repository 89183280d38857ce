// What was sent, added to where it belongs: to a bucket, or to residuals.
#include "parts.cuh"

enum Amount { TAUS, LEVELS, VALUES, CLEAR };

// Adds what words stand for. The memory of a parameter is `residual`; no two words have one position.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_words(const Part* parts, i64 count, const u32* words, i64 k, i64 kind, const void* beside, const float* taus) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    u32 word = words[i];
    i64 position = word >> 1, low = 0, high = count;
    while (high - low > 1) {  // the last parameter that begins at the position or before
        i64 middle = (low + high) / 2;
        if (parts[middle].base <= position) low = middle; else high = middle;
    }
    float* at = parts[low].residual + (position - parts[low].base);
    float value = kind == VALUES ? ((const float*)beside)[i] : kind == CLEAR ? 0.0f : taus[low];
    if (kind == LEVELS) value = (float)((const u8*)beside)[i] * value;
    if (kind != VALUES && (word & 1)) value = -value;
    *at = kind == CLEAR ? 0.0f : *at + value;
}
