// Batcher's bitonic sort of unsigned integers, ascending, in the shared memory of a block of threads.
#pragma once
#include "common.cuh"

#define SORT_TILE 4096

// Sorts `count` keys, a power of two. All threads of a block must call it.
__device__ __forceinline__ void sort_shared(u32* keys, u32 count) {
    for (u32 size = 2; size <= count; size <<= 1)
        for (u32 distance = size >> 1; distance; distance >>= 1) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
                u32 i = 2 * pair - (pair & (distance - 1));  // the pair's lower element
                u32 low = keys[i], high = keys[i + distance];
                if (low > high == !(i & size)) keys[i] = high, keys[i + distance] = low;
            }
        }
    __syncthreads();
}
