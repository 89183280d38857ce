// The k largest magnitudes of a whole parameter, exactly, and of equal ones those of the lowest indices. The
// gradient is taken up while magnitudes are counted by their highest bits; two more readings find the
// k-th magnitude, and a last one compacts. Nothing is sent where a sum is not finite.
//
// Readings that count go over tiles of 4096 elements, 16 a thread, with fewer blocks than tiles, since a
// block's histogram costs the same whatever it counted.
#include "gradients.cuh"
#include "look_back.cuh"
#include "radix_select.cuh"
#include "report.cuh"

#define THREADS 256
#define LOADS 4
#define TILE (THREADS * LOADS * 4)
#define SMALLEST_TAU (1u << 23)    // 2^-126, as bits
#define LARGEST_TAU (246u << 23)   // 2^119
#define NOTHING 0xffffffffu        // a cut that no key reaches

__device__ __forceinline__ u32 key_of(float a) { return __float_as_uint(a) & 0x7fffffffu; }

// Where this thread's elements of a tile begin: every 128 from there come four. Tiles begin where the
// residual is aligned to 16 bytes, which may be up to three elements before its first.
__device__ __forceinline__ i64 first_of(const float* residual, i64 tile) {
    i64 shift = (i64)((u64)residual >> 2 & 3);
    return tile * TILE - shift + (threadIdx.x >> 5) * (LOADS * 128) + (threadIdx.x & 31) * 4;
}

struct Counter {
    u32* counts;  // of this block
    u32 level, prefix;
    __device__ __forceinline__ void clear() {
        for (u32 i = threadIdx.x; i < MOST_BINS; i += blockDim.x) counts[i] = 0;
        __syncthreads();
    }
    __device__ __forceinline__ void count(float a) {
        u32 key = key_of(a), bin = bin_at(key, level, prefix);
        if (key >= SMALLEST_TAU && bin < MOST_BINS) atomicAdd(&counts[bin], 1u);
    }
    __device__ __forceinline__ void add_to(u32* histogram) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < MOST_BINS; i += blockDim.x)
            if (counts[i]) atomicAdd(&histogram[i], counts[i]);
    }
};

// histogram: u32 [2048], zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
    take_up(float* residual, const float* gradient, i64 n, i64 tiles, u32* histogram, Report* reports) {
    __shared__ u32 counts[MOST_BINS];
    Counter counter = {counts, 0, 0};
    counter.clear();
    i64 nonfinite = 0;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        i64 first = first_of(residual, tile);
        float a[LOADS][4], g[LOADS][4];
        load_fours<LOADS>((const float*)residual, first, 128, n, a);
        load_fours<LOADS>(gradient, first, 128, n, g);
        for (u32 k = 0; k < LOADS; k++) {
            for (u32 c = 0; c < 4; c++) {
                float sum = a[k][c] + g[k][c];
                if (!is_finite(sum)) {
                    nonfinite++;
                    continue;
                }
                a[k][c] = sum;
                counter.count(sum);  // not the zeros outside the array, which are too small
            }
            store_four(residual, first + k * 128, n, a[k]);
        }
    }
    counter.add_to(histogram);
    add_to_report(reports + 1, 0, nonfinite);
}

// histogram: u32 [2048] of this level, zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
    count(const float* residual, i64 n, i64 tiles, i64 level, const Search* search, u32* histogram) {
    __shared__ u32 counts[MOST_BINS];
    if (search->rank == 0) return;
    Counter counter = {counts, (u32)level, search->prefix};
    counter.clear();
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float a[LOADS][4];
        load_fours<LOADS>(residual, first_of(residual, tile), 128, n, a);
        for (u32 k = 0; k < LOADS; k++)
            for (u32 c = 0; c < 4; c++) counter.count(a[k][c]);
    }
    counter.add_to(histogram);
}

