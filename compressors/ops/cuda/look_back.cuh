// Where a block's output begins, in the same pass that writes it: decoupled look-back (Merrill and Garland,
// "Single-pass parallel prefix scan with decoupled look-back", 2016).
//
// Blocks take tickets in the order in which they start, so every block before a running one is running or done, and
// waiting for it always ends. A block first publishes how much it writes, then adds up what the blocks before it
// published, back to the nearest that knows its place. Count and kind are one word, so no fence is needed.
#pragma once
#include "common.cuh"

#define STATE_COUNT (1ull << 62)   // what this block alone writes
#define STATE_PLACE (2ull << 62)   // what this block and all before it write
#define STATE_AMOUNT ((1ull << 62) - 1)

// This block's number, in the order of starting. `states`: u64 [blocks + 1], zeros; the first is the counter.
// All threads must call it.
INLINE i64 take_ticket(u64* states) {
    __shared__ i64 ticket;
    if (threadIdx.x == 0) ticket = (i64)atomicAdd(states, 1ull);
    __syncthreads();
    return ticket;
}

// What the blocks with lower tickets write: the sum of their amounts, each and all less than 2^62. Where blocks of
// several parameters count for themselves, `ticket` and `states` are those from the parameter's first on.
// The threads of one warp must call it, all of them.
INLINE u64 look_back(u64* states, i64 ticket, u64 amount) {
    volatile u64* state = states + 1;
    i64 lane = threadIdx.x & 31;
    u64 before = 0;
    if (lane == 0) atomicExch(states + 1 + ticket, (ticket ? STATE_COUNT : STATE_PLACE) | amount);
    for (i64 last = ticket - 1; last >= 0; last -= 32) {
        u64 seen = STATE_PLACE;  // before the first block nothing is written
        if (last >= lane) {
            do seen = state[last - lane];
            while (seen == 0);
        }
        __syncwarp();
        u32 placed = __ballot_sync(FULL_WARP, (seen & STATE_PLACE) != 0);
        i64 nearest = placed ? __ffs((int)placed) - 1 : 31;
        before += __shfl_sync(FULL_WARP, warp_scan(lane <= nearest ? seen & STATE_AMOUNT : 0ull), 31);
        if (placed) break;
    }
    if (lane == 0 && ticket) atomicExch(states + 1 + ticket, STATE_PLACE | (before + amount));
    return before;
}
