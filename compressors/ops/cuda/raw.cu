// Every element written out, zeros for those not sent: wire/codecs/raw.py. Elements are float32 (wgt), int8 (bgt,
// strom) or int16 (qgt), and may begin at any byte.
//
// Written by a thread an element sent, over zeros. Read by a block of 256 threads 2048 elements, eight
// neighbours a thread; where a block's words begin is found by look-back.
#include "bits.cuh"
#include "faults.cuh"
#include "look_back.cuh"

#define THREADS 256
#define TILE (THREADS * EIGHT)

template <u32 SIZE, class Element>
__device__ __forceinline__ void write(const u32* words, i64 k, u8* out, Element element) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < k) store_bytes(out + (i64)(words[i] >> 1) * SIZE, element(i, words[i] & 1), SIZE);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    write_wgt(const u32* words, const u32* values, i64 k, u8* out) {
    write<4>(words, k, out, [=](i64 i, u32) { return values[i]; });
}

extern "C" __global__ void __launch_bounds__(THREADS) write_signs(const u32* words, i64 k, u8* out) {
    write<1>(words, k, out, [=](i64, u32 minus) { return minus ? (u32)-1 : 1u; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    write_levels(const u32* words, const u8* levels, i64 k, u8* out) {
    write<2>(words, k, out, [=](i64 i, u32 minus) { return minus ? -(u32)levels[i] : (u32)levels[i]; });
}

// Writes the words of the elements whose bits are not all zero, as far as they fit k, and hands each element to
// take(number of the word, bits). Checks that they are k. states: u64 [blocks + 1], zeros.
template <u32 SIZE, class Take>
__device__ __forceinline__ void read(const u8* body, i64 n, i64 k, u32* words, u64* states, i32* faults,
                                     Take take) {
    __shared__ i64 tile_begin;
    i64 tile = take_ticket(states), first = tile * TILE + threadIdx.x * EIGHT;
    u32 count = up_to_eight(n - first), bits[EIGHT], found = 0, all;
    for (u32 j = 0; j < EIGHT; j++) {
        bits[j] = j < count ? load_bytes(body + (first + j) * SIZE, SIZE) : 0;
        found += bits[j] != 0;
    }
    u32 before = block_scan(found, &all) - found;
    if (threadIdx.x < 32) {
        i64 begin = (i64)look_back(states, tile, all);
        if (threadIdx.x == 0) {
            tile_begin = begin;
            if (tile == gridDim.x - 1 && begin + all != k) set_fault(faults, FAULT_COUNT);
        }
    }
    __syncthreads();
    i64 at = tile_begin + before;
    for (u32 j = 0; j < EIGHT; j++) {
        if (!bits[j] || at >= k) continue;
        words[at] = (u32)(first + j) << 1 | (bits[j] >> (8 * SIZE - 1));
        take(at++, bits[j]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    read_wgt(const u8* body, i64 n, i64 k, u32* words, u32* values, u64* states, i32* faults) {
    read<4>(body, n, k, words, states, faults, [=](i64 i, u32 bits) { values[i] = bits; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    read_signs(const u8* body, i64 n, i64 k, u32* words, u64* states, i32* faults) {
    read<1>(body, n, k, words, states, faults, [=](i64, u32 bits) {
        if (bits != 1 && bits != 0xff) set_fault(faults, FAULT_TOP);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    read_levels(const u8* body, i64 n, i64 k, u32* words, u8* levels, u64* states, i32* faults) {
    read<2>(body, n, k, words, states, faults, [=](i64 i, u32 bits) {
        u32 magnitude = bits >> 15 ? 0x10000u - bits : bits;
        if (magnitude > 255) set_fault(faults, FAULT_TOP);
        levels[i] = (u8)magnitude;
    });
}
