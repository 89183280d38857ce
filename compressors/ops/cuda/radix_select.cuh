// The magnitude of a given rank among many, exactly: a histogram of the highest bits of all keys says in which bin it
// lies, one of the next bits of the keys there goes on. Keys are the bits of magnitudes (31), ordered as these are.
#pragma once
#include "common.cuh"

#define LEVELS 3
#define MOST_BINS 2048

INLINE u32 level_shift(u32 level) { return level == 0 ? 20 : level == 1 ? 10 : 0; }
INLINE u32 level_bins(u32 level) { return level == 0 ? 2048 : 1024; }

struct Search {
    u32 prefix;  // the highest bits of the key; after all levels the key itself
    u32 rank;    // from 1, among the keys that begin with these, the largest first; 0: nothing is searched
    u32 sent;    // the rank that is searched, among all
    u32 begin;   // how many words stand before the parameter's
};

// The bin of a key at a level, or MOST_BINS if its higher bits are others than those found so far.
INLINE u32 bin_at(u32 key, u32 level, u32 prefix) {
    u32 high = key >> level_shift(level);
    if (level == 0) return high;
    return high >> 10 == prefix ? high & 1023u : MOST_BINS;
}

#define NOT_FINITE 0xffffffffu  // in place of a key
// Goes one level down, given that level's histogram. All threads of a block must call it, and see the arguments.
INLINE void narrow(const u32* counts, u32 level, Search* search) {
    u32 bins = level_bins(level), share = (bins + blockDim.x - 1) / blockDim.x;
    u32 above = threadIdx.x * share, own = 0, all;  // bins are counted from the highest down
    for (u32 i = above; i < above + share && i < bins; i++) own += counts[bins - 1 - i];
    u32 before = block_scan(own, &all) - own, rank = search->rank;
    __syncthreads();
    if (before >= rank || before + own < rank) return;  // it lies in another thread's bins
    for (u32 i = above;; i++) {
        u32 bin = bins - 1 - i;
        if (before + counts[bin] >= rank) {
            search->prefix = (level ? search->prefix << 10 : 0) | bin;
            search->rank = rank - before;
            return;
        }
        before += counts[bin];
    }
}

// Counts keys by their bins, in shared memory.
struct Counter {
    u32* counts;
    u32 level, prefix;
    INLINE void count(u32 key) const {
        u32 bin = key == NOT_FINITE ? MOST_BINS : bin_at(key, level, prefix);
        if (bin < MOST_BINS) atomicAdd(&counts[bin], 1u);
    }
};

// One level of the search by a block of threads: keys(counter) has each key of this thread counted.
template <class F> INLINE void select_level(u32 level, Search* search, F keys) {
    __shared__ u32 counts[MOST_BINS];
    for (u32 i = threadIdx.x; i < MOST_BINS; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    keys(Counter{counts, level, search->prefix});
    __syncthreads();
    narrow(counts, level, search);
    __syncthreads();
}
