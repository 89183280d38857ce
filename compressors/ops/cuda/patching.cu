// The passes of patches/kernels, over all pieces in one launch. A block of 256 threads compares 4096 elements, 16
// neighbours a thread: a bit for each that differs. Where its output begins is found by look-back.
#include "look_back.cuh"

#define THREADS 256
#define EACH 16
#define TILE (THREADS * EACH)

// A piece.
struct Part {
    u8* bits;
    i64 n, width, floats, first; // patterns, bytes of one, whether floats', index of the first one in its tensor
    u8* other;                   // what it is compared with, or where new bits go
    i64 base, begin;             // patterns of the pieces before; their tiles, or their positions
};

// The last part that begins here or before.
INLINE i64 part_at(const Part* parts, i64 count, i64 place) {
    i64 low = 0, high = count;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (parts[middle].begin <= place) low = middle; else high = middle;
    }
    return low;
}
INLINE u64 load(const u8* bits, i64 width, i64 i) {
    if (width == 2) return ((const u16*)bits)[i];
    if (width == 4) return ((const u32*)bits)[i];
    return width == 1 ? (u64)bits[i] : ((const u64*)bits)[i];
}
INLINE void store(u8* bits, i64 width, i64 i, u64 value) {
    if (width == 2) ((u16*)bits)[i] = (u16)value;
    else if (width == 4) ((u32*)bits)[i] = (u32)value;
    else if (width == 1) bits[i] = (u8)value;
    else ((u64*)bits)[i] = value;
}

INLINE u64 odd(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return (x ^ x >> 31) | 1ull;
}

INLINE u64 key(i64 i) { return odd((u64)i & 1023) * odd(1024 + ((u64)i >> 10)); }

INLINE u64 in_order(u64 bits, u64 mask, i64 floats) {
    u64 top = (mask >> 1) + 1;
    return floats ? bits ^ (bits & top ? mask : top) : bits;
}

INLINE u64 step_between(u64 before, u64 after, u64 mask, i64 floats) {
    u64 difference = (in_order(after, mask, floats) - in_order(before, mask, floats)) & mask;
    return ((difference << 1) & mask) ^ (difference > mask >> 1 ? mask : 0);
}

INLINE u64 stepped(u64 before, u64 step, u64 mask, i64 floats) {
    u64 number = (in_order(before, mask, floats) + ((step >> 1) ^ (step & 1 ? mask : 0))) & mask;
    u64 top = (mask >> 1) + 1;
    return floats ? number ^ (number & top ? top : mask) : number;
}

// states: u64 [tiles + 1], zeros. sums: u64 [count, 3], zeros: elements that differ, digest, and change of it.
extern "C" __global__ void __launch_bounds__(THREADS)
    compare(const Part* parts, i64 count, u32* positions, u64* steps, i64 room, u64* states, u64* sums, i64 digested) {
    __shared__ i64 tile_begin;
    i64 ticket = take_ticket(states), number = part_at(parts, count, ticket);
    const Part part = parts[number];
    u64 mask = ~0ull >> (64 - 8 * part.width), digest = 0, change = 0;
    i64 low = (ticket - part.begin) * TILE + threadIdx.x * EACH;
    u32 differs = 0;
    for (i64 j = 0; j < EACH && low + j < part.n; j++) {
        u64 before = load(part.bits, part.width, low + j), after = load(part.other, part.width, low + j);
        if (digested) digest += before * key(part.first + low + j);
        if (before == after) continue;
        change += (after - before) * key(part.first + low + j);
        differs |= 1u << j;
    }
    u64 in_tile, all;
    u64 place = block_scan((u64)__popc(differs), &in_tile) - __popc(differs);
    if (threadIdx.x < 32) {
        i64 before = (i64)look_back(states, ticket, in_tile);
        if (threadIdx.x == 0) {
            tile_begin = before;
            if (in_tile) atomicAdd(sums + 3 * number, in_tile);
        }
    }
    block_scan(digest, &all);  // also lets all threads see tile_begin
    if (threadIdx.x == 0 && all) atomicAdd(sums + 3 * number + 1, all);
    if (!in_tile) return;
    block_scan(change, &all);
    if (threadIdx.x == 0) atomicAdd(sums + 3 * number + 2, all);
    i64 at = tile_begin + (i64)place;
    for (u32 j = 0; j < EACH; j++) {
        if (!(differs >> j & 1)) continue;
        if (at < room) {
            positions[at] = (u32)(part.base + low + j);
            steps[at] = step_between(load(part.bits, part.width, low + j), load(part.other, part.width, low + j), mask,
                                     part.floats);
        }
        at++;
    }
}

// What elements become goes to `other`; sums: u64 [count], zeros: what that adds to the digests.
extern "C" __global__ void __launch_bounds__(THREADS)
    take_steps(const Part* parts, i64 count, i64 total, const u32* positions, const u64* steps, u64* sums) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    i64 number = part_at(parts, count, i);
    const Part part = parts[number];
    i64 at = positions[i];
    u64 before = load(part.bits, part.width, at);
    u64 after = stepped(before, steps[i], ~0ull >> (64 - 8 * part.width), part.floats);
    store(part.other, part.width, i - part.begin, after);
    atomicAdd(sums + number, (after - before) * key(part.first + at));
}

// Writes to elements what `take_steps` found.
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter(const Part* parts, i64 count, i64 total, const u32* positions) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    const Part part = parts[part_at(parts, count, i)];
    store(part.bits, part.width, positions[i], load(part.other, part.width, i - part.begin));
}
