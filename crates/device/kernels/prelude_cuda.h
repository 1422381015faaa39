// Dialect prelude: CUDA C++ (NVRTC), options --std=c++14 --fmad=false.
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef signed char schar;
typedef unsigned long long ulong;
#define SIMD_WIDTH 32u
#define DEV
#define CONST const
#define THREAD
#define TG_PTR(T) T*
// Where text is compiled in parts, all but one file's kernels are templates that nobody uses
// (src/gpu/text.rs).
#define MADE extern "C" __global__
#define KERNEL(name) MADE void name
#define FN static __device__ __forceinline__
#define IN(T, n, i) const T* n
#define OUT(T, n, i) T* n
#define ARGS(T, n, i) const T n
#define GRID_ARGS
#define tgid (make_uint3(blockIdx.x, blockIdx.y, blockIdx.z))
#define tid (threadIdx.x)
#define ntid (blockDim.x)
#define lane (threadIdx.x & (SIMD_WIDTH - 1u))
#define sgid (threadIdx.x / SIMD_WIDTH)
#define nsg (blockDim.x / SIMD_WIDTH)
#define SHARED(T, n, N) __shared__ __align__(16) T n[N]
#define SHARED_ATOMIC(n, N) __shared__ uint n[N]
#define TG_ATOMIC_PTR uint*
#define TG_BARRIER() __syncthreads()
// What the lanes of a simdgroup stored is seen by its others; all simdgroups come by equally often.
#define SIMD_MEET() __syncwarp()
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_TWO _Pragma("unroll 2")
#define UNROLL_FOUR _Pragma("unroll 4")
#define UNROLL_EIGHT _Pragma("unroll 8")
// A struct read from device or constant memory.
#define LOAD(T, from) (from)
#define TABLE(T, n, N) static __device__ const T n[N]
FN float simd_shuffle_xor(float v, uint m) { return __shfl_xor_sync(0xffffffffu, v, (int)m); }
FN uint simd_shuffle_xor(uint v, uint m) { return __shfl_xor_sync(0xffffffffu, v, (int)m); }
FN int simd_shuffle_xor(int v, uint m) { return __shfl_xor_sync(0xffffffffu, v, (int)m); }
FN float simd_shuffle(float v, uint l) { return __shfl_sync(0xffffffffu, v, (int)l); }
FN uint simd_shuffle(uint v, uint l) { return __shfl_sync(0xffffffffu, v, (int)l); }
FN void tg_atomic_store(uint* p, uint i, uint v) { p[i] = v; }
FN uint tg_atomic_load(uint* p, uint i) { return p[i]; }
FN void tg_atomic_add(uint* p, uint i, uint v) { atomicAdd(p + i, v); }
FN float as_float(uint u) { return __uint_as_float(u); }
FN uint as_uint(float f) { return __float_as_uint(f); }
FN float half_bits(ushort h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
// The nearest half, ties to the even one.
FN ushort to_half(float x)
{
    ushort h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
// Two nearest bf16, the low one first; a NaN is one of the device's.
#define BF16_PAIR
FN uint bf16_pair(float low, float high)
{
    uint pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// Whole numbers of 64 bits in shared memory and lanes, and floats of 64 bits.
#define WIDE_NUMBERS
#define SHARED_ATOMIC64(n, N) __shared__ ulong n[N]
#define TG_ATOMIC64_PTR ulong*
FN void tg_atomic_store(ulong* p, uint i, ulong v) { p[i] = v; }
FN ulong tg_atomic_load(ulong* p, uint i) { return p[i]; }
FN void tg_atomic_add(ulong* p, uint i, ulong v) { atomicAdd(p + i, v); }
// Adds one, and gives what was there: another number for every thread.
FN uint tg_atomic_next(uint* p, uint i) { return atomicAdd(p + i, 1u); }
FN ulong simd_shuffle_xor(ulong v, uint m) { return __shfl_xor_sync(0xffffffffu, v, (int)m); }
FN ulong simd_shuffle(ulong v, uint l) { return __shfl_sync(0xffffffffu, v, (int)l); }
FN double as_double(ulong u) { return __longlong_as_double((long long)u); }
FN ulong as_ulong(double f) { return (ulong)__double_as_longlong(f); }
FN double fma_wide(double a, double b, double c) { return __fma_rn(a, b, c); }
FN ulong mul_high(ulong a, ulong b) { return __umul64hi(a, b); }
FN float sqrt_(float x) { return __fsqrt_rn(x); }
FN float abs_(float x) { return fabsf(x); }
FN float rint_(float x) { return rintf(x); }
FN uint popcount_(uint x) { return (uint)__popc(x); }
#define fma(a, b, c) __fmaf_rn((a), (b), (c))
// Four signed bytes times four signed bytes, exact.
#if __CUDA_ARCH__ >= 610
FN int dot4_i8(uint a, uint b, int c) { return __dp4a((int)a, (int)b, c); }
#else
FN int dot4_i8(uint a, uint b, int c)
{
    return c + (schar)a * (schar)b + (schar)(a >> 8) * (schar)(b >> 8)
           + (schar)(a >> 16) * (schar)(b >> 16) + (schar)(a >> 24) * (schar)(b >> 24);
}
#endif
// Sixteen bytes: `load16` what others read too, `stream16` weights, which nobody reads twice;
// `put16` stores. `stream8`: two words of weights.
struct Words4 {
    uint x, y, z, w;
};
FN Words4 load16(const uchar* p)
{
    uint4 v = *(const uint4*)p;
    Words4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FN Words4 stream16(const uchar* p)
{
    Words4 r;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
    return r;
}
// A hint: so many bytes, in sixteens, will be read soon.
FN void fetch_far(const uchar* p, uint bytes)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || __CUDA_ARCH__ >= 1000
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#endif
}
// Eight bytes, and nothing.
FN Words4 load8(const uchar* p)
{
    uint2 v = *(const uint2*)p;
    Words4 r = {v.x, v.y, 0u, 0u};
    return r;
}
FN void stream8(const uchar* p, uint* out)
{
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "l"(p));
}
FN void put16(uchar* p, Words4 v) { *(uint4*)p = make_uint4(v.x, v.y, v.z, v.w); }
FN void put_two(float* p, const float* v)
{
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v[0]), "f"(v[1]) : "memory");
}
// Sixteen bytes that another card writes or reads at the same time, in one access; what was
// stored before a fence is seen before what is stored after it.
FN void peer_store16(uchar* p, Words4 v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y),
        "r"(v.z), "r"(v.w)
        : "memory");
}
FN Words4 peer_load16(const uchar* p)
{
    Words4 r;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p)
                 : "memory");
    return r;
}
#define PEER_FENCE() __threadfence_system()
#define PEER_PAUSE()
FN ulong clock_ns()
{
    ulong t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
FN uint clock_ticks() { return (uint)clock64(); }
// C[16][8] = A[16][32] * B[32][8]; `mma_u8_new`: the bytes of A are unsigned.
#define MMA_NEW(name, left) \
    FN void name(int* c, const uint* a, uint b0, uint b1, uint l) \
    { \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." left ".s8.s32 {%0, %1, %2, %3}, " \
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};" \
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0)); \
    }
