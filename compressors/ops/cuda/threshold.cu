// The fused threshold pass: adds the gradient to the residual, moves what reaches tau into the output in index order,
// keeps the rest. 32 KiB of loads on their way per block of threads keep the memory of an H100 busy. Where a tile's
// output begins is found by look-back while the residual is written.
#include "look_back.cuh"
#include "parts.cuh"

// What the rules do with an element a that is sent: the value beside the word, and what is kept.
struct Wgt {
    typedef float Value;
    static INLINE bool sends(float magnitude, float tau) { return magnitude >= tau; }
    static INLINE float keep(float, float) { return 0.0f; }
    static INLINE void write(float* at, float a, float) { *at = a; }
};
struct Bgt {
    typedef u8 Value;
    static INLINE bool sends(float magnitude, float tau) { return magnitude >= tau; }
    static INLINE float keep(float a, float tau) { return a < 0.0f ? a + tau : a - tau; }
    static INLINE void write(u8*, float, float) {}
};
struct Strom : Bgt {
    static INLINE bool sends(float magnitude, float tau) { return magnitude > tau; }
};
struct Qgt {
    typedef u8 Value;
    static INLINE bool sends(float magnitude, float tau) { return magnitude >= tau; }
    static INLINE float level(float a, float tau) {
        float level = floorf(__fdiv_rn(fabsf(a), tau));
        return level < 255.0f ? level : 255.0f;
    }
    static INLINE float keep(float a, float tau) {
        float quantum = level(a, tau) * tau;
        return a < 0.0f ? a + quantum : a - quantum;
    }
    static INLINE void write(u8* at, float a, float tau) { *at = (u8)level(a, tau); }
};

// taus: of each parameter. states: u64 [blocks + 1], zeros. reports: of each parameter, zeros.
template <class Rule>
INLINE void threshold_pass(GRID, const float* taus, u32* words, typename Rule::Value* values,
                                               u64* states, REPORTS) {
    __shared__ i64 tile_begin;
    i64 ticket = take_ticket(states);
    u32 number = owners[ticket];
    const Part part = parts[number];
    float tau = taus[number];
    bool is_last = ticket + 1 == gridDim.x || owners[ticket + 1] != number;
    i64 first = first_of(part, ticket - part.first_tile);

    float a[LOADS][4], g[LOADS][4];
    load_residual(part, first, a);
    load_gradient(part, first, g);
    u32 hits = 0, counts = 0;  // a bit an element; a byte a load
    i64 nonfinite = 0;
    for (u32 k = 0; k < LOADS; k++)
        for (u32 c = 0; c < 4; c++) {
            float before = a[k][c], sum = before + g[k][c];
            bool finite = is_finite(sum);
            a[k][c] = finite ? sum : before;
            nonfinite += !finite;
            u32 hit = finite && Rule::sends(fabsf(sum), tau);
            // Elements outside the array are zeros, which no tau lets pass.
            hits |= hit << (4 * k + c);
            counts += hit << (8 * k);
        }

    u32 before, totals, in_tile, begin = place_warp(counts, &before, &totals, &in_tile);
    if (threadIdx.x < 32) {
        i64 tile_before = (i64)look_back(states, ticket, in_tile);
        if (threadIdx.x == 0) {
            tile_begin = tile_before;
            if (is_last) reports[number].end = tile_before + in_tile;
        }
    }

    double squares = 0;
    for (u32 k = 0; k < LOADS; k++) {
        float kept[4];
        for (u32 c = 0; c < 4; c++) {
            kept[c] = hits >> (4 * k + c) & 1 ? Rule::keep(a[k][c], tau) : a[k][c];
            squares += (double)kept[c] * (double)kept[c];
        }
        store_four(part.residual, first + k * 128, part.n, kept);
    }
    report_tile(reports + number, squares_of + ticket, squares, nonfinite);  // also lets all threads see tile_begin
    if (!hits) return;
    for (u32 k = 0; k < LOADS; k++) {
        i64 at = tile_begin + begin + (before >> (8 * k) & 255u);
        for (u32 c = 0; c < 4; c++) {
            if (!(hits >> (4 * k + c) & 1)) continue;
            words[at] = (u32)(part.base + first + k * 128 + c) << 1 | (a[k][c] < 0.0f);
            Rule::write(values + at, a[k][c], tau);
            at++;
        }
        begin += totals >> (8 * k) & 255u;
    }
}

#define PASS(name, Rule)                                                                                    \
    OVER_TILES name(GRID, const float* taus, u32* words, Rule::Value* values, u64* states, REPORTS) {       \
        threshold_pass<Rule>(parts, owners, taus, words, values, states, reports, squares_of);              \
    }

PASS(wgt, Wgt)
PASS(bgt, Bgt)
PASS(qgt, Qgt)
PASS(strom, Strom)
