// What the quantizing passes share: blocks of elements with a table each (blockwise.py of the CPU).
//
// A tile is a piece: a whole block, or 4096 elements of a larger one; 16 a thread, those of a warp side by side. Blocks
// that are one piece are taken up and quantized in one pass over memory; for larger ones a first pass finds the ranges.
//
// A form says how an element becomes a symbol. It has
//   void attach(void* first, void* second, i64 bits)       takes the tables, and the bits of a symbol
//   void set(Range)        takes the numbers of a block from the range of its elements
//   void write(i64 b)      writes them to the tables of block b
//   void load(i64 b)       reads them
//   u32 symbol(float)      of a finite element within the range
//   float value(u32)       that a symbol stands for
#pragma once
#include "parts.cuh"

// An unsigned integer that orders as the float does; -0.0 comes right before 0.0.
INLINE u32 order_key(float a) {
    u32 bits = __float_as_uint(a);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
INLINE float from_order_key(u32 key) {
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

// The largest of the threads of a block; all of them must call it.
INLINE u32 block_max(u32 value) {
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
    INLINE void include(float a) {
        u32 key = order_key(a);
        low = max(low, ~key);
        high = max(high, key);
    }
    // Of the elements of all threads of a block.
    INLINE Range of_block() const { return {block_max(low), block_max(high)}; }
    INLINE bool finite() const { return is_finite(smallest()) && is_finite(largest()); }
    INLINE float smallest() const { return from_order_key(~low); }
    INLINE float largest() const { return from_order_key(high); }
    // The bits of the largest magnitude.
    INLINE u32 magnitude() const { return max(magnitude_bits(smallest()), magnitude_bits(largest())); }
};

// What a form has that needs neither tables nor bits.
struct Bare {
    INLINE void attach(void*, void*, i64) {}
    INLINE void set(Range) {}
    INLINE void write(i64) const {}
    INLINE void load(i64) {}
};

// Where threads work: `count` elements of a parameter from `first` on, of block b among all blocks.
struct Place {
    Part part;
    u32 number, count;
    i64 b, first;
    bool begins;  // whether it is the first piece of its block

    static INLINE Place find(GRID) {
        u32 number = owners[blockIdx.x];
        Part part = parts[number];
        u32 tile = (u32)(blockIdx.x - part.first_tile), pieces = (u32)((part.block + TILE - 1) / TILE);
        i64 b = tile / pieces, first = b * part.block + (i64)(tile % pieces) * TILE;
        i64 end = min(min((b + 1) * part.block, first + TILE), part.n);
        u32 count = first < end ? (u32)(end - first) : 0;
        return {part, number, count, part.first_block + b, first, tile % pieces == 0};
    }
    // f(k, i) for this thread's elements: i is the place of its k-th in the parameter.
    template <class F> INLINE void over_items(F f) const {
        for (u32 k = 0; k < ITEMS; k++) {
            u32 j = k * blockDim.x + threadIdx.x;
            if (j < count) f(k, first + j);
        }
    }
};

// This thread's elements of residual + gradient, or of the residual where that is not finite, and the
// range of the sums. Without a residual it is zeros. Returns how many sums are not finite.
INLINE i64 take_up(const Place& place, float* a, Range* range) {
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
INLINE void read_items(const Place& place, float* a) {
    const Part& part = place.part;
    place.over_items([&](u32 k, i64 i) { a[k] = part.residual ? part.residual[i] : part.gradient_at(i); });
}

// Writes this thread's elements to the residual, if there is one.
INLINE void write_items(const Place& place, const float* a) {
    if (place.part.residual) place.over_items([&](u32 k, i64 i) { place.part.residual[i] = a[k]; });
}

INLINE float clamp_to_float32(float a) {
    float largest = __uint_as_float(0x7f7fffffu);
    a = a < largest ? a : largest;
    return a > -largest ? a : -largest;
}

// Writes this thread's symbols, and what they leave out to the residual, if there is one. Returns the
// sum of squares of that.
template <class Form, class Symbol>
INLINE double quantize(const Form& form, const Place& place, const float* a, Symbol* symbols) {
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

// Quantizes a piece. With the ranges of blocks, what stands in the residual, or the gradient. Without, blocks are one
// piece, and are taken up first; where a sum is not finite, no more than that: symbols are zeros, and stand for 0.
template <class Form, class Symbol>
INLINE void quantize_piece(GRID, const Range* ranges, i64 bits, Symbol* symbols, void* first, void* second, REPORTS) {
    Place place = Place::find(parts, owners);
    if (ranges && (reports[place.number].nonfinite || !place.count)) return;
    float a[ITEMS];
    Range range = {0, 0};
    i64 nonfinite = 0;
    double squares = 0;
    if (ranges) range = ranges[place.b], read_items(place, a);
    else nonfinite = take_up(place, a, &range), range = range.of_block();
    bool finite = range.finite();
    Form form;
    form.attach(first, second, bits);
    form.set(finite ? range : Range{~order_key(0.0f), order_key(0.0f)});
    if (threadIdx.x == 0 && place.begins) form.write(place.b);
    if (finite) squares = quantize(form, place, a, symbols);
    else {
        write_items(place, a);
        place.over_items([&](u32, i64 i) { symbols[place.part.base + i] = 0; });
    }
    report_tile(reports + place.number, squares_of + blockIdx.x, squares, nonfinite);
}

// Adds the values that symbols of some workers stand for, in their order, to what is there, or where `fill` to
// zeros; and divides by `divisor`, bits of a float, unless that is 0. `sources`: of each worker, where its symbols
// and both tables are. With reports it does so only where those tell of sums that are not finite: then what was
// quantized is put back.
template <class Form, class Symbol>
INLINE void add_values(GRID, const u64* sources, i64 workers, i64 bits, i64 fill, i64 divisor, const Report* reports) {
    Place place = Place::find(parts, owners);
    if (reports && !reports[place.number].nonfinite) return;
    float* out = place.part.residual;
    if (!out) return;
    float a[ITEMS];
    place.over_items([&](u32 k, i64 i) { a[k] = fill ? 0.0f : out[i]; });
    for (i64 w = 0; w < workers; w++) {
        const Symbol* symbols = (const Symbol*)sources[3 * w] + place.part.base;
        Form form;
        form.attach((void*)sources[3 * w + 1], (void*)sources[3 * w + 2], bits);
        form.load(place.b);
        Symbol s[ITEMS];
        place.over_items([&](u32 k, i64 i) { s[k] = symbols[i]; });
        place.over_items([&](u32 k, i64) { a[k] = a[k] + form.value(s[k]); });
    }
    float by = __uint_as_float((u32)divisor);
    place.over_items([&](u32 k, i64 i) { out[i] = divisor ? __fdiv_rn(a[k], by) : a[k]; });
}

#define VALUES(name, Form, Symbol)                                                                                    \
    OVER_TILES name##_values(GRID, const u64* sources, i64 workers, i64 bits, i64 fill, i64 divisor,                  \
                             const Report* reports) {                                                                 \
        add_values<Form, Symbol>(parts, owners, sources, workers, bits, fill, divisor, reports);                      \
    }
// Bits are those of all parameters, or each parameter's.
#define FORM(name, Form, Symbol)                                                                                      \
    OVER_TILES name##_quantize(GRID, const Range* ranges, i64 bits, const i64* bits_of, Symbol* symbols, void* first, \
                               void* second, REPORTS) {                                                               \
        if (bits_of) bits = bits_of[owners[blockIdx.x]];                                                              \
        quantize_piece<Form>(parts, owners, ranges, bits, symbols, first, second, reports, squares_of);               \
    }                                                                                                                 \
    VALUES(name, Form, Symbol)