MMA_NEW(mma_i8_new, "s8")
MMA_NEW(mma_u8_new, "u8")
// A bit for each lane whose v is true.
FN uint simd_votes(bool v, uint l) { return __ballot_sync(0xffffffffu, v); }
// Byte i of the result is byte number (nibble i of s, below 8) of a's four bytes and b's.
FN uint pick_bytes(uint a, uint b, uint s)
{
    uint r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
    return r;
}
// The same with nibbles up to 15: from 8 on, the sign of byte number nibble - 8 eight times.
FN uint pick_signs(uint a, uint b, uint s) { return pick_bytes(a, b, s); }
// Most threads of a group, and groups that a multiprocessor should hold.
#define BOUNDS(threads, groups) __launch_bounds__(threads, groups)
// Shared memory beyond the static limit: an array at a byte offset of the group's pool, whose size
// the host knows (src/gpu/pools.rs).
extern __shared__ __align__(1024) uint4 group_pool[];
#define POOL(T, n, N, at) T* n = (T*)((uchar*)group_pool + (at))
FN uint pool_address(const void* p) { return (uint)__cvta_generic_to_shared(p); }
// Copies from device to shared memory that arrive by the next COPIES_WAIT and a barrier. Both
// sides lie at multiples of the size.
FN void copy16(uint* to, uint word, const uchar* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(pool_address(to) + 4u * word),
        "l"(from)
        : "memory");
}
FN void copy8(uint* to, uint word, const uchar* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(pool_address(to) + 4u * word),
        "l"(from)
        : "memory");
}
FN void copy16(float* to, uint word, const uchar* from) { copy16((uint*)to, word, from); }
FN void copy4(uint* to, uint word, const uchar* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(pool_address(to) + 4u * word),
        "l"(from)
        : "memory");
}
FN void copy4(float* to, uint word, const uchar* from) { copy4((uint*)to, word, from); }
#define COPIES_END() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_WAIT() asm volatile("cp.async.wait_group 0;" ::: "memory")
// Waits for all copies but those of so many last ends.
#define COPIES_WAIT_BUT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
// A word at a byte offset that is a multiple of four.
FN uint tg_load(const uint* p, uint byte) { return *(const uint*)((const uchar*)p + byte); }
// Four words at a multiple of four.
FN Words4 tg_load16(const uint* p, uint word)
{
    uint4 v = *(const uint4*)(p + word);
    Words4 r = {v.x, v.y, v.z, v.w};
    return r;
}
// A half of a word by its number, the low one first.
FN ushort tg_short(const uint* p, uint i) { return ((const ushort*)p)[i]; }
FN void store16(uint* to, uint word, Words4 v)
{
    *(uint4*)(to + word) = make_uint4(v.x, v.y, v.z, v.w);
}
// Four floats at a multiple of four.
FN void load_floats(float* out, const float* from, uint at)
{
    float4 v = *(const float4*)(from + at);
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}
FN void load_two(float* out, const float* from, uint at)
{
    float2 v = *(const float2*)(from + at);
    out[0] = v.x;
    out[1] = v.y;
}
FN void load_two(uint* out, const uint* from, uint at)
{
    uint2 v = *(const uint2*)(from + at);
    out[0] = v.x;
    out[1] = v.y;
}
// Four words at a multiple of four.
FN void load_four(uint* out, const uint* from, uint at)
{
    uint4 v = *(const uint4*)(from + at);
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}
FN void store_two(float* to, uint at, const float* v)
{
    *(float2*)(to + at) = make_float2(v[0], v[1]);
}
FN void store_two(uint* to, uint at, const uint* v)
{
    *(uint2*)(to + at) = make_uint2(v[0], v[1]);
}
FN void store_floats(float* to, uint at, const float* v)
{
    *(float4*)(to + at) = make_float4(v[0], v[1], v[2], v[3]);
}
// Four matrices of eight rows of sixteen bytes: lane l names row l mod 8 of matrix l / 8 and gets,
// of each, word l mod 4 of row l / 4.
FN void load_matrices(uint* out, const uint* from, uint word, uint l)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(pool_address(from) + 4u * word));
}
// The same of the matrices turned: word l mod 4 of column l / 4, of a matrix of halves of words.
FN void load_turned(uint* out, const uint* from, uint word, uint l)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(pool_address(from) + 4u * word));
}
// C[16][8] += A[16][16] * B[16][8], bf16 and f32: lanes hold words of A and B as for bytes.
FN void mma_bf16(float* c, const uint* a, uint b0, uint b1, uint l)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of halves.
FN void mma_f16(float* c, const uint* a, uint b0, uint b1, uint l)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// C[16][8] += A[16][32] * B[32][8], signed bytes and int32 (`tiles.k` says which lane holds what).
FN void mma_i8(int* c, const uint* a, uint b0, uint b1, uint l)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
        "%9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// A word with its bits moved up by n mod 32, those that leave it come in below.
