// What a kernel may find wrong; the host raises an error with the text for it (faults.py). The first bits
// that are set stay: a fault is set, never cleared.
#pragma once
#include "common.cuh"

#define FAULT_WIDE_SYMBOL 1
#define FAULT_PADDING 2
#define FAULT_RICE_ORDER 4
#define FAULT_RICE_TABLE 8
#define FAULT_RICE_BLOCK 16
#define FAULT_STREAM 32
#define FAULT_ORDER 64
#define FAULT_COUNT 128
#define FAULT_CHUNK 256

__device__ __forceinline__ void set_fault(i32* faults, i32 fault) { atomicOr(faults, fault); }
