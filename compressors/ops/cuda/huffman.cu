// Huffman-coded symbols: ops/cpu/huffman.py says what the bytes mean. The code itself is the host's business.
//
//   Counting: a block has its counts in shared memory, several copies of them where they are few, so that
//   equal symbols wait less for each other.
//   Writing: a block of threads a stream of 4096 symbols, 16 a thread. Where a thread's codes stand is a
//   prefix sum of their lengths; they are put together in shared memory.
//   Reading: a block of threads a stream, each a part of its bits (Weissenberger and Schmidt, "Massively
//   parallel Huffman decoding on GPUs", 2018). Where the first code of a part begins is not known, so threads
//   guess and begin again where the part before turns out to end; decoders that begin at a wrong bit soon
//   meet the right codes, mostly. What is read is what one thread would read, in any case.
#include "bits.cuh"
#include "faults.cuh"
#include "starts.cuh"

#define THREADS 256
#define READERS 128
#define TABLE_THREADS 1024
#define STREAM 4096
#define LENGTH_BITS 6
#define LENGTH_MASK ((1u << LENGTH_BITS) - 1)
#define LONGEST 18
#define SHARED_COUNTS 8192
#define ROUNDS (STREAM / (THREADS * EIGHT))

// How often each of 2^bits symbols occurs; counts: u32, zeros. A block of 256 threads counts the groups of
// eight symbols that are its own when the blocks take turns.
template <class S>
__device__ __forceinline__ void histogram(const S* symbols, i64 k, u32 bits, u32* counts, i32* faults) {
    __shared__ u32 shared[SHARED_COUNTS];
    u32 size = 1u << bits, mask = size - 1, seen = 0;
    u32* own = counts;
    u32 copies = min(SHARED_COUNTS >> bits, THREADS / 32);
    if (copies) {
        clear(shared, SHARED_COUNTS);
        own = shared + (threadIdx.x / 32 % copies) * size;
        __syncthreads();
    }
    i64 step = (i64)gridDim.x * THREADS * EIGHT;
    for (i64 first = ((i64)blockIdx.x * THREADS + threadIdx.x) * EIGHT; first < k; first += step) {
        u32 count = up_to_eight(k - first);
        Eight<S> group = load_eight(symbols + first, count);
        for (u32 j = 0; j < EIGHT; j++) {
            if (j >= count) break;
            seen |= group.at[j];
            atomicAdd(own + (group.at[j] & mask), 1u);
        }
    }
    if (seen >> bits) set_fault(faults, FAULT_WIDE_SYMBOL);
    if (!copies) return;
    __syncthreads();
    for (u32 symbol = threadIdx.x; symbol < size; symbol += THREADS) {
        u32 all = 0;
        for (u32 copy = 0; copy < copies; copy++) all += shared[copy * size + symbol];
        if (all) atomicAdd(counts + symbol, all);
    }
}

// The symbols of this thread in a round over its block's stream, and how many they are.
template <class S>
__device__ __forceinline__ Eight<S> symbols_of_round(const S* symbols, i64 k, u32 round, u32* count) {
    i64 first = (i64)blockIdx.x * STREAM + (round * THREADS + threadIdx.x) * EIGHT;
    *count = up_to_eight(k - first);
    return load_eight(symbols + first, *count);
}

// How many bytes each stream takes; a block a stream. entries: code << 6 | length of 2^bits symbols.
template <class S>
__device__ __forceinline__ void measure(const S* symbols, i64 k, u32 bits, const u32* entries, u32* sizes) {
    u32 mask = (1u << bits) - 1, length = 0, all;
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 count;
        Eight<S> group = symbols_of_round(symbols, k, round, &count);
        for (u32 j = 0; j < EIGHT; j++)
            if (j < count) length += entries[group.at[j] & mask] & LENGTH_MASK;
    }
    block_scan(length, &all);
    if (threadIdx.x == 0) sizes[blockIdx.x] = (all + 7) >> 3;
}

