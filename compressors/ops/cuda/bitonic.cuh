// Batcher's bitonic sort of unsigned integers, ascending: in the shared memory of a block of threads, and
// over segments of a larger array. Lengths are powers of two.
#pragma once
#include "common.cuh"

#define SORT_TILE 4096

// Exchanges element i and the one `distance` above it unless they are in order. `at` is the place of
// element 0 in its segment, which says which way runs of `size` are to go.
__device__ __forceinline__ void exchange(u32* keys, i64 i, i64 distance, i64 at, i64 size) {
    u32 low = keys[i], high = keys[i + distance];
    if (low > high == !((at + i) & size)) keys[i] = high, keys[i + distance] = low;
}

// The pair's lower element, of the pairs `distance` (a power of two) apart.
__device__ __forceinline__ i64 lower_of_pair(i64 pair, i64 distance) {
    return 2 * pair - (pair & (distance - 1));
}

// The steps of one size from a distance down to 1, on `count` keys. All threads of a block must call it.
__device__ __forceinline__ void merge_shared(u32* keys, u32 count, i64 distance, i64 at, i64 size) {
    for (; distance; distance >>= 1) {
        __syncthreads();
        for (u32 pair = threadIdx.x; pair < count / 2; pair += blockDim.x)
            exchange(keys, lower_of_pair(pair, distance), distance, at, size);
    }
    __syncthreads();
}

// Sorts `count` keys in shared memory; as a part of a segment, ready to be merged with the rest.
__device__ __forceinline__ void sort_shared(u32* keys, u32 count, i64 at) {
    for (i64 size = 2; size <= count; size <<= 1) merge_shared(keys, count, size >> 1, at, size);
}
