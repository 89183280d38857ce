// Golomb-Rice coded positions: ops/cpu/golomb_rice.py says what the bytes mean.
//
// A block of threads writes or reads one block of words, of which there are 2^10 to 2^14: enough blocks for
// a GPU from a million words on. Within it all is parallel.
//   Writing: 8 words a thread. Their fields are whole bytes; where their quotients' bits stand is a prefix
//   sum of how long those are. Both are put together in shared memory. Runs of zeros may be as long as
//   64 KiB, so that quotients are written through a window, over and over.
//   Reading: 32 bits of the quotients a thread. Counting their ones says, by a prefix sum, which words they
//   are the ends of; the sum of these words' fields, by another, where positions stand without quotients.
#include "bits.cuh"
#include "faults.cuh"
#include "starts.cuh"

#define THREADS 256
#define TABLE_THREADS 1024
#define MOST_BITS 30
#define LEAST_LOG2 4
#define MOST_LOG2 14
#define TABLE_ENTRY 6
#define WINDOW_BITS 32768
#define WINDOW_BYTES (WINDOW_BITS / 8)

// The largest mean distance of positions that each parameter is for, times 2^16: see golomb_rice_blocks.py.
__constant__ i64 LIMITS[MOST_BITS + 1] = {
    171575, 306459, 578182, 1122612, 2211964, 4390914,
    8748937, 17465045, 34897291, 69761799, 139490823, 278948874,
    557864978, 1115697188, 2231361609, 4462690450, 8925348132, 17850663497,
    35701294227, 71402555687, 142805078607, 285610124446, 571220216124, 1142440399481,
    2284880766195, 4569761499622, 9139522966476, 18279045900185, 36558091767602, 73116183502436,
    146232366972105};

// A block of words, and its code.
struct Block {
    i64 first;   // of the words
    u32 count;   // words
    i64 base;    // the position before the first, -1 if there is none
    i64 last;    // the last position
    u32 b;       // the parameter
};

__device__ __forceinline__ u32 parameter(i64 span, i64 count) {
    u32 b = 0;
    while (b < MOST_BITS && span << 16 > count * LIMITS[b]) b++;
    return b;
}

__device__ __forceinline__ u32 words_in_block(i64 s, i64 k, i64 log2) {
    i64 left = k - (s << log2);
    return left < (i64)1 << log2 ? (u32)left : 1u << log2;
}

__device__ __forceinline__ u32 fields_bytes(u32 count, u32 width) { return (count * width + 7) >> 3; }

__device__ __forceinline__ Block block_of_words(const u32* words, i64 k, i64 log2) {
    Block block;
    block.first = (i64)blockIdx.x << log2;
    block.count = words_in_block(blockIdx.x, k, log2);
    block.base = block.first ? (i64)(words[block.first - 1] >> 1) : -1;
    block.last = words[block.first + block.count - 1] >> 1;
    block.b = parameter(block.last - block.base, block.count);
    return block;
}

// Twice the number of positions skipped between two words; exact in 32 bits, from base -1 on too.
__device__ __forceinline__ u32 twice_gap(u32 word, u32 before) { return (word | 1) - (before | 1) - 2; }

// How many bytes each block takes; whether positions ascend.
extern "C" __global__ void __launch_bounds__(THREADS)
    measure(const u32* words, i64 k, i64 is_signed, i64 log2, u32* sizes, i32* faults) {
    Block block = block_of_words(words, k, log2);
    const u32* own = words + block.first;
    u32 quotients = 0, disorder = 0;
    for (u32 i = threadIdx.x; i < block.count; i += blockDim.x) {
        u32 word = own[i], before = block.first + i ? own[(i64)i - 1] : (u32)-2;
        quotients += twice_gap(word, before) >> (block.b + 1);
        disorder |= block.first + i && (word >> 1) <= (before >> 1);
    }
    if (disorder) set_fault(faults, FAULT_RICE_ORDER);
    u32 all;
    block_scan(quotients, &all);
    if (threadIdx.x == 0)
        sizes[blockIdx.x] = fields_bytes(block.count, block.b + is_signed) + ((all + block.count + 7) >> 3);
}

// Where blocks begin; one block of threads. `total` receives where they end.
extern "C" __global__ void __launch_bounds__(TABLE_THREADS)
    find_starts(const u32* sizes, i64 blocks, i64* starts, i64* total) {
    i64 end = write_starts(blocks, 1 + TABLE_ENTRY * blocks, starts, [=](i64 s) { return (i64)sizes[s]; });
    if (threadIdx.x == 0) *total = end;
}

// A part of a stream of bits on its way to global memory.
struct Window {
    u32* words;  // shared, WINDOW_BITS
    u32 origin;  // its first bit, counted from the aligned word in which the stream begins
    u8* to;
    u32 left;    // bytes of the stream from `to` on
};

