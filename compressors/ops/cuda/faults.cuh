// What a kernel may find wrong, a bit each; the host raises an error with the text for it (faults.py). Faults
// are set, never cleared, so that one fetch says what many kernels found.
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
#define FAULT_VALUE 512
#define FAULT_LEVEL 1024
#define FAULT_FLOAT 2048
#define FAULT_RANGE 4096
#define FAULT_MEAN 8192
#define FAULT_FLOAT8 16384
#define FAULT_SCALE 32768
#define FAULT_TOP 65536
#define FAULT_SIGN 131072

__device__ __forceinline__ void set_fault(i32* faults, i32 fault) { atomicOr(faults, fault); }
