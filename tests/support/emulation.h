// Runs CUDA kernels on the CPU, one block after the other, each thread as a fiber: what the tests of
// machines without a GPU check the kernels' logic with. Force-included before a .cu file by emulator.py.
//
// It covers what our kernels use: shared memory, __syncthreads, full-warp votes and shuffles, atomics and
// bit intrinsics. A warp's threads must meet at each vote or shuffle, as on a GPU. What it cannot show are
// races: blocks run in order, and a thread runs until it waits.
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static const
#define __shared__ static
#define __launch_bounds__(...)
#define __restrict__
#define EMULATED 1

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

namespace emulation {
enum State { READY, AT_BLOCK, AT_WARP, DONE };
struct Fiber {
    jmp_buf resume;
    bool begun = false;
    State state = READY;
    uint64_t posted = 0, gathered[32];
    unsigned lanes = 0;  // of the warp, at the meeting that released this fiber
};
static const unsigned MOST_THREADS = 1024;
static jmp_buf scheduler;
static Fiber fibers[MOST_THREADS];
static unsigned current;
static void (*entry)();
static int64_t arguments[24];
static const size_t STACK = 64 * 1024;

// Jumps leave the signal mask alone, which swapcontext asks the kernel for each time.
static void wait(State state) {
    fibers[current].state = state;
    if (_setjmp(fibers[current].resume) == 0) _longjmp(scheduler, 1);
}

static void body() {
    typedef void (*Kernel)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                           int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                           int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    int64_t* a = arguments;
    for (;;) {  // a fiber lives on, and runs its thread of the next block
        ((Kernel)entry)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
                        a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23]);
        wait(DONE);
    }
}

static void begin(Fiber& fiber, unsigned thread) {
    static char* stacks = (char*)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + thread * STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, body, 0);
    fiber.begun = true;
    setcontext(&context);
}

static void resume(unsigned thread) {
    current = thread;
    threadIdx.x = thread;
    if (_setjmp(scheduler)) return;
    if (!fibers[thread].begun) begin(fibers[thread], thread);
    _longjmp(fibers[thread].resume, 1);
}

// Every lane's value of the 32 threads of this warp; threads that are done count as 0.
static const uint64_t* meet(uint64_t value) {
    fibers[current].posted = value;
    wait(AT_WARP);
    return fibers[current].gathered;
}

static bool release_warps(unsigned threads) {
    bool released = false;
    for (unsigned first = 0; first < threads; first += 32) {
        unsigned last = first + 32 < threads ? first + 32 : threads, waiting = 0, done = 0, lanes = 0;
        for (unsigned t = first; t < last; t++) {
            waiting += fibers[t].state == AT_WARP;
            done += fibers[t].state == DONE;
            lanes |= (unsigned)(fibers[t].state == AT_WARP) << (t - first);
        }
        if (!waiting || waiting + done != last - first) continue;
        for (unsigned t = first; t < last; t++) {
            if (fibers[t].state != AT_WARP) continue;
            memset(fibers[t].gathered, 0, sizeof fibers[t].gathered);
            for (unsigned o = first; o < last; o++)
                if (lanes >> (o - first) & 1) fibers[t].gathered[o - first] = fibers[o].posted;
            fibers[t].lanes = lanes;
        }
        for (unsigned t = first; t < last; t++)
            if (fibers[t].state == AT_WARP) fibers[t].state = READY;
        released = true;
    }
    return released;
}

static void run_block(unsigned threads) {
    for (unsigned t = 0; t < threads; t++) fibers[t].state = READY;
    for (;;) {
        bool ran = false;
        for (unsigned t = 0; t < threads; t++) {
            if (fibers[t].state != READY) continue;
            resume(t);
            ran = true;
        }
        if (ran || release_warps(threads)) continue;
        unsigned done = 0, waiting = 0;
        for (unsigned t = 0; t < threads; t++) {
            done += fibers[t].state == DONE;
            waiting += fibers[t].state == AT_BLOCK;
        }
        if (done == threads) return;
        if (waiting + done != threads) {
            fprintf(stderr, "a warp's threads do not meet: the kernel would hang\n");
            abort();
        }
        for (unsigned t = 0; t < threads; t++)
            if (fibers[t].state == AT_BLOCK) fibers[t].state = READY;
    }
}
}  // namespace emulation

