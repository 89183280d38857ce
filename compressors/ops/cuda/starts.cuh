// Where each of several parts begins that stand one behind the other, from their sizes.
#pragma once
#include "common.cuh"

// Writes the sums of the sizes before each part and, as the last, of all: starts[0] is `begin`. One block does
// it: parts are thousands of elements each, so there are few of them. All its threads must call it.
// size_of(s): bytes of part s, of 0 to count - 1.
template <class SizeOf>
__device__ __forceinline__ i64 write_starts(i64 count, i64 begin, i64* starts, SizeOf size_of) {
    for (i64 first = 0; first < count; first += blockDim.x) {
        i64 s = first + threadIdx.x, all;
        i64 size = s < count ? size_of(s) : 0;
        i64 behind = begin + block_scan(size, &all);
        if (s < count) starts[s] = behind - size;
        begin += all;
    }
    if (threadIdx.x == 0) starts[count] = begin;
    return begin;
}
