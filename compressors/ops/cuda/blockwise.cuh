// What the quantizing passes share: blocks of elements with a table each (blockwise.py of the CPU).
//
// A block of threads works on a piece: a whole block of elements, or 4096 elements of a larger one; 16 of
// them a thread, the threads of a warp side by side, so that loads are on their way before one is waited for.
// Blocks that are one piece are taken up and quantized in one pass over memory; larger ones take two,
// of which the first finds their ranges.
//
// A form says how an element becomes a symbol. It is made of pointers to the tables, and has
//   void set(Range)        takes the numbers of a block from the range of its elements
//   void write(i64 b)      writes them to the tables of block b
//   void write_broken(b)   writes there that the block has no symbols
//   bool load(i64 b)       reads them; false if the block has no symbols
//   u32 symbol(float)      of a finite element within the range
//   float value(u32)       that a symbol stands for
#pragma once
#include "gradients.cuh"
#include "report.cuh"

#define MOST_THREADS 256
#define ITEMS 16
#define PIECE (MOST_THREADS * ITEMS)

// An unsigned integer that orders as the float does; -0.0 comes right before 0.0.
__device__ __forceinline__ u32 order_key(float a) {
    u32 bits = __float_as_uint(a);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float from_order_key(u32 key) {
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

// The largest of the threads of a block; all of them must call it.
__device__ __forceinline__ u32 block_max(u32 value) {
    __shared__ u32 largest[32];
    for (u32 step = 16; step; step >>= 1) value = max(value, __shfl_xor_sync(FULL_WARP, value, step));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) largest[threadIdx.x >> 5] = value;
    __syncthreads();
    for (u32 w = 0; w < blockDim.x >> 5; w++) value = max(value, largest[w]);
    return value;
}

// The smallest and the largest of some floats, as keys; the smallest one's is complemented, so that the
// range of none is zeros.
struct Range {
    u32 low, high;
    __device__ __forceinline__ void include(float a) {
        u32 key = order_key(a);
        low = max(low, ~key);
        high = max(high, key);
    }
    // Of the elements of all threads of a block.
    __device__ __forceinline__ Range of_block() const { return {block_max(low), block_max(high)}; }
    __device__ __forceinline__ bool finite() const { return is_finite(smallest()) && is_finite(largest()); }
    __device__ __forceinline__ float smallest() const { return from_order_key(~low); }
    __device__ __forceinline__ float largest() const { return from_order_key(high); }
};

// Where a block of threads works: `count` elements from `first` on, of block b.
struct Place {
    i64 b, first;
    u32 count;
};
__device__ __forceinline__ Place find_place(i64 n, i64 block) {
    i64 pieces = (block + PIECE - 1) / PIECE, b = blockIdx.x / pieces;
    i64 first = b * block + blockIdx.x % pieces * PIECE, end = min(min((b + 1) * block, first + PIECE), n);
    return {b, first, first < end ? (u32)(end - first) : 0};
}

// This thread's elements of residual + gradient, or of the residual where that is not finite, and the
// range of the sums. Without a residual it is zeros. Returns how many sums are not finite.
__device__ __forceinline__ i64 take_up(const float* residual, const float* gradient, Place place, float* a,
                                       Range* range) {
    i64 nonfinite = 0;
    float g[ITEMS];
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j < place.count) g[k] = gradient[place.first + j];
        a[k] = residual && j < place.count ? residual[place.first + j] : 0.0f;
    }
    for (u32 k = 0; k < ITEMS; k++) {
        if (k * blockDim.x + threadIdx.x >= place.count) continue;
        float sum = residual ? a[k] + g[k] : g[k];
        range->include(sum);
        if (is_finite(sum)) a[k] = sum;
        else nonfinite++;
    }
    return nonfinite;
}

// Reads this thread's elements, of which the residual holds the sums already.
__device__ __forceinline__ void read_items(const float* residual, const float* gradient, Place place,
                                           float* a) {
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j < place.count) a[k] = residual ? residual[place.first + j] : gradient[place.first + j];
    }
}