// Writes the streams, and the table of their lengths; a block a stream. Streams of other symbols than those
// that were measured are left out, not written to another length.
template <class S>
__device__ __forceinline__ void write_streams(const S* symbols, i64 k, u32 bits, const u32* entries,
                                              const i64* starts, u8* table, u8* out) {
    __shared__ u32 words[SPAN_WORDS(STREAM * LONGEST / 8 + 3)];
    u32 mask = (1u << bits) - 1, size = (u32)(starts[blockIdx.x + 1] - starts[blockIdx.x]);
    u8* to = out + starts[blockIdx.x];
    clear(words, SPAN_WORDS(STREAM * LONGEST / 8 + 3));
    u32 begin = 8 * skew_of(to), bit = begin;
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 count, codes[EIGHT], length = 0, all;
        Eight<S> group = symbols_of_round(symbols, k, round, &count);
        for (u32 j = 0; j < EIGHT; j++) {
            codes[j] = j < count ? entries[group.at[j] & mask] : 0;
            length += codes[j] & LENGTH_MASK;
        }
        u32 at = bit + block_scan(length, &all) - length;  // also lets all threads see the cleared words
        bit += all;
        u32 used = at & 31, word = at >> 5;
        u64 waiting = 0;
        for (u32 j = 0; j < EIGHT; j++) {
            waiting |= (u64)(codes[j] >> LENGTH_BITS) << used;
            used += codes[j] & LENGTH_MASK;
            if (used >= 32) {
                atomicOr(words + word++, (u32)waiting);
                waiting >>= 32;
                used -= 32;
            }
        }
        if ((u32)waiting) atomicOr(words + word, (u32)waiting);
    }
    __syncthreads();
    if ((bit - begin + 7) >> 3 != size) return;
    store_span(words, to, size);
    if (threadIdx.x == 0) store_bytes(table + 2 * (i64)blockIdx.x, size, 2);
}

// What the section of one symbol alone means: its code has no bits.
template <class S> __device__ __forceinline__ void repeat(S symbol, i64 k, S* symbols) {
    i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * EIGHT;
    Eight<S> group;
    for (u32 j = 0; j < EIGHT; j++) group.at[j] = symbol;
    store_eight(group, symbols + first, up_to_eight(k - first));
}

// A part of a stream: the codes that begin in it.
struct Part {
    u32 begin;  // where the first of them begins
    u32 stop;   // where the next part does
    u32 end;    // behind the last of them
    u32 codes;  // how many they are
};

// Follows the codes of a part. words: the stream from number `first` on, zeros behind it.
template <class Entry>
__device__ __forceinline__ void follow(Part* part, const u32* words, u32 first, const Entry* table, u32 mask) {
    part->codes = 0;
    for (part->end = part->begin; part->end < part->stop; part->codes++)
        part->end += table[get_bits(words, first + part->end) & mask] & LENGTH_MASK;
}

// Moves each thread's part to where the one before it ends, until none has to be moved. Right are the first
// part, then at least one more each time, mostly many more.
template <class Entry>
__device__ __forceinline__ void synchronize(Part* part, bool there, const u32* words, u32 first, const Entry* table,
                                            u32 mask) {
    __shared__ u32 ends[READERS];
    __shared__ u32 moved;
    follow(part, words, first, table, mask);
    for (;;) {
        ends[threadIdx.x] = part->end;
        if (threadIdx.x == 0) moved = 0;
        __syncthreads();
        u32 begin = threadIdx.x ? ends[threadIdx.x - 1] : 0;
        bool moves = there && begin != part->begin;
        if (moves) moved = 1;
        __syncthreads();
        bool done = !moved;
        __syncthreads();  // all have seen it
        if (done) return;
        if (!moves) continue;
        part->begin = begin;
        follow(part, words, first, table, mask);
    }
}

