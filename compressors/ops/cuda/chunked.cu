// The k largest magnitudes of every chunk, zeros too where it must be; of equal ones those of the lowest indices.
//
// A block of threads takes a chunk, and holds the keys of 4096 elements in shared memory; larger chunks are read again,
// piece by piece, for each of the three histograms that find the cut. What is sent is found in index order, each thread
// looking at 16 neighbours; the residual is written with a warp's elements side by side.
#include "look_back.cuh"
#include "parts.cuh"
#include "radix_select.cuh"

#define SENT 0x80000000u        // joined to a key

struct Chunk {
    Part part;
    i64 from;  // its first element in the parameter
    u32 count;
    u32* keys;  // of a piece, in shared memory

    INLINE float sum(u32 j) const { return part.sum_at(from + j); }
    INLINE u32 piece_end(u32 first) const { return min(count, first + TILE); }
    INLINE bool one_piece() const { return count <= TILE; }

    // Reads a piece's keys; returns how many elements of this thread are not finite.
    INLINE u32 read_keys(u32 first) const {
        u32 broken = 0;
        __syncthreads();
        for (u32 j = first + threadIdx.x; j < piece_end(first); j += blockDim.x) {
            float a = sum(j);
            keys[j - first] = is_finite(a) ? magnitude_bits(a) : NOT_FINITE;
            broken += !is_finite(a);
        }
        __syncthreads();
        return broken;
    }
};

// The cut, and how many of the elements that equal it are sent. Returns how many are sent in all.
INLINE u32 find_cut(const Chunk& chunk, u32 keep, Search* search, i64* nonfinite) {
    u32 sent = 0;
    for (u32 level = 0; level < LEVELS; level++)
        select_level(level, search, [&](const Counter& counter) {
            u32 broken = 0, all_broken;
            for (u32 first = 0; first < chunk.count; first += TILE) {
                if (level == 0 || !chunk.one_piece()) broken += chunk.read_keys(first);
                for (u32 j = first + threadIdx.x; j < chunk.piece_end(first); j += blockDim.x)
                    counter.count(chunk.keys[j - first]);
            }
            if (level) return;
            block_scan(broken, &all_broken);
            *nonfinite = broken;
            sent = min(keep, chunk.count - all_broken);
            if (threadIdx.x == 0) search->rank = sent;
        });
    return sent;
}

// Writes what a piece sends, and marks its keys. `greater` and `equal`: how many elements of this chunk before the
// piece exceed or equal the cut; moves them on. `at`: where the chunk's output begins.
INLINE void send(const Chunk& chunk, u32 first, Search search, u32* greater, u32* equal, u32* words, float* values,
                 i64 at) {
    u32 begin = first + threadIdx.x * ITEMS, end = min(begin + ITEMS, chunk.piece_end(first));
    u64 own = 0, all;  // of elements that equal the cut (high) and exceed it (low)
    u32 cut = search.rank ? search.prefix : NOT_FINITE - 1;
    for (u32 j = begin; j < end; j++) {
        u32 key = chunk.keys[j - first];
        if (key != NOT_FINITE) own += (u64)(key == cut) << 32 | (key > cut);
    }
    u64 before = block_scan(own, &all) - own;
    u32 above = *greater + (u32)before, ties = *equal + (u32)(before >> 32);
    for (u32 j = begin; j < end; j++) {
        u32 key = chunk.keys[j - first];
        if (key == NOT_FINITE || key < cut) continue;
        if (key > cut || ties < search.rank) {
            float a = chunk.sum(j);
            i64 place = at + above + min(ties, search.rank);
            words[place] = (u32)(chunk.part.base + chunk.from + j) << 1 | (a < 0.0f);
            values[place] = a + 0.0f;  // -0.0 + 0.0 is 0.0: sign and word agree
            chunk.keys[j - first] = key | SENT;
        }
        above += key > cut;
        ties += key == cut;
    }
    *greater += (u32)all;
    *equal += (u32)(all >> 32);
    __syncthreads();
}

// Writes what a piece keeps; returns the sum of squares.
INLINE double keep_rest(const Chunk& chunk, u32 first) {
    double squares = 0;
    float* residual = chunk.part.residual + chunk.from;
    for (u32 j = first + threadIdx.x; j < chunk.piece_end(first); j += blockDim.x) {
        u32 key = chunk.keys[j - first];
        float kept = key == NOT_FINITE ? residual[j] : key & SENT ? 0.0f : chunk.sum(j);
        residual[j] = kept;
        squares += (double)kept * (double)kept;
    }
    return squares;
}

// states: u64 [blocks + 1], zeros.
OVER_TILES chunked(GRID, i64 length, i64 keep, u32* words, float* values, u64* states, REPORTS) {
    __shared__ u32 keys[TILE];
    __shared__ Search search;
    __shared__ i64 begin;
    i64 ticket = take_ticket(states), nonfinite = 0;
    u32 number = owners[ticket];
    Chunk chunk = {parts[number], 0, 0, keys};
    chunk.from = (ticket - chunk.part.first_tile) * length;
    chunk.count = (u32)max(min(chunk.part.n - chunk.from, length), 0ll);
    u32 sent = find_cut(chunk, (u32)keep, &search, &nonfinite);
    if (threadIdx.x < 32) {
        i64 before = (i64)look_back(states, ticket, sent);
        if (threadIdx.x == 0) {
            begin = before;
            if (ticket + 1 == gridDim.x || owners[ticket + 1] != number) reports[number].end = before + sent;
        }
    }
    __syncthreads();
    double squares = 0;
    u32 greater = 0, equal = 0;
    for (u32 first = 0; first < chunk.count; first += TILE) {
        if (!chunk.one_piece()) chunk.read_keys(first);
        send(chunk, first, search, &greater, &equal, words, values, begin);
        squares += keep_rest(chunk, first);
    }
    report_tile(reports + number, squares_of + ticket, squares, nonfinite);
}