// Writes this thread's elements.
__device__ __forceinline__ void write_items(float* to, Place place, const float* a) {
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j < place.count) to[place.first + j] = a[k];
    }
}

__device__ __forceinline__ float clamp_to_float32(float a) {
    float largest = __uint_as_float(0x7f7fffffu);
    a = a < largest ? a : largest;
    return a > -largest ? a : -largest;
}

// Writes this thread's symbols, and what they leave out to the residual, if there is one. Returns the
// sum of squares of that.
template <class Form, class Symbol>
__device__ __forceinline__ double quantize(Form form, float* residual, Place place, const float* a,
                                           Symbol* symbols) {
    double squares = 0;
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j >= place.count) continue;
        u32 symbol = form.symbol(a[k]);
        symbols[place.first + j] = (Symbol)symbol;
        if (!residual) continue;
        // Two ends of float32 in one quantile lie further apart than float32 reaches.
        float kept = clamp_to_float32(a[k] - form.value(symbol));
        residual[place.first + j] = kept;
        squares += (double)kept * (double)kept;
    }
    return squares;
}

// Takes up and quantizes blocks that are one piece. A block with a sum that is not finite is only taken up.
template <class Form, class Symbol>
__device__ __forceinline__ void quantize_blocks(Form form, float* residual, const float* gradient, i64 n,
                                                i64 block, Symbol* symbols, Report* report) {
    Place place = find_place(n, block);
    float a[ITEMS];
    Range range = {0, 0};
    i64 nonfinite = take_up(residual, gradient, place, a, &range);
    range = range.of_block();
    double squares = 0;
    if (range.finite()) {
        form.set(range);
        if (threadIdx.x == 0) form.write(place.b);
        squares = quantize(form, residual, place, a, symbols);
    } else {
        if (threadIdx.x == 0) form.write_broken(place.b);
        if (residual) write_items(residual, place, a);
    }
    add_to_report(report, squares, nonfinite);
}

// Takes up pieces. `ranges`: one for each block, zeros before.
__device__ __forceinline__ void find_ranges_of(float* residual, const float* gradient, i64 n, i64 block,
                                            Range* ranges, Report* report) {
    Place place = find_place(n, block);
    float a[ITEMS];
    Range range = {0, 0};
    i64 nonfinite = take_up(residual, gradient, place, a, &range);
    if (residual) write_items(residual, place, a);
    range = range.of_block();
    if (threadIdx.x == 0) {
        atomicMax(&ranges[place.b].low, range.low);
        atomicMax(&ranges[place.b].high, range.high);
    }
    add_to_report(report, 0, nonfinite);
}

// Quantizes pieces of blocks whose ranges are known: what stands in the residual, or the gradient.
template <class Form, class Symbol>
__device__ __forceinline__ void quantize_pieces(Form form, float* residual, const float* gradient, i64 n,
                                                i64 block, const Range* ranges, Symbol* symbols,
                                                Report* report) {
    if (report->nonfinite) return;
    Place place = find_place(n, block);
    form.set(ranges[place.b]);
    if (threadIdx.x == 0 && place.first == place.b * block) form.write(place.b);
    float a[ITEMS];
    read_items(residual, gradient, place, a);
    add_to_report(report, quantize(form, residual, place, a, symbols), 0);
}

// Adds the values that symbols stand for. With a report it does so only where that tells of sums that are not
// finite: then what was quantized is put back.
template <class Form, class Symbol>
__device__ __forceinline__ void add_values(Form form, const Symbol* symbols, i64 n, i64 block, float* out,
                                           const Report* report) {
    if (report && !report->nonfinite) return;
    Place place = find_place(n, block);
    if (!place.count || !form.load(place.b)) return;
    Symbol s[ITEMS];
    float before[ITEMS];
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j < place.count) s[k] = symbols[place.first + j];
        before[k] = j < place.count ? out[place.first + j] : 0.0f;
    }
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j >= place.count) continue;
        out[place.first + j] = before[k] + form.value(s[k]);
    }
}
