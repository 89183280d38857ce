// Positions that are not Golomb-Rice coded: words as they are (wire/codecs/packed32.py), a bit an element
// (wire/codecs/bitmap.py) and indices within chunks (wire/codecs/chunked.py).
//
// A bitmap is written a tile of 2^15 bits (4 KiB) a block, put together in shared memory from the words that
// a binary search finds in it. It is read 64 bits a thread; where a block's words begin is found by look-back.
#include "look_back.cuh"
#include "packing.cuh"

#define THREADS 256
#define WRITTEN_TILE 32768
#define READ_TILE (THREADS * 64)

__device__ __forceinline__ u32 word_at(const u8* body, i64 i) {
    const u8* at = body + 4 * i;
    return skew_of(at) ? load_bytes(at, 4) : *(const u32*)at;
}

// Reads k words; whether positions ascend and lie below n. A thread a word.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_words(const u8* body, i64 n, i64 k, u32* words, i32* faults) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    u32 word = word_at(body, i);
    if ((i && word >> 1 <= word_at(body, i - 1) >> 1) || (i64)(word >> 1) >= n) set_fault(faults, FAULT_ORDER);
    words[i] = word;
}

// The number of the first word whose position is not below `position`, of k that ascend.
__device__ __forceinline__ i64 first_word(const u32* words, i64 k, i64 position) {
    i64 low = 0, high = k;
    while (low < high) {
        i64 middle = (low + high) >> 1;
        if ((i64)(words[middle] >> 1) < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(THREADS) write_bitmap(const u32* words, i64 k, i64 n, u8* out) {
    __shared__ u32 bits[SPAN_WORDS(WRITTEN_TILE / 8 + 3)];
    __shared__ i64 ends[2];
    i64 first = (i64)blockIdx.x * WRITTEN_TILE;
    u32 count = n - first < WRITTEN_TILE ? (u32)(n - first) : WRITTEN_TILE;
    u8* to = out + first / 8;
    clear(bits, SPAN_WORDS(WRITTEN_TILE / 8 + 3));
    if (threadIdx.x < 2) ends[threadIdx.x] = first_word(words, k, first + threadIdx.x * count);
    __syncthreads();
    for (i64 i = ends[0] + threadIdx.x; i < ends[1]; i += THREADS) {
        u32 bit = (words[i] >> 1) - (u32)first;
        if (bit < count) put_bits(bits, 8 * skew_of(to) + bit, 1);
    }
    __syncthreads();
    store_span(bits, to, (count + 7) >> 3);
}

// Packs signs; a thread eight words.
extern "C" __global__ void __launch_bounds__(THREADS) write_signs(const u32* words, i64 k, u8* out) {
    i64 first = ((i64)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    if (first >= k) return;
    Eight<u32> eight = load_eight(words + first, up_to_eight(k - first));
    u32 signs = 0;
    for (u32 j = 0; j < EIGHT; j++) signs |= (eight.at[j] & 1) << j;
    out[first / 8] = (u8)signs;
}

__device__ __forceinline__ u32 sign_at(const u8* signs, i64 i) { return signs[i >> 3] >> (i & 7) & 1; }

// Writes the words of the bits that are set, as far as they fit k, and checks that they are k. The signs
// are read where is_signed is 1. states: u64 [blocks + 1], zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_bitmap(const u8* body, const u8* signs, i64 n, i64 k, i64 is_signed, u32* words, u64* states,
                i32* faults) {
    __shared__ u32 bits[SPAN_WORDS(READ_TILE / 8 + 3)];
    __shared__ i64 tile_begin;
    i64 tile = take_ticket(states), first = tile * READ_TILE, bytes = (n + 7) >> 3;
    const u8* from = body + first / 8;
    u32 count = bytes - first / 8 < READ_TILE / 8 ? (u32)(bytes - first / 8) : READ_TILE / 8;
    load_span(from, count, bits);
    __syncthreads();
    u64 own = 0;
    if (threadIdx.x * 8 < count) {
        u32 at = 8 * skew_of(from) + threadIdx.x * 64;
        own = get_bits(bits, at);
        if (threadIdx.x * 8 + 4 < count) own |= (u64)get_bits(bits, at + 32) << 32;
    }
    u32 ones = __popcll(own), all, before = block_scan(ones, &all) - ones;
    if (threadIdx.x < 32) {
        i64 begin = (i64)look_back(states, tile, all);
        if (threadIdx.x == 0) {
            tile_begin = begin;
            if (tile == gridDim.x - 1 && begin + all != k) set_fault(faults, FAULT_COUNT);
        }
    }
    __syncthreads();
    i64 position = first + threadIdx.x * 64;
    for (i64 i = tile_begin + before; own && i < k; i++, own &= own - 1) {
        i64 found = position + __ffsll((i64)own) - 1;
        if (found >= n) set_fault(faults, FAULT_PADDING);
        words[i] = (u32)found << 1 | (is_signed ? sign_at(signs, i) : 0);
    }
    if (is_signed && tile == 0 && threadIdx.x == 0 && (k & 7) && signs[k >> 3] >> (k & 7))
        set_fault(faults, FAULT_PADDING);
}

// Packs the indices of positions within their chunks, of 2^bits elements from position `base` on.
extern "C" __global__ void __launch_bounds__(PACKING_THREADS)
    write_indices(const u32* words, i64 k, i64 base, i64 bits, u8* out) {
    i64 first = packing_first();
    u32 count = up_to_eight(k - first), mask = (1u << bits) - 1;
    Eight<u32> numbers = load_eight(words + first, count);
    for (u32 j = 0; j < EIGHT; j++)
        numbers.at[j] = j < count ? ((numbers.at[j] >> 1) - (u32)base) & mask : 0;
    pack_eight(numbers, k, (u32)bits, out);
}

// Number i of those packed, read from global memory.
__device__ __forceinline__ u32 packed_number(const u8* body, i64 i, u32 bits) {
    i64 first = i * bits, last = first + bits - 1;
    u32 some = load_bytes(body + (first >> 3), (u32)((last >> 3) - (first >> 3)) + 1);
    return some >> (first & 7) & ((1u << bits) - 1);
}

// Reads k indices, `keep` of each chunk, or all of a last one with fewer elements; whether they ascend
// within their chunks and lie in them.
extern "C" __global__ void __launch_bounds__(PACKING_THREADS)
    read_indices(const u8* body, i64 n, i64 k, i64 keep, i64 bits, i64 base, u32* words, i32* faults) {
    Eight<u32> numbers = unpack_eight(body, k, (u32)bits, faults);
    i64 first = packing_first();
    u32 count = up_to_eight(k - first);
    if (count == 0) return;
    u32 chunk = (u32)first / (u32)keep, in_chunk = (u32)first % (u32)keep;
    u32 before = in_chunk ? packed_number(body, first - 1, (u32)bits) : 0;
    bool good = true;
    for (u32 j = 0; j < EIGHT; j++) {
        if (j >= count) break;
        u32 index = numbers.at[j];
        i64 position = ((i64)chunk << bits) + index;
        good &= position < n && (in_chunk == 0 || before < index);
        before = index;
        numbers.at[j] = (u32)(base + position) << 1;
        if (++in_chunk == keep) {
            in_chunk = 0;
            chunk++;
        }
    }
    if (!good) set_fault(faults, FAULT_CHUNK);
    store_eight(numbers, words + first, count);
}
