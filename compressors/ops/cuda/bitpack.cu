// Symbols of 1 to 16 bits side by side: ops/cpu/bitpack.py. Eight a thread, see packing.cuh.
#include "packing.cuh"

template <class S>
__device__ __forceinline__ void pack(const S* symbols, i64 k, u32 bits, u8* out, i32* faults) {
    i64 first = packing_first();
    Eight<S> group = load_eight(symbols + first, up_to_eight(k - first));
    Eight<u32> numbers;
    u32 seen = 0;
    for (u32 j = 0; j < EIGHT; j++) {
        seen |= group.at[j];
        numbers.at[j] = group.at[j] & ((1u << bits) - 1);
    }
    if (seen >> bits) set_fault(faults, FAULT_WIDE_SYMBOL);
    pack_eight(numbers, k, bits, out);
}

template <class S>
__device__ __forceinline__ void unpack(const u8* body, i64 k, u32 bits, S* symbols, i32* faults) {
    Eight<u32> numbers = unpack_eight(body, k, bits, faults);
    Eight<S> group;
    for (u32 j = 0; j < EIGHT; j++) group.at[j] = (S)numbers.at[j];
    store_eight(group, symbols + packing_first(), up_to_eight(k - packing_first()));
}

#define KERNELS(name, S)                                                                                   \
    extern "C" __global__ void __launch_bounds__(PACKING_THREADS)                                          \
        pack_##name(const S* symbols, i64 k, i64 bits, u8* out, i32* faults) {                             \
        pack(symbols, k, (u32)bits, out, faults);                                                          \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(PACKING_THREADS)                                          \
        unpack_##name(const u8* body, i64 k, i64 bits, S* symbols, i32* faults) {                          \
        unpack(body, k, (u32)bits, symbols, faults);                                                       \
    }

KERNELS(uint8, u8)
KERNELS(uint16, u16)
