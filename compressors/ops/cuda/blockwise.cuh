// What the quantizing passes share: blocks of elements with a table each (blockwise.py of the CPU).
//
// A block of threads works on a piece: a whole block of elements, or 4096 elements of a larger one; 16 of
// them a thread, the threads of a warp side by side, so that loads are on their way before one is waited for.
// Blocks that are one piece are taken up and quantized in one pass over memory; larger ones take two,
// of which the first finds their ranges.
//
// A launch goes over all parameters: a tile is a piece, and each parameter says how long its blocks are, and which
// of all blocks is its first.
//
// A form says how an element becomes a symbol. It is made of pointers to the tables, and has
//   void set(Range)        takes the numbers of a block from the range of its elements
//   void write(i64 b)      writes them to the tables of block b
//   void write_broken(b)   writes there that the block has no symbols
//   bool load(i64 b)       reads them; false if the block has no symbols
//   u32 symbol(float)      of a finite element within the range
//   float value(u32)       that a symbol stands for
#pragma once
#include "parts.cuh"

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
    value = warp_max(value);
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

// What a form has that needs neither tables nor bits.
struct Bare {
    __device__ __forceinline__ void set_bits(i64) {}
    __device__ __forceinline__ void attach(const u64*) {}
    __device__ __forceinline__ bool load(i64) { return true; }
};

// Where a block of threads works: `count` elements of a parameter from `first` on, of block b among all blocks.
struct Place {
    Part part;
    u32 number, count;
    i64 b, first;
    bool begins;  // whether it is the first piece of its block

    static __device__ __forceinline__ Place find(GRID) {
        u32 number = owners[blockIdx.x];
        Part part = parts[number];
        u32 tile = (u32)(blockIdx.x - part.first_tile), pieces = (u32)((part.block + PIECE - 1) / PIECE);
        i64 b = tile / pieces, first = b * part.block + (i64)(tile % pieces) * PIECE;
        i64 end = min(min((b + 1) * part.block, first + PIECE), part.n);
        u32 count = first < end ? (u32)(end - first) : 0;
        return {part, number, count, part.first_block + b, first, tile % pieces == 0};
    }
    // f(k, i) for this thread's elements: i is the place of its k-th in the parameter.
    template <class F> __device__ __forceinline__ void over_items(F f) const {
        for (u32 k = 0; k < ITEMS; k++) {
            u32 j = k * blockDim.x + threadIdx.x;
            if (j < count) f(k, first + j);
        }
    }
};

// This thread's elements of residual + gradient, or of the residual where that is not finite, and the
// range of the sums. Without a residual it is zeros. Returns how many sums are not finite.
__device__ __forceinline__ i64 take_up(const Place& place, float* a, Range* range) {
    const Part& part = place.part;
    i64 nonfinite = 0;
    float g[ITEMS];
    place.over_items([&](u32 k, i64 i) {
        g[k] = part.gradient_at(i);
        a[k] = part.residual ? part.residual[i] : 0.0f;
    });
    place.over_items([&](u32 k, i64) {
        float sum = part.residual ? a[k] + g[k] : g[k];
        range->include(sum);
        if (is_finite(sum)) a[k] = sum;
        else nonfinite++;
    });
    return nonfinite;
}

// Reads this thread's elements, of which the residual holds the sums already.
__device__ __forceinline__ void read_items(const Place& place, float* a) {
    place.over_items([&](u32 k, i64 i) { a[k] = place.part.residual ? place.part.residual[i] : place.part.gradient_at(i); });
}

// Writes this thread's elements to the residual, if there is one.
__device__ __forceinline__ void write_items(const Place& place, const float* a) {
    if (place.part.residual) place.over_items([&](u32 k, i64 i) { place.part.residual[i] = a[k]; });
}

__device__ __forceinline__ float clamp_to_float32(float a) {
    float largest = __uint_as_float(0x7f7fffffu);
    a = a < largest ? a : largest;
    return a > -largest ? a : -largest;
}

// Writes this thread's symbols, and what they leave out to the residual, if there is one. Returns the
// sum of squares of that.
template <class Form, class Symbol>
__device__ __forceinline__ double quantize(const Form& form, const Place& place, const float* a, Symbol* symbols) {
    float* residual = place.part.residual;
    double squares = 0;
    place.over_items([&](u32 k, i64 i) {
        u32 symbol = form.symbol(a[k]);
        symbols[place.part.base + i] = (Symbol)symbol;
        if (!residual) return;
        // Two ends of float32 in one quantile lie further apart than float32 reaches.
        float kept = clamp_to_float32(a[k] - form.value(symbol));
        residual[i] = kept;
        squares += (double)kept * (double)kept;
    });
    return squares;
}