__device__ __forceinline__ void flush(Window* window) {
    u32 bytes = min(window->left, (u32)WINDOW_BYTES - skew_of(window->to));
    store_span(window->words, window->to, bytes);
    window->to += bytes;
    window->left -= bytes;
    window->origin += WINDOW_BITS;
    __syncthreads();
    clear(window->words, WINDOW_BITS / 32);
    __syncthreads();
}

// Sets the ones that end quotients, the first of which begins at `bit`, as far as they lie in the window.
__device__ __forceinline__ void set_ones(Window* window, const u32* quotients, u32 count, u32 bit) {
    u32 at = 0, ones = 0;
    for (u32 j = 0; j < EIGHT; j++) {
        if (j >= count) break;
        bit += quotients[j];
        if (bit - window->origin < WINDOW_BITS) {
            u32 now = (bit - window->origin) >> 5;
            if (now != at && ones) {
                atomicOr(window->words + at, ones);
                ones = 0;
            }
            at = now;
            ones |= 1u << (bit & 31);
        }
        bit++;
    }
    if (ones) atomicOr(window->words + at, ones);
}

// The section's first byte, and what the table says of a block.
__device__ __forceinline__ void write_entry(const Block& block, i64 blocks, i64 log2, u32 size, u8* out) {
    if (blockIdx.x == 0) out[0] = (u8)log2;
    store_bytes(out + 1 + 4 * (i64)blockIdx.x, (u32)block.last, 4);
    store_bytes(out + 1 + 4 * blocks + 2 * (i64)blockIdx.x, size, 2);
}

// Writes the section: a block of up to 256 threads for each block of words, which ascend.
extern "C" __global__ void __launch_bounds__(THREADS)
    write_section(const u32* words, i64 k, i64 is_signed, i64 log2, const i64* starts, u8* out) {
    __shared__ u32 fields[SPAN_WORDS(THREADS * (MOST_BITS + 1) + 3)];
    __shared__ u32 window_words[WINDOW_BITS / 32];
    Block block = block_of_words(words, k, log2);
    u32 width = block.b + (u32)is_signed, drop = !is_signed, mask = (2u << block.b) - 2;
    u8* begin = out + starts[blockIdx.x];
    u32 size = (u32)(starts[blockIdx.x + 1] - starts[blockIdx.x]), all_fields = fields_bytes(block.count, width);
    if (threadIdx.x == 0) write_entry(block, gridDim.x, log2, size, out);

    Window window = {window_words, 0, begin + all_fields, size - all_fields};
    u32 bit = 8 * skew_of(window.to);
    clear(window_words, WINDOW_BITS / 32);
    for (u32 tile = 0; tile < block.count; tile += blockDim.x * EIGHT) {
        i64 first = tile + threadIdx.x * EIGHT;
        u32 count = up_to_eight(block.count - first);
        const u32* own = words + block.first + first;
        Eight<u32> eight = load_eight(own, count);
        u32 before = count && block.first + first ? own[-1] : (u32)-2;
        u8* tile_fields = begin + tile / 8 * width;
        u8* staged = (u8*)fields + skew_of(tile_fields) + threadIdx.x * width;
        u32 quotients[EIGHT], length = 0, used = 0;
        u64 waiting = 0;
        for (u32 j = 0; j < EIGHT; j++) {
            u32 gap = twice_gap(eight.at[j], before), field = ((gap & mask) | (eight.at[j] & 1)) >> drop;
            before = eight.at[j];
            quotients[j] = gap >> (block.b + 1);
            length += j < count ? quotients[j] + 1 : 0;
            waiting |= (u64)(j < count ? field : 0) << used;
            for (used += width; used >= 8; used -= 8) {
                *staged++ = (u8)waiting;
                waiting >>= 8;
            }
        }
        u32 all, mine = bit + block_scan(length, &all) - length;
        store_span(fields, tile_fields, fields_bytes(min(blockDim.x * EIGHT, block.count - tile), width));
        bit += all;
        set_ones(&window, quotients, count, mine);
        __syncthreads();
        while (bit >= window.origin + WINDOW_BITS) {
            flush(&window);
            set_ones(&window, quotients, count, mine);
            __syncthreads();
        }
    }
    store_span(window_words, window.to, window.left);
}

// Whether a block's last position leaves room for its words below n, and its size for its fields and a bit
// for each word.
__device__ __forceinline__ bool entry_fits(i64 base, i64 last, u32 size, u32 count, i64 n, u32 is_signed) {
    if (last >= n || last - base < count) return false;
    return size >= fields_bytes(count, parameter(last - base, count) + is_signed) + ((count + 7) >> 3);
}