// One block. At the first level it sets the rank: k, or fewer where fewer reach the smallest tau.
extern "C" __global__ void narrow_down(const u32* histogram, i64 level, i64 k, Search* search,
                                       const Report* reports) {
    if (level == 0) {
        u32 own = 0, all;
        for (u32 i = threadIdx.x; i < MOST_BINS; i += blockDim.x) own += histogram[i];
        block_scan(own, &all);
        if (threadIdx.x == 0) search->rank = reports[1].nonfinite ? 0 : (u32)min(k, (i64)all);
        __syncthreads();
    }
    narrow(histogram, (u32)level, search);
}

// Adds eight bytes of two kinds: how many elements of each load exceed the cut (low), or equal it (high).
__device__ __forceinline__ u64 sum_of_kinds(u64 bytes) {
    u64 pairs = (bytes & 0x00ff00ff00ff00ffull) + (bytes >> 8 & 0x00ff00ff00ff00ffull);
    u64 sums = (pairs & 0x0000ffff0000ffffull) + (pairs >> 16 & 0x0000ffff0000ffffull);
    return (sums & 0xffffffffull) | (sums >> 32) << 31;
}
#define KIND_BITS 31
#define KIND (0x7fffffffull)

// Sends what exceeds the cut, and the first of what equals it. states: u64 [blocks + 1], zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
    send_top(float* residual, i64 n, i64 base, const Search* search, u32* words, float* values, u64* states,
             Report* reports) {
    __shared__ u64 warp_counts[THREADS / 32];
    __shared__ u64 tile_before;
    i64 tile = take_ticket(states), first = first_of(residual, tile);
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 ties = search->rank, cut = ties ? search->prefix : NOTHING;
    float a[LOADS][4];
    load_fours<LOADS>((const float*)residual, first, 128, n, a);
    u64 counts = 0;
    for (u32 k = 0; k < LOADS; k++)
        for (u32 c = 0; c < 4; c++) {
            u32 key = key_of(a[k][c]);
            counts += (u64)(key > cut) << (8 * k) | (u64)(key == cut) << (8 * k + 32);
        }
    u64 scanned = warp_scan(counts), totals = __shfl_sync(FULL_WARP, scanned, 31);
    if (lane == 0) warp_counts[warp] = sum_of_kinds(totals);
    __syncthreads();
    u64 in_tile = 0, begin = 0;  // of each kind, 31 bits
    for (u32 w = 0; w < THREADS / 32; w++) {
        if (w == warp) begin = in_tile;
        in_tile += warp_counts[w];
    }
    if (warp == 0) {
        u64 before = look_back(states, tile, in_tile);
        if (lane == 0) {
            tile_before = before;
            if (tile == gridDim.x - 1) {
                u64 all = before + in_tile;
                reports[1].sent = reports[0].sent + (i64)((all & KIND) + min(all >> KIND_BITS, (u64)ties));
                reports[1].tau = ties ? min(cut, LARGEST_TAU) : SMALLEST_TAU;
            }
        }
    }
    __syncthreads();
    begin += tile_before;

    double squares = 0;
    for (u32 k = 0; k < LOADS; k++) {
        u64 before = (scanned - counts) >> (8 * k);
        u64 greater = (begin & KIND) + (before & 255), equal = (begin >> KIND_BITS) + (before >> 32 & 255);
        for (u32 c = 0; c < 4; c++) {
            float value = a[k][c];
            u32 key = key_of(value);
            if (key > cut || (key == cut && equal < ties)) {
                i64 i = first + k * 128 + c, at = reports[0].sent + (i64)(greater + min(equal, (u64)ties));
                words[at] = (u32)(base + i) << 1 | (value < 0.0f);
                values[at] = value;
                residual[i] = 0.0f;
            } else {
                squares += (double)value * (double)value;
            }
            greater += key > cut;
            equal += key == cut;
        }
        begin += (totals >> (8 * k) & 255) + ((totals >> (8 * k + 32) & 255) << KIND_BITS);
    }
    add_to_report(reports + 1, squares, 0);
}
