// The k largest magnitudes of whole parameters, exactly, and of equal ones those of the lowest indices. Gradients are
// taken up while magnitudes are counted by their highest bits; two more readings find the k-th magnitudes, and a last
// one compacts. Nothing of a parameter is sent where a sum is not finite. Readings that count have fewer blocks than
// tiles, each with neighbouring ones: a histogram costs the same whatever it counted.
#include "look_back.cuh"
#include "parts.cuh"
#include "radix_select.cuh"

#define SMALLEST_TAU (1u << 23)    // 2^-126, as bits
#define LARGEST_TAU (246u << 23)   // 2^119

// Adds what was counted to a parameter's histogram, and begins anew.
INLINE void move_counts(u32* counts, u32* histogram) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < MOST_BINS; i += blockDim.x) {
        if (histogram && counts[i]) atomicAdd(&histogram[i], counts[i]);
        counts[i] = 0;
    }
    __syncthreads();
}

// histograms: u32 [m, 2048] of this level, zeros. At the first level, gradients are taken up.
OVER_TILES count(GRID, i64 tiles, i64 level, const Search* searches, u32* histograms, Report* reports) {
    __shared__ u32 counts[MOST_BINS];
    Counter counter = {counts, (u32)level, 0};
    move_counts(counts, nullptr);
    i64 low = (i64)blockIdx.x * tiles / gridDim.x, high = ((i64)blockIdx.x + 1) * tiles / gridDim.x;
    for (i64 tile = low; tile < high; tile++) {
        u32 number = owners[tile];
        if (level && !searches[number].rank) continue;
        const Part part = parts[number];
        counter.prefix = level ? searches[number].prefix : 0;
        i64 first = first_of(part, tile - part.first_tile), nonfinite = 0;
        float a[LOADS][4], g[LOADS][4];
        load_residual(part, first, a);
        if (!level) load_gradient(part, first, g);
        for (u32 k = 0; k < LOADS; k++) {
            for (u32 c = 0; c < 4; c++) {
                float sum = level ? a[k][c] : a[k][c] + g[k][c];
                if (!is_finite(sum)) {
                    nonfinite++;
                    continue;
                }
                a[k][c] = sum;
                u32 key = magnitude_bits(sum);
                if (key >= SMALLEST_TAU) counter.count(key);  // which the zeros outside the array are not
            }
            if (!level) store_four(part.residual, first + k * 128, part.n, a[k]);
        }
        if (nonfinite && !level) atomicAdd((u64*)&reports[number].nonfinite, (u64)nonfinite);
        if (tile + 1 == high || owners[tile + 1] != number) move_counts(counts, histograms + (i64)number * MOST_BINS);
    }
}

// A block for each parameter. At the first level it sets the rank: k, or fewer where fewer reach the smallest tau.
extern "C" __global__ void narrow_down(const u32* histograms, i64 level, const i64* ks, Search* searches,
                                       const Report* reports) {
    i64 number = blockIdx.x;
    const u32* histogram = histograms + number * MOST_BINS;
    Search* search = searches + number;
    if (level < 2) {
        u32 own = 0, all;
        if (level) for (i64 i = threadIdx.x; i < number; i += blockDim.x) own += searches[i].sent;
        else for (u32 i = threadIdx.x; i < MOST_BINS; i += blockDim.x) own += histogram[i];
        block_scan(own, &all);
        if (threadIdx.x == 0 && level) search->begin = all;
        if (threadIdx.x == 0 && !level)
            search->sent = search->rank = reports[number].nonfinite ? 0 : (u32)min(ks[number], (i64)all);
        __syncthreads();
    }
    narrow(histogram, (u32)level, search);
}

// Sends what exceeds the cut (the first kind), and the first of what equals it. states: u64 [blocks + 1], zeros.
OVER_TILES send_top(GRID, const Search* searches, u32* words, float* values, u64* states, REPORTS) {
    __shared__ u64 tile_before;
    i64 ticket = take_ticket(states);
    u32 number = owners[ticket];
    const Part part = parts[number];
    const Search search = searches[number];
    i64 tile = ticket - part.first_tile, first = first_of(part, tile);
    u32 ties = search.rank, cut = ties ? search.prefix : NOT_FINITE;
    float a[LOADS][4];
    load_residual(part, first, a);
    u64 counts = 0;
    for (u32 k = 0; k < LOADS; k++)
        for (u32 c = 0; c < 4; c++) {
            u32 key = magnitude_bits(a[k][c]);
            counts += (u64)(key > cut) << (8 * k) | (u64)(key == cut) << (8 * k + 32);
        }
    u64 in_warp, totals, in_tile, begin = place_warp(counts, &in_warp, &totals, &in_tile);
    if (threadIdx.x < 32) {
        u64 before = look_back(states + part.first_tile, tile, in_tile);
        if (threadIdx.x == 0) {
            tile_before = before;
            if (tile == 0) reports[number].end = (i64)search.begin + search.sent;
            if (tile == 0) reports[number].tau = ties ? min(cut, LARGEST_TAU) : SMALLEST_TAU;
        }
    }
    __syncthreads();
    begin += tile_before;

    double squares = 0;
    for (u32 k = 0; k < LOADS; k++) {
        u64 before = in_warp >> (8 * k);
        u64 greater = (begin & 0x7fffffffull) + (before & 255), equal = (begin >> KIND_BITS) + (before >> 32 & 255);
        for (u32 c = 0; c < 4; c++) {
            float value = a[k][c];
            u32 key = magnitude_bits(value);
            if (key > cut || (key == cut && equal < ties)) {
                i64 i = first + k * 128 + c, at = search.begin + (i64)(greater + min(equal, (u64)ties));
                words[at] = (u32)(part.base + i) << 1 | (value < 0.0f);
                values[at] = value;
                part.residual[i] = 0.0f;
            } else {
                squares += (double)value * (double)value;
            }
            greater += key > cut;
            equal += key == cut;
        }
        begin += (totals >> (8 * k) & 255) + ((totals >> (8 * k + 32) & 255) << KIND_BITS);
    }
    report_tile(reports + number, squares_of + ticket, squares, 0);
}