FN uint turned_left(uint x, uint n) { return __funnelshift_l(x, x, n); }
// A value that is not worked out again where it is used.
FN uint kept(uint x)
{
    asm volatile("" : "+r"(x));
    return x;
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SIGNALS
// Hopper: eight bytes of the pool, where threads say that they came by, and wait for all `threads` of them
// for an even or an odd time. What was done before is seen afterwards.
#define SIGNAL(n, at) uint n = pool_address((uchar*)group_pool + (at))
#define SIGNAL_OPEN(n, threads) \
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(n), "n"(threads) : "memory")
#define SIGNAL_GIVE(n) \
    asm volatile("{.reg .b64 s; mbarrier.arrive.shared.b64 s, [%0];}" ::"r"(n) : "memory")
#define SIGNAL_WAIT(n, odd) \
    asm volatile("{.reg .pred p;\nAGAIN_%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n" \
                 "@p bra DONE_%=;\nbra AGAIN_%=;\nDONE_%=:}" ::"r"(n), \
                 "r"(odd) \
                 : "memory")
// C[64][N] (+)= A[64][32] B[32][N] of four simdgroups, sixteen rows each, with A in registers as for
// `mma_i8` and B in the pool: N rows of 128 bytes at a multiple of 1,024 whose sixteens are exchanged
// as `big_at` does; `word` is the first one's. They run while their threads go on: registers of C
// and A are not touched between MATRIX_OPEN and the MATRIX_WAIT_BUT(n) that leaves no more than the
// last n MATRIX_CLOSE unfinished.
#define MATRIX_OPEN() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define MATRIX_CLOSE() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define MATRIX_WAIT_BUT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
// What this thread copied or stored in the pool is seen by matrices after a barrier.
#define MATRIX_SEES() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
template <uint N> FN void matrix_settled(int* c)
{
    UNROLL
    for (uint i = 0u; i < N / 2u; ++i) asm volatile("" : "+r"(c[i])::"memory");
}
template <uint N> struct Columns {};
FN ulong matrix_place(const uint* p, uint word, uint high)
{
    return (ulong)high << 32 | ((pool_address(p) >> 4) + (word >> 2));
}
// Accumulators that are changed, and those that are only written: the compiler lets products run
// beside each other only if nothing but products writes these.
#define CHANGED(x) "+r"(x)
#define WRITTEN(x) "=r"(x)
#define C4(W, i) W(c[i]), W(c[i + 1]), W(c[i + 2]), W(c[i + 3])
#define C8(W, i) C4(W, i), C4(W, i + 4)
#define C16(W, i) C8(W, i), C8(W, i + 8)
#define MATRIX(N, left, LIST, A, B, C) \
    FN void matrix_##left(Columns<N>, int* c, const uint* a, ulong b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." #left ".s8 {" LIST \
                     "}, {" A "}, %" B ", 1;" \
                     : C(CHANGED) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    } \
    FN void matrix_##left##_new(Columns<N>, int* c, const uint* a, ulong b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." #left ".s8 {" LIST \
                     "}, {" A "}, %" B ", 0;" \
                     : C(WRITTEN) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
