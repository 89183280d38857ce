// What a pass reports to the host, and to the pass behind it on the same device (reports.py).
#pragma once
#include "floats.cuh"

struct Report {
    i64 sent;       // words in the output after the pass
    double squares; // sum of squares of the residual that was kept
    i64 nonfinite;  // how many sums were infinite or no number
    i64 tau;        // bits of the float32 that was sent by, where the pass finds it
};

// Adds what each thread has seen to a report. All threads of a block must call it.
__device__ __forceinline__ void add_to_report(Report* report, double squares, i64 nonfinite) {
    double all_squares;
    block_scan(squares, &all_squares);
    if (threadIdx.x == 0 && all_squares != 0) atomicAdd(&report->squares, all_squares);
    if (nonfinite) atomicAdd((u64*)&report->nonfinite, (u64)nonfinite);
}
