// The CRC-32 of messages, zlib's: the remainder of the message's bits, as a polynomial over GF(2), divided by
// P. A polynomial is 32 bits with x^0 in the highest; bytes begin with their lowest bit.
//
// What a word adds to the remainder depends on nothing but the word and how many bits stand behind it, so that
// parts are worked out alone, multiplied by the power of x that their distance from the end asks for, and
// joined by XOR. A tile of 32 KiB is a block's; tiles are counted from the message's end, and missing bytes
// before its begin are zeros, which change nothing. In a tile thread t takes words t, t + 256, ...: from one
// to the next is a multiplication by x^8192, four table lookups. That the remainder begins with all ones
// instead of zeros is the same as the message's first four bytes inverted; in the end it is inverted too.
#include "bits.cuh"

#define THREADS 256
#define ROUNDS 32
#define TILE (THREADS * ROUNDS * 4)
#define CRC_AT 28  // where a message has its own CRC-32, which counts as zeros
#define HEADER 32
#define POLYNOMIAL 0xedb88320u

// See crc32.py, which works them out.
struct Powers {
    u32 step[4][256];  // v x^8192, v being a byte at each of the four places in a word
    u32 lane[THREADS]; // x^(32 (256 - t)), from thread t's last word to the tile's end
    u32 tile[32];      // x^(8 TILE 2^i)
};

// The product of two polynomials modulo P.
__device__ __forceinline__ u32 multiply(u32 a, u32 b) {
    u32 product = 0;
    for (u32 i = 0; i < 32; i++) {
        if (a >> (31 - i) & 1) product ^= b;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

__device__ __forceinline__ u32 byte_of(const u8* message, i64 i) {
    if (i < 0 || (i >= CRC_AT && i < HEADER)) return 0;
    return i < 4 ? message[i] ^ 0xffu : message[i];
}

// The four bytes from number `at` on, of which there are `bytes`; `at` may be less than 0.
__device__ __forceinline__ u32 word_of(const u8* message, i64 bytes, i64 at) {
    u32 skew = skew_of(message + at), word = 0;
    if (at - skew >= HEADER && at - skew + 8 <= bytes) {
        const u32* aligned = (const u32*)(message + at - skew);
        return skew ? aligned[0] >> (8 * skew) | aligned[1] << (32 - 8 * skew) : aligned[0];
    }
    for (u32 j = 0; j < 4; j++) word |= byte_of(message, at + j) << (8 * j);
    return word;
}

// The XOR over a block; for thread 0.
__device__ __forceinline__ u32 block_xor(u32 value) {
    __shared__ u32 sums[THREADS / 32];
    for (u32 step = 16; step; step >>= 1) value ^= __shfl_xor_sync(FULL_WARP, value, (int)step);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = value;
    __syncthreads();
    u32 all = 0;
    for (u32 warp = 0; warp < THREADS / 32; warp++) all ^= sums[warp];
    return all;
}

// Joins a tile's share to *sum, which is zero before the first.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_message(const u8* message, i64 bytes, const Powers* powers, u32* sum) {
    __shared__ u32 step[4][256];
    for (u32 i = threadIdx.x; i < 4 * 256; i += THREADS) step[i >> 8][i & 255] = powers->step[i >> 8][i & 255];
    __syncthreads();
    i64 begin = bytes - ((i64)blockIdx.x + 1) * TILE;
    u32 remainder = 0;
    for (u32 round = 0; round < ROUNDS; round++) {
        i64 at = begin + (i64)(round * THREADS + threadIdx.x) * 4;
        if (at + 4 <= 0) continue;  // zeros before the message
        remainder = step[0][remainder & 255] ^ step[1][remainder >> 8 & 255] ^ step[2][remainder >> 16 & 255] ^
                    step[3][remainder >> 24];
        remainder ^= word_of(message, bytes, at);
    }
    u32 share = block_xor(multiply(remainder, powers->lane[threadIdx.x]));
    if (threadIdx.x != 0) return;
    for (u32 i = 0; blockIdx.x >> i; i++)
        if (blockIdx.x >> i & 1) share = multiply(share, powers->tile[i]);
    atomicXor(sum, share);
}

// Writes what was summed up into the headers, a thread a message; starts: i64 [count], where messages begin.
extern "C" __global__ void __launch_bounds__(THREADS)
    seal(const u32* sums, const i64* starts, i64 count, u8* payload) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) store_bytes(payload + starts[i] + CRC_AT, ~sums[i], 4);
}
