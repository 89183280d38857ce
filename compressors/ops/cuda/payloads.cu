// The small parts of payloads that the host reads or writes itself: headers, heads of sections, codebooks.
#include "bits.cuh"

#define THREADS 32
#define HEADER 32
#define LENGTH_AT 20
#define BEHIND 8  // bytes behind a header that are read with it
#define TOO_SHORT -1
#define TOO_LONG -2
#define TOO_MANY -3

// What is told of a message; messages.py of the host reads it.
struct Found {
    i64 begin;   // where in the payload it begins
    i64 length;  // of its body
    u8 bytes[HEADER + BEHIND];  // of it, zeros behind its end
};

__device__ __forceinline__ u64 length_of(const u8* header) {
    return (u64)load_bytes(header + LENGTH_AT + 4, 4) << 32 | load_bytes(header + LENGTH_AT, 4);
}

// Cuts payloads into messages by the lengths in their headers; a thread a payload, since a message's place
// is known only when the one before it was looked at. counts: how many messages each payload has, or what is
// wrong with it. found: `most` for each payload.
extern "C" __global__ void __launch_bounds__(THREADS)
    find_messages(const u8* payloads, i64 stride, const i64* sizes, i64 rows, i64 most, i64* counts,
                  Found* found) {
    i64 row = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    const u8* payload = payloads + row * stride;
    i64 at = 0, count = 0;
    while (at < sizes[row]) {
        i64 left = sizes[row] - at - HEADER;
        if (left < 0) {
            count = TOO_SHORT;
            break;
        }
        u64 length = length_of(payload + at);
        if (length > (u64)left) {
            count = TOO_LONG;
            break;
        }
        if (count == most) {
            count = TOO_MANY;
            break;
        }
        Found* one = found + row * most + count++;
        one->begin = at;
        one->length = (i64)length;
        for (i64 j = 0; j < HEADER + BEHIND; j++)
            one->bytes[j] = j < HEADER + one->length ? payload[at + j] : 0;
        at += HEADER + one->length;
    }
    counts[row] = count;
}

// Copies `most` bytes of a body from *begin on, and zeros behind its end. begin may be anything.
extern "C" __global__ void __launch_bounds__(THREADS)
    peek(const u8* body, i64 bytes, const i64* begin, i64 most, u8* out) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < most) out[i] = *begin >= 0 && *begin <= bytes && i < bytes - *begin ? body[*begin + i] : 0;
}

// Copies piece after piece to its place; a block a piece. pieces: of each where it begins in `from`, where in
// `to`, and its length.
extern "C" __global__ void __launch_bounds__(THREADS) scatter(const u8* from, const i64* pieces, u8* to) {
    const i64* piece = pieces + 3 * (i64)blockIdx.x;
    for (i64 i = threadIdx.x; i < piece[2]; i += THREADS) to[piece[1] + i] = from[piece[0] + i];
}
