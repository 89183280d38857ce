// Bins of equal population in blocks, each standing for its mean: see quantile.py of ops/cpu. by_range.cu has found the
// ranges of blocks before. Blocks of up to 4096 elements are sorted in shared memory; of larger ones the keys come
// sorted, below the number of their block.
#include "blockwise.cuh"

#define ZERO_KEY 0x80000000u
#define NO_KEY 0xffffffffu

INLINE u32 quantile_key(float a) { return a == 0.0f ? ZERO_KEY : order_key(a); }

INLINE double power_of_two_64(i64 exponent) {
    return __longlong_as_double((exponent + 1023) << 52);
}

// Sorts `count` keys, a power of two, in shared memory by Batcher's bitonic sort. All threads of a block must call it.
INLINE void sort_shared(u32* keys, u32 count) {
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

// The sorted keys of a block of elements, in shared memory (u32) or global memory (u64, in the lower half).
template <class Key> struct Sorted {
    const Key* keys;
    i64 size;
    i64 bits;

    INLINE u32 at(i64 i) const { return (u32)keys[i]; }

    // c_j, for j = 1 to 2^bits - 1.
    INLINE u32 cut(i64 j) const { return at((j * size) >> bits); }

    // How many cuts are at most a key.
    INLINE u32 bin(u32 key) const {
        i64 reached = 0;
        for (i64 step = 1ll << (bits - 1); step; step >>= 1)
            if (cut(reached + step) <= key) reached += step;
        return (u32)reached;
    }

    // Where bin j begins: at the first of the elements equal to c_j.
    INLINE i64 begin(i64 j) const {
        if (j == 0) return 0;
        if (j >> bits) return size;
        u32 key = cut(j);
        i64 low = 0, high = (j * size) >> bits;  // the first lies in low to high
        while (low < high) {
            i64 middle = (low + high) >> 1;
            if (at(middle) < key) low = middle + 1;
            else high = middle;
        }
        return low;
    }
};

// How sums of a block's elements are scaled to integers, and their means to float16.
struct Scale {
    i32 exponent;
    double up, down;

    static INLINE Scale of(Range range, i64 size) {
        u32 largest = range.magnitude();
        i32 exponent = largest ? max((i32)(largest >> 23) - 127 - 14, -128) : 0;
        i64 fraction = 47;
        while ((1ll << (47 - fraction)) < size) fraction--;
        return {exponent, power_of_two_64(fraction - exponent), power_of_two_64(-fraction)};
    }
    INLINE i64 scaled(u32 key) const { return (i64)((double)from_order_key(key) * up); }
    INLINE u16 mean(i64 total, i64 count) const {
        u32 bits = round_to_fp16((float)((double)total / (double)(count ? count : 1) * down));
        return (u16)((bits & 0x8000u) | min(bits & 0x7fffu, 0x77ffu));
    }
};

template <class Key> struct Quantile {
    u16* tables;
    i8* exponents;
    Sorted<Key> sorted;
    const u16* table;
    double scale;

    INLINE void attach(void* first, void* second, i64 bits) {
        exponents = (i8*)first, tables = (u16*)second, sorted.bits = bits;
    }
    INLINE void load(i64 b) {
        table = tables + (b << sorted.bits);
        scale = power_of_two_64(exponents[b]);
    }
    INLINE u32 symbol(float a) const { return sorted.bin(quantile_key(a)); }
    INLINE float value(u32 symbol) const {
        u32 mask = (1u << sorted.bits) - 1;  // no symbol leads out of the table
        return (float)((double)from_fp16(table[symbol & mask]) * scale);
    }
};

// Blocks of up to 4096 elements, whose ranges are known. `padded`: a block's length, rounded up to a power of two.
template <class Symbol>
INLINE void quantize_blocks(GRID, const Range* ranges, i64 padded, i64 bits, Symbol* symbols, i8* exponents,
                            u16* tables, REPORTS) {
    Place place = Place::find(parts, owners);
    if (reports[place.number].nonfinite || !place.count) return;
    __shared__ u32 keys[TILE];
    float a[ITEMS];
    read_items(place, a);
    for (u32 k = 0; k < ITEMS; k++) {
        u32 j = k * blockDim.x + threadIdx.x;
        if (j < padded) keys[j] = j < place.count ? quantile_key(a[k]) : NO_KEY;
    }
    // Threads are as many as the elements need, which may be fewer than the keys do.
    for (u32 j = ITEMS * blockDim.x + threadIdx.x; j < padded; j += blockDim.x) keys[j] = NO_KEY;
    sort_shared(keys, (u32)padded);
    Sorted<u32> sorted = {keys, place.count, bits};
    Scale scale = Scale::of(ranges[place.b], place.count);
    if (threadIdx.x == 0) exponents[place.b] = (i8)scale.exponent;
    for (i64 j = threadIdx.x; j < 1ll << bits; j += blockDim.x) {
        i64 begin = sorted.begin(j), end = sorted.begin(j + 1), total = 0;
        for (i64 i = begin; i < end; i++) total += scale.scaled(sorted.at(i));
        tables[(place.b << bits) + j] = scale.mean(total, end - begin);
    }
    __syncthreads();
    Quantile<u32> form = {tables, exponents, sorted};
    form.load(place.b);
    report_tile(reports + place.number, squares_of + blockIdx.x, quantize(form, place, a, symbols), 0);
}

// The keys of all elements, below the number of their block.
OVER_TILES write_keys(GRID, u64* keys) {
    Place place = Place::find(parts, owners);
    float a[ITEMS];
    read_items(place, a);
    place.over_items([&](u32 k, i64 i) { keys[place.part.base + i] = (u64)place.b << 32 | quantile_key(a[k]); });
}

// The mean of one bin of one block, by a block of threads. Tiles are blocks of elements here.
extern "C" __global__ void find_means(GRID, const u64* keys, const Range* ranges, i64 bits, i8* exponents,
                                      u16* tables, const Report* reports) {
    i64 b = blockIdx.x >> bits, j = blockIdx.x & ((1ll << bits) - 1);
    const Part part = parts[owners[b]];
    if (reports[owners[b]].nonfinite) return;
    i64 first = (b - part.first_tile) * part.block, size = min(part.n - first, part.block);
    Sorted<u64> sorted = {keys + part.base + first, size, bits};
    Scale scale = Scale::of(ranges[b], size);
    i64 begin = sorted.begin(j), end = sorted.begin(j + 1), own = 0, total;
    for (i64 i = begin + threadIdx.x; i < end; i += blockDim.x) own += scale.scaled(sorted.at(i));
    block_scan(own, &total);
    if (threadIdx.x) return;
    tables[(b << bits) + j] = scale.mean(total, end - begin);
    if (j == 0) exponents[b] = (i8)scale.exponent;
}

template <class Symbol>
INLINE void quantize_pieces(GRID, const u64* keys, i64 bits, Symbol* symbols, i8* exponents, u16* tables, REPORTS) {
    Place place = Place::find(parts, owners);
    if (reports[place.number].nonfinite || !place.count) return;
    float a[ITEMS];
    read_items(place, a);
    i64 first = (place.b - place.part.first_block) * place.part.block;
    Sorted<u64> sorted = {keys + place.part.base + first, min(place.part.n - first, place.part.block), bits};
    Quantile<u64> form = {tables, exponents, sorted};
    form.load(place.b);
    report_tile(reports + place.number, squares_of + blockIdx.x, quantize(form, place, a, symbols), 0);
}

#define PASSES(name, Symbol)                                                                                          \
    OVER_TILES name##_blocks(GRID, const Range* ranges, i64 padded, i64 bits, Symbol* symbols, i8* exponents,         \
                             u16* tables, REPORTS) {                                                                  \
        quantize_blocks(parts, owners, ranges, padded, bits, symbols, exponents, tables, reports, squares_of);        \
    }                                                                                                                 \
    OVER_TILES name##_pieces(GRID, const u64* keys, i64 bits, Symbol* symbols, i8* exponents, u16* tables, REPORTS) { \
        quantize_pieces(parts, owners, keys, bits, symbols, exponents, tables, reports, squares_of);                  \
    }                                                                                                                 \
    VALUES(name, Quantile<u32>, Symbol)

PASSES(quantile_8, u8)
PASSES(quantile_16, u16)