// Reads the streams; a block of 128 threads a stream. table: [mask + 1] of symbol << 6 | length, any length at
// least `shortest`, which is 1 or more.
template <class S, class Entry>
__device__ __forceinline__ void read_stream(const u8* body, const i64* starts, i64 k, const Entry* table, u32 mask,
                                            u32 shortest, S* symbols, i32* faults) {
    __shared__ u32 words[SPAN_WORDS(STREAM * LONGEST / 8 + 3)];
    __shared__ Eight<S> staged[STREAM / EIGHT];
    i64 left = k - (i64)blockIdx.x * STREAM;
    u32 count = left < STREAM ? (u32)left : STREAM;
    const u8* from = body + starts[blockIdx.x];
    u32 size = (u32)(starts[blockIdx.x + 1] - starts[blockIdx.x]), bits = 8 * size, first = 8 * skew_of(from);
    if (size > (count * LONGEST + 7) / 8) {  // more than any codes take
        if (threadIdx.x == 0) set_fault(faults, FAULT_STREAM);
        return;
    }
    load_span(from, size, words);
    __syncthreads();

    // Codes of one length are found at once where parts are multiples of it.
    u32 length = ((bits + READERS - 1) / READERS + shortest - 1) / shortest * shortest;
    Part part;
    part.begin = threadIdx.x * length;
    part.stop = min(part.begin + length, bits);
    synchronize(&part, part.begin < bits, words, first, table, mask);
    u32 all, i = block_scan(part.codes, &all) - part.codes;
    bool good = all >= count;
    for (u32 at = part.begin; at < part.stop && i < count;) {
        u32 entry = table[get_bits(words, first + at) & mask];
        ((S*)staged)[i++] = (S)(entry >> LENGTH_BITS);
        at += entry & LENGTH_MASK;
        // Behind the last code: less than a byte, of zeros; and the zeros behind the stream.
        if (i == count) good = (at + 7) >> 3 == size && get_bits(words, first + at) == 0;
    }
    if (!good) set_fault(faults, FAULT_STREAM);
    __syncthreads();
    S* own = symbols + (i64)blockIdx.x * STREAM;
    for (u32 group = threadIdx.x; group * EIGHT < count; group += READERS)
        store_eight(staged[group], own + group * EIGHT, min(count - group * EIGHT, EIGHT));
}

// Where streams begin behind their table, counted from there; one block. `total` receives where they end.
extern "C" __global__ void __launch_bounds__(TABLE_THREADS)
    find_starts(const u32* sizes, i64 streams, i64* starts, i64* total) {
    i64 end = write_starts(streams, 0, starts, [=](i64 s) { return (i64)sizes[s]; });
    if (threadIdx.x == 0) *total = end;
}

#define KERNELS(name, S, Entry)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        histogram_##name(const S* symbols, i64 k, i64 bits, u32* counts, i32* faults) {                     \
        histogram(symbols, k, (u32)bits, counts, faults);                                                   \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        measure_##name(const S* symbols, i64 k, i64 bits, const u32* entries, u32* sizes) {                 \
        measure(symbols, k, (u32)bits, entries, sizes);                                                     \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        write_##name(const S* symbols, i64 k, i64 bits, const u32* entries, const i64* starts, u8* table,   \
                     u8* out) {                                                                             \
        write_streams(symbols, k, (u32)bits, entries, starts, table, out);                                  \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(READERS)                                                   \
        read_##name(const u8* body, const i64* starts, i64 k, const Entry* table, i64 mask, i64 shortest,   \
                    S* symbols, i32* faults) {                                                              \
        read_stream(body, starts, k, table, (u32)mask, (u32)shortest, symbols, faults);                     \
    }                                                                                                       \
    extern "C" __global__ void repeat_##name(i64 symbol, i64 k, S* symbols) {                               \
        repeat((S)symbol, k, symbols);                                                                      \
    }

KERNELS(uint8, u8, u16)
KERNELS(uint16, u16, u32)