extern "C" void emulate(void* kernel, unsigned grid, unsigned block, const int64_t* arguments, int count) {
    emulation::entry = (void (*)())kernel;
    memset(emulation::arguments, 0, sizeof emulation::arguments);
    memcpy(emulation::arguments, arguments, count * sizeof(int64_t));
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) emulation::run_block(block);
}

static inline void __syncthreads() { emulation::wait(emulation::AT_BLOCK); }
static inline void __syncwarp(unsigned = 0xffffffffu) { emulation::meet(0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) {}

template <class T> static inline uint64_t emulated_bits(T value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> static inline T emulated_value(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline unsigned emulated_lane() { return threadIdx.x & 31; }
static inline unsigned __ballot_sync(unsigned, int predicate) {
    const uint64_t* all = emulation::meet(predicate != 0);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++) votes |= (unsigned)(all[lane] & 1) << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned, int predicate) {
    const uint64_t* all = emulation::meet(predicate == 0);
    for (int lane = 0; lane < 32; lane++)
        if (all[lane]) return 0;
    return 1;
}
template <class T> static inline T __shfl_sync(unsigned, T value, int lane, int = 32) {
    return emulated_value<T>(emulation::meet(emulated_bits(value))[lane & 31]);
}
template <class T> static inline T __shfl_up_sync(unsigned, T value, unsigned delta, int = 32) {
    const uint64_t* all = emulation::meet(emulated_bits(value));
    return emulated_lane() < delta ? value : emulated_value<T>(all[emulated_lane() - delta]);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, unsigned delta, int = 32) {
    const uint64_t* all = emulation::meet(emulated_bits(value));
    return emulated_lane() + delta > 31 ? value : emulated_value<T>(all[emulated_lane() + delta]);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int bits, int = 32) {
    return emulated_value<T>(emulation::meet(emulated_bits(value))[emulated_lane() ^ bits]);
}
template <class T, class U> static inline T atomicAdd(T* at, U value) {
    T old = *at;
    *at = old + (T)value;
    return old;
}
template <class T, class U> static inline T atomicOr(T* at, U value) {
    T old = *at;
    *at = old | (T)value;
    return old;
}
template <class T, class U> static inline T atomicXor(T* at, U value) {
    T old = *at;
    *at = old ^ (T)value;
    return old;
}
template <class T, class U> static inline T atomicMax(T* at, U value) {
    T old = *at;
    *at = old < (T)value ? (T)value : old;
    return old;
}
template <class T, class U> static inline T atomicMin(T* at, U value) {
    T old = *at;
    *at = (T)value < old ? (T)value : old;
    return old;
}
template <class T, class U> static inline T atomicExch(T* at, U value) {
    T old = *at;
    *at = (T)value;
    return old;
}
template <class T> static inline T atomicCAS(T* at, T expected, T value) {
    T old = *at;
    if (old == expected) *at = value;
    return old;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
static inline unsigned __float_as_uint(float x) { return emulated_value<unsigned>(emulated_bits(x)); }
static inline int __float_as_int(float x) { return emulated_value<int>(emulated_bits(x)); }
static inline float __uint_as_float(unsigned x) { return emulated_value<float>(x); }
static inline float __int_as_float(int x) { return emulated_value<float>((uint32_t)x); }
static inline double __longlong_as_double(long long x) { return emulated_value<double>((uint64_t)x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
template <class T> static inline T __ldg(const T* at) { return *at; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