__device__ __forceinline__ i64 last_position(const u8* body, i64 s) {
    return s < 0 ? -1 : (i64)load_bytes(body + 1 + 4 * s, 4);
}

// Checks a section's table and finds where its blocks begin; one block of threads. starts has room for
// as many blocks as body has table entries. report: {faults, where the section ends, log2 of a block's words}.
extern "C" __global__ void __launch_bounds__(TABLE_THREADS)
    read_table(const u8* body, i64 bytes, i64 n, i64 k, i64 is_signed, i64* starts, i64* report) {
    i64 log2 = body[0], end = 0;
    bool good = log2 >= LEAST_LOG2 && log2 <= MOST_LOG2;
    if (good) {
        i64 blocks = (k + (1 << log2) - 1) >> log2, begin = 1 + TABLE_ENTRY * blocks;
        good = bytes >= begin;
        if (good) {
            bool fits = true;
            end = write_starts(blocks, begin, starts, [&](i64 s) {
                u32 size = load_bytes(body + 1 + 4 * blocks + 2 * s, 2), count = words_in_block(s, k, log2);
                fits &= entry_fits(last_position(body, s - 1), last_position(body, s), size, count, n,
                                   (u32)is_signed);
                return (i64)size;
            });
            if (!fits) set_fault((i32*)report, FAULT_RICE_TABLE);
            good = end <= bytes;
        }
    }
    if (threadIdx.x != 0) return;
    if (!good) set_fault((i32*)report, FAULT_RICE_TABLE);
    report[1] = end;
    report[2] = log2;
}

// Reads a section whose table was found good: a block of up to 256 threads for each block of words.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_section(const u8* body, i64 k, i64 is_signed, i64 log2, const i64* starts, u32* words, i32* faults) {
    __shared__ u32 ones_words[SPAN_WORDS(THREADS * 4 + 3)];
    __shared__ u32 field_words[SPAN_WORDS(THREADS * 4 * (MOST_BITS + 1) + 4)];
    i64 base = last_position(body, (i64)blockIdx.x - 1), last = last_position(body, blockIdx.x);
    u32 count = words_in_block(blockIdx.x, k, log2), b = parameter(last - base, count);
    u32 width = b + (u32)is_signed, lift = !is_signed, mask = (1u << width) - 1;
    const u8* fields = body + starts[blockIdx.x];
    u32 all_fields = fields_bytes(count, width), padding = count * width & 7;
    const u8* quotients = fields + all_fields;
    u32 bytes = (u32)(starts[blockIdx.x + 1] - starts[blockIdx.x]) - all_fields;
    u32* own = words + ((i64)blockIdx.x << log2);
    bool good = threadIdx.x || !padding || fields[all_fields - 1] >> padding == 0;

    u64 twice_before = 2 * (u64)base;  // twice the position without quotients; -1 wraps around
    u32 done = 0;
    for (u32 from = 0; from < bytes; from += blockDim.x * 4) {
        u32 part = min(bytes - from, blockDim.x * 4);
        __syncthreads();
        load_span(quotients + from, part, ones_words);
        __syncthreads();
        u32 ones = 0;
        if (threadIdx.x * 4 < part) ones = get_bits(ones_words, 8 * skew_of(quotients) + threadIdx.x * 32);
        u32 all, own_count = __popc(ones), i = block_scan(own_count, &all) - own_count;
        if (done + all > count) break;
        const u8* part_fields = fields + (done * width >> 3);
        u32 bit = done * width & 7;
        load_span(part_fields, (bit + all * width + 7) >> 3, field_words);
        bit += 8 * skew_of(part_fields) + i * width;
        __syncthreads();
        u64 sum = 0, sum_of_all;
        for (u32 j = 0; j < own_count; j++) {
            u32 field = (get_bits(field_words, bit + j * width) & mask) << lift;
            sum += (u64)(field & ~1u) + 2;
        }
        u64 twice = twice_before + block_scan(sum, &sum_of_all) - sum;
        for (i += done; ones; i++, ones &= ones - 1, bit += width) {
            u32 field = (get_bits(field_words, bit) & mask) << lift;
            twice += (u64)(field & ~1u) + 2;
            u32 end = 8 * from + threadIdx.x * 32 + __ffs((int)ones);  // of the quotient, behind its one
            u64 whole = twice + ((u64)(end - 1 - i) << (b + 1));
            own[i] = (u32)whole | (field & 1);
            if (i == count - 1) good &= whole == 2 * (u64)last && (end + 7) >> 3 == bytes;
        }
        done += all;
        twice_before += sum_of_all;
        if (from + part == bytes && done == count) {
            if (!good) set_fault(faults, FAULT_RICE_BLOCK);
            return;
        }
    }
    set_fault(faults, FAULT_RICE_BLOCK);  // more ones than words, or fewer
}