// Takes up and quantizes blocks that are one piece. A block with a sum that is not finite is only taken up.
template <class Form, class Symbol>
__device__ __forceinline__ void quantize_blocks(Form form, GRID, Symbol* symbols, REPORTS) {
    Place place = Place::find(parts, owners);
    float a[ITEMS];
    Range range = {0, 0};
    i64 nonfinite = take_up(place, a, &range);
    range = range.of_block();
    double squares = 0;
    if (range.finite()) {
        form.set(range);
        if (threadIdx.x == 0) form.write(place.b);
        squares = quantize(form, place, a, symbols);
    } else {
        if (threadIdx.x == 0) form.write_broken(place.b);
        write_items(place, a);
    }
    report_tile(reports + place.number, squares_of + blockIdx.x, squares, nonfinite);
}

// Quantizes pieces of blocks whose ranges are known: what stands in the residual, or the gradient.
template <class Form, class Symbol>
__device__ __forceinline__ void quantize_pieces(Form form, GRID, const Range* ranges, Symbol* symbols,
                                                REPORTS) {
    Place place = Place::find(parts, owners);
    if (reports[place.number].nonfinite || !place.count) return;
    form.set(ranges[place.b]);
    if (threadIdx.x == 0 && place.begins) form.write(place.b);
    float a[ITEMS];
    read_items(place, a);
    report_tile(reports + place.number, squares_of + blockIdx.x, quantize(form, place, a, symbols), 0);
}

// Adds the values that symbols of some workers stand for, in their order, to what is there, or where `fill` to
// zeros; and divides by `divisor`, bits of a float, unless that is 0. `sources`: of each worker, where its symbols
// and both tables are. With reports it does so only where those tell of sums that are not finite: then what was
// quantized is put back.
template <class Form, class Symbol>
__device__ __forceinline__ void add_values(Form form, GRID, const u64* sources, i64 workers, i64 fill, i64 divisor,
                                           const Report* reports) {
    Place place = Place::find(parts, owners);
    if (reports && !reports[place.number].nonfinite) return;
    float* out = place.part.residual;
    if (!out) return;
    float a[ITEMS];
    place.over_items([&](u32 k, i64 i) { a[k] = fill ? 0.0f : out[i]; });
    for (i64 w = 0; w < workers; w++) {
        const Symbol* symbols = (const Symbol*)sources[3 * w] + place.part.base;
        form.attach(sources + 3 * w + 1);
        if (!form.load(place.b)) continue;
        Symbol s[ITEMS];
        place.over_items([&](u32 k, i64 i) { s[k] = symbols[i]; });
        place.over_items([&](u32 k, i64) { a[k] = a[k] + form.value(s[k]); });
    }
    float by = __uint_as_float((u32)divisor);
    place.over_items([&](u32 k, i64 i) { out[i] = divisor ? __fdiv_rn(a[k], by) : a[k]; });
}

#define KERNEL extern "C" __global__ void __launch_bounds__(MOST_THREADS)
#define VALUES(name, Form, Symbol)                                                                          \
    KERNEL name##_values(GRID, const u64* sources, i64 workers, i64 bits, i64 fill, i64 divisor,            \
                         const Report* reports) {                                                           \
        Form form = {};                                                                                     \
        form.set_bits(bits);                                                                                \
        add_values<Form, Symbol>(form, parts, owners, sources, workers, fill, divisor, reports);            \
    }
// Of a form with tables of ranges: bits are those of all parameters, or each parameter's.
#define FORM(name, Form, Symbol)                                                                            \
    KERNEL name##_blocks(GRID, i64 bits, Symbol* symbols, void* first, void* second, REPORTS) {             \
        quantize_blocks(Form::of(first, second, bits), parts, owners, symbols, reports, squares_of);        \
    }                                                                                                       \
    KERNEL name##_pieces(GRID, const Range* ranges, i64 bits, const i64* bits_of, Symbol* symbols,          \
                         void* first, void* second, REPORTS) {                                              \
        Form form = Form::of(first, second, bits_of ? bits_of[owners[blockIdx.x]] : bits);                  \
        quantize_pieces(form, parts, owners, ranges, symbols, reports, squares_of);                         \
    }                                                                                                       \
    VALUES(name, Form, Symbol)