#define C_16(W) C8(W, 0)
#define C_32(W) C16(W, 0)
#define C_48(W) C16(W, 0), C8(W, 16)
#define C_64(W) C16(W, 0), C16(W, 16)
#define C_80(W) C16(W, 0), C16(W, 16), C8(W, 32)
#define C_96(W) C16(W, 0), C16(W, 16), C16(W, 32)
#define C_112(W) C16(W, 0), C16(W, 16), C16(W, 32), C8(W, 48)
#define C_128(W) C16(W, 0), C16(W, 16), C16(W, 32), C16(W, 48)
#define MATRICES(N, ...) MATRIX(N, s8, __VA_ARGS__, C_##N) MATRIX(N, u8, __VA_ARGS__, C_##N)
MATRICES(16,
    "%0, %1, %2, %3, %4, %5, %6, %7",
    "%8, %9, %10, %11", "12")
MATRICES(32,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
    "%16, %17, %18, %19", "20")
MATRICES(48,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23",
    "%24, %25, %26, %27", "28")
MATRICES(64,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
    "%32, %33, %34, %35", "36")
MATRICES(80,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
    "%34, %35, %36, %37, %38, %39",
    "%40, %41, %42, %43", "44")
MATRICES(96,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47",
    "%48, %49, %50, %51", "52")
MATRICES(112,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
    "%50, %51, %52, %53, %54, %55",
    "%56, %57, %58, %59", "60")
MATRICES(128,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63",
    "%64, %65, %66, %67", "68")
template <uint N>
FN void matrix_i8(int* c, const uint* a, const uint* b, uint word, bool more)
{
    if (more)
        matrix_s8(Columns<N>(), c, a, matrix_place(b, word, 0x40000040u));
    else
        matrix_s8_new(Columns<N>(), c, a, matrix_place(b, word, 0x40000040u));
}
// The same, of unsigned bytes, from nothing, with B as N rows of sixteen bytes, and N of the next
// sixteen `apart` rows further.
template <uint N>
FN void matrix_u8_new(int* c, const uint* a, const uint* b, uint word, uint apart)
{
    matrix_u8_new(Columns<N>(), c, a, matrix_place(b, word, 8u) | (ulong)apart << 16);
}
// Four simdgroups that multiply together what lies in the pool: rows of 128 bytes as above.
// Registers that products change are told behind the wait.
FN void four_done(float* c, uint n)
{
    UNROLL
    for (uint i = 0u; i < n; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
FN ulong four_place(const uint* p, uint word, uint across)
{
    ulong place;
    asm("mov.b64 %0, {%1, %2};"
        : "=l"(place)
        : "r"((pool_address(p) >> 4) + (word >> 2) + (across << 14)), "r"(0x40000040u));
    return place;
}
#define FOUR_8(c, i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
        "+f"(c[i + 6]), "+f"(c[i + 7])
// C[64][32] += A[64][16] * B[32][16], bf16 and f32: a lane of simdgroup s has rows 16 s + l / 4 and
// 8 further, columns 8 j + 2 (l mod 4) and the next.
FN void four_bf16_32(float* c, const uint* a, uint at_a, const uint* b, uint at_b, uint t)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, "
                 "%6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
                 : FOUR_8(c, 0), FOUR_8(c, 8)
                 : "l"(four_place(a, at_a, 4u)), "l"(four_place(b, at_b, 4u)));
}
// C[64][128] += A[64][16] * B[16][128]: rows of B are elements of K; 64 columns more are `across`
// words further.
FN void four_bf16_128(
    float* c, const uint* a, uint at_a, const uint* b, uint at_b, uint across, uint t)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, "
                 "%6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, "
                 "%39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, "
                 "%55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 1;"
                 : FOUR_8(c, 0), FOUR_8(c, 8), FOUR_8(c, 16), FOUR_8(c, 24), FOUR_8(c, 32),
                 FOUR_8(c, 40), FOUR_8(c, 48), FOUR_8(c, 56)
                 : "l"(four_place(a, at_a, 4u)), "l"(four_place(b, at_b, across)));
}
// C[64][128] += A[64][16] * B[16][128], halves and f32, with A in registers as for `mma_f16`: B is
// 128 rows of sixteen bytes, eight elements of K each, and those of the next eight `apart` rows
// further.
FN void four_f16_128(float* c, const uint* a, const uint* b, uint word, uint apart)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, "
                 "%6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, "
                 "%39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, "
                 "%55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, "
                 "0;"
                 : FOUR_8(c, 0), FOUR_8(c, 8), FOUR_8(c, 16), FOUR_8(c, 24), FOUR_8(c, 32),
                 FOUR_8(c, 40), FOUR_8(c, 48), FOUR_8(c, 56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                 "l"(matrix_place(b, word, 8u) | (ulong)apart << 16));
}
// C[64][64] = A[64][32] * B[32][64], signed bytes and int32: lanes as above, as for MATRIX_OPEN.
// Places are counted in sixteen bytes, so that one addition of uniform registers makes one; in words,
// as `four_place` has them, they would be moved first.
FN ulong four_chunk(const uint* p, uint chunk)
{
    ulong place;
    asm("mov.b64 %0, {%1, %2};"
        : "=l"(place)
        : "r"((pool_address(p) >> 4) + chunk), "r"(0x40000040u));
    return place;
}
FN void four_i8_64(int* c, const uint* a, uint at_a, const uint* b, uint at_b, uint t)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, "
                 "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 0;"
                 : C16(WRITTEN, 0), C16(WRITTEN, 16)
                 : "l"(four_chunk(a, at_a)), "l"(four_chunk(b, at_b)));
}
// C[64][N] (+)= A[64][16] * B[16][N], bf16 and f32, as for MATRIX_OPEN, with A in registers as for
// `mma_bf16`; B is N rows as above, places of it are counted in sixteen bytes.
#define FLOATS_4(W, i) W(c[i]), W(c[i + 1]), W(c[i + 2]), W(c[i + 3])
#define FLOATS_16(W, i) FLOATS_4(W, i), FLOATS_4(W, i + 4), FLOATS_4(W, i + 8), FLOATS_4(W, i + 12)
#define CHANGED_FLOAT(x) "+f"(x)
#define WRITTEN_FLOAT(x) "=f"(x)
#define FOUR_BF16(N, name, W, more, C, LIST, A, B) \
    FN void name(float* c, const uint* a, const uint* b, uint at_b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, {" A \
                     "}, %" B ", " #more ", 1, 1, 0;" \
                     : C(W) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(four_chunk(b, at_b))); \
    }
#define FLOATS_N32(W) FLOATS_16(W, 0)
#define FLOATS_N64(W) FLOATS_16(W, 0), FLOATS_16(W, 16)
#define FOUR_BF16S(N, ...) \
    FOUR_BF16(N, held_bf16_##N, CHANGED_FLOAT, 1, FLOATS_N##N, __VA_ARGS__) \
    FOUR_BF16(N, held_bf16_##N##_new, WRITTEN_FLOAT, 0, FLOATS_N##N, __VA_ARGS__)
FOUR_BF16S(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
    "%16, %17, %18, %19", "20")
FOUR_BF16S(64,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
    "%32, %33, %34, %35", "36")
// The larger one of a number and 0.
FN float positive(float x) { return fmaxf(x, 0.0f); }
// A pair of bf16 times another, each the nearest.
FN uint bf16_times(uint pair, uint other)
{
    uint product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(other));
    return product;
}
// Simdgroups that do different things wait for each other by signals alone, and have registers of
// their own number. A signal is given once a thread's copies so far have arrived.
#define COPIES_GIVE(n) \
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(n) : "memory")
#define ROLE_WAIT(n, odd) SIGNAL_WAIT(n, odd)
#define ROLES_MEET()
// What the lanes of a simdgroup did is seen behind a signal that one of them gives.
#define LANES_MEET() __syncwarp()
#define REGISTERS_FEWER(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#define REGISTERS_MORE(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || __CUDA_ARCH__ >= 1000
#define CLUSTERS
// Groups of a cluster, which lie along x (src/gpu/text.rs has how many), run at the same time, and
// put words into each other's shared memory. A word is announced to a box of the group that gets
// it: eight bytes of its pool, which one thread opens for so many bytes; who waits for the box sees
// all of them. A group's boxes are open when it says so, and others put nothing before they know.
#define BOX(n, at) uint n = pool_address((uchar*)group_pool + (at))
#define BOX_OPEN(n, bytes) \
    asm volatile("{.reg .b64 s;\nmbarrier.init.shared::cta.b64 [%0], 1;\n" \
                 "mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1;}" ::"r"(n), \
                 "r"(bytes) \
                 : "memory")
#define BOXES_OPEN() \
    asm volatile("fence.mbarrier_init.release.cluster;\n" \
                 "barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define BOXES_KNOWN() asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory")
#define BOX_WAIT(n) \
    asm volatile("{.reg .pred p;\nAGAIN_%=: " \
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n" \
                 "@p bra DONE_%=;\nbra AGAIN_%=;\nDONE_%=:}" ::"r"(n) \
                 : "memory")
FN uint cluster_address(uint own, uint rank)
{
    uint there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    return there;
}
// Four words, to a multiple of four.
FN void cluster_put_four(float* to, uint at, uint rank, const float* v, uint box)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, "
                 "%3, %4}, [%5];" ::"r"(cluster_address(pool_address(to + at), rank)),
        "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(cluster_address(box, rank))
        : "memory");
}
FN void cluster_put_four(uint* to, uint at, uint rank, const uint* v, uint box)
{
    float four[4] = {as_float(v[0]), as_float(v[1]), as_float(v[2]), as_float(v[3])};
    cluster_put_four((float*)to, at, rank, four, box);
}
FN void cluster_put(float* to, uint at, uint rank, float v, uint box)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            cluster_address(pool_address(to + at), rank)),
        "f"(v), "r"(cluster_address(box, rank))
        : "memory");
}
#endif
// A kernel that waits for the one before by itself, at its GRID_START (src/gpu/cuda/edges.rs);
// others wait first.
#define KERNEL_EARLY(name) MADE void name
#ifndef GRID_START
#define GRID_START
#define GRID_WAIT
#define GRID_NEXT
#endif
