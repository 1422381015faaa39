// Dialect prelude: Metal Shading Language 3.1, math mode safe.
#include <metal_stdlib>
using namespace metal;
#pragma clang fp contract(off)
#define SIMD_WIDTH 32u
#define DEV device
#define CONST constant
#define THREAD thread
#define TG_PTR(T) threadgroup T*
#define KERNEL(name) kernel void name
#define FN static inline
#define IN(T, n, i) const device T* n [[buffer(i)]]
#define OUT(T, n, i) device T* n [[buffer(i)]]
#define ARGS(T, n, i) constant T& n [[buffer(i)]]
#define GRID_ARGS \
    , uint3 tgid [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], \
        uint lane [[thread_index_in_simdgroup]], uint sgid [[simdgroup_index_in_threadgroup]], \
        uint nsg [[simdgroups_per_threadgroup]], uint3 ntid3 [[threads_per_threadgroup]]
#define ntid (ntid3.x)
#define SHARED(T, n, N) threadgroup T n[N]
#define SHARED_ATOMIC(n, N) threadgroup atomic_uint n[N]
#define TG_ATOMIC_PTR threadgroup atomic_uint*
#define TG_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device)
#define SIMD_MEET() simdgroup_barrier(mem_flags::mem_threadgroup)
#define UNROLL _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#define UNROLL_FOUR _Pragma("clang loop unroll_count(4)")
#define UNROLL_TWO _Pragma("clang loop unroll_count(2)")
#define UNROLL_EIGHT _Pragma("clang loop unroll_count(8)")
// A struct read from device or constant memory.
#define LOAD(T, from) (from)
#define TABLE(T, n, N) constant T n[N]
typedef char schar;
FN void tg_atomic_store(threadgroup atomic_uint* p, uint i, uint v)
{
    atomic_store_explicit(p + i, v, memory_order_relaxed);
}
FN uint tg_atomic_load(threadgroup atomic_uint* p, uint i)
{
    return atomic_load_explicit(p + i, memory_order_relaxed);
}
FN void tg_atomic_add(threadgroup atomic_uint* p, uint i, uint v)
{
    atomic_fetch_add_explicit(p + i, v, memory_order_relaxed);
}
FN float as_float(uint u) { return as_type<float>(u); }
FN uint as_uint(float f) { return as_type<uint>(f); }
FN float half_bits(ushort h) { return (float)as_type<half>(h); }
// The nearest half, ties to the even one.
FN ushort to_half(float x) { return as_type<ushort>((half)x); }
FN float sqrt_(float x) { return precise::sqrt(x); }
FN float abs_(float x) { return fabs(x); }
FN float rint_(float x) { return rint(x); }
FN uint popcount_(uint x) { return popcount(x); }
// Four signed bytes times four signed bytes, exact.
FN int dot4_i8(uint a, uint b, int c)
{
    return c + (int)(schar)a * (int)(schar)b + (int)(schar)(a >> 8) * (int)(schar)(b >> 8)
           + (int)(schar)(a >> 16) * (int)(schar)(b >> 16)
           + (int)(schar)(a >> 24) * (int)(schar)(b >> 24);
}
// Sixteen bytes: `load16` what others read too, `stream16` weights, which nobody reads twice.
struct Words4 {
    uint x, y, z, w;
};
FN Words4 load16(const device uchar* p)
{
    uint4 v = *(const device uint4*)p;
    Words4 r;
    r.x = v.x;
    r.y = v.y;
    r.z = v.z;
    r.w = v.w;
    return r;
}
FN Words4 stream16(const device uchar* p) { return load16(p); }
FN void fetch_far(const device uchar*, uint) {}
FN void stream8(const device uchar* p, thread uint* out)
{
    const device uint* from = (const device uint*)p;
    out[0] = from[0];
    out[1] = from[1];
}
FN void put16(device uchar* p, Words4 v)
{
    uint4 w;
    w.x = v.x;
    w.y = v.y;
    w.z = v.z;
    w.w = v.w;
    *(device uint4*)p = w;
}
// No gates between Macs go through memory: these only spell the text.
FN void peer_store16(device uchar* p, Words4 v)
{
    volatile device uint* to = (volatile device uint*)p;
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}
FN Words4 peer_load16(const device uchar* p)
{
    const volatile device uint* from = (const volatile device uint*)p;
    Words4 r;
    r.x = from[0];
    r.y = from[1];
    r.z = from[2];
    r.w = from[3];
    return r;
}
#define PEER_FENCE()
#define PEER_PAUSE()
FN ulong clock_ns() { return 0; }
FN uint clock_ticks() { return 0u; }
FN void mma_i8(thread int* c, thread const uint* a, uint b0, uint b1, uint l);
// C[16][8] = A[16][32] * B[32][8]; `mma_u8_new`: the bytes of A are unsigned.
FN void mma_i8_new(thread int* c, thread const uint* a, uint b0, uint b1, uint l)
{
    for (uint i = 0u; i < 4u; ++i) c[i] = 0;
    mma_i8(c, a, b0, b1, l);
}
FN void mma_u8_new(thread int* c, thread const uint* a, uint b0, uint b1, uint l)
{
    uint half_a[4], low[4];
    int d[4];
    for (uint i = 0u; i < 4u; ++i) {
        half_a[i] = (a[i] >> 1) & 0x7f7f7f7fu;
        low[i] = a[i] & 0x01010101u;
    }
    mma_i8_new(c, half_a, b0, b1, l);
    mma_i8_new(d, low, b0, b1, l);
    for (uint i = 0u; i < 4u; ++i) c[i] = 2 * c[i] + d[i];
}
// A bit for each lane whose v is true.
FN uint simd_votes(bool v, uint l)
{
    uint votes = v ? 1u << l : 0u;
    for (ushort m = 1; m < 32; m += m) votes |= simd_shuffle_xor(votes, m);
    return votes;
}
// Byte i of the result is byte number (nibble i of s) of a's four bytes and b's.
FN uint pick_bytes(uint a, uint b, uint s)
{
    uint out = 0u;
    for (uint i = 0u; i < 4u; ++i) {
        uint n = (s >> (4u * i)) & 7u;
        out |= (((n < 4u ? a : b) >> (8u * (n & 3u))) & 255u) << (8u * i);
    }
    return out;
}
// The same with nibbles up to 15: from 8 on, the sign of byte number nibble - 8 eight times.
FN uint pick_signs(uint a, uint b, uint s)
{
    uint out = 0u, bytes = pick_bytes(a, b, s);
    for (uint i = 0u; i < 4u; ++i) {
        uint byte = (bytes >> (8u * i)) & 255u;
        if (((s >> (4u * i)) & 8u) != 0u) byte = (byte >> 7) * 255u;
        out |= byte << (8u * i);
    }
    return out;
}
#define BOUNDS(threads, groups)
#define POOL(T, n, N, at) SHARED(T, n, N)
// Copies from device to shared memory.
#define COPY(name, T, count) \
    FN void name(threadgroup T* to, uint word, const device uchar* from) \
    { \
        for (uint i = 0u; i < count; ++i) to[word + i] = ((const device T*)from)[i]; \
    }
COPY(copy16, uint, 4u)
COPY(copy16, float, 4u)
COPY(copy8, uint, 2u)
COPY(copy4, uint, 1u)
COPY(copy4, float, 1u)
FN uint kept(uint x) { return x; }
#define COPIES_END()
#define COPIES_WAIT()
#define COPIES_WAIT_BUT(n)
// A word at a byte offset that is a multiple of four.
FN uint tg_load(threadgroup const uint* p, uint byte) { return p[byte / 4u]; }
// Four words at a multiple of four.
FN Words4 tg_load16(threadgroup const uint* p, uint word)
{
    Words4 r = {p[word], p[word + 1u], p[word + 2u], p[word + 3u]};
    return r;
}
// A half of a word by its number, the low one first.
FN ushort tg_short(threadgroup const uint* p, uint i)
{
    return (ushort)(p[i / 2u] >> (16u * (i & 1u)));
}
FN void store16(threadgroup uint* to, uint word, Words4 v)
{
    to[word] = v.x;
    to[word + 1u] = v.y;
    to[word + 2u] = v.z;
    to[word + 3u] = v.w;
}
// Four floats at a multiple of four.
FN void load_floats(thread float* out, threadgroup float* from, uint at)
{
    for (uint i = 0u; i < 4u; ++i) out[i] = from[at + i];
}
FN void load_two(thread float* out, threadgroup float* from, uint at)
{
    for (uint i = 0u; i < 2u; ++i) out[i] = from[at + i];
}
FN void load_two(thread uint* out, threadgroup const uint* from, uint at)
{
    out[0] = from[at];
    out[1] = from[at + 1];
}
// Four words at a multiple of four.
FN void load_four(thread uint* out, threadgroup const uint* from, uint at)
{
    for (uint i = 0u; i < 4u; ++i) out[i] = from[at + i];
}
FN void store_floats(threadgroup float* to, uint at, thread const float* v)
{
    for (uint i = 0u; i < 4u; ++i) to[at + i] = v[i];
}
// Four matrices of eight rows of sixteen bytes: lane l names row l mod 8 of matrix l / 8 and gets,
// of each, word l mod 4 of row l / 4.
FN void load_matrices(thread uint* out, threadgroup uint* from, uint word, uint l)
{
    for (uint i = 0u; i < 4u; ++i)
        out[i] = from[simd_shuffle(word, (ushort)(8u * i + (l >> 2))) + (l & 3u)];
}
// The same of the matrices turned: word l mod 4 of column l / 4, of a matrix of halves of words.
FN void load_turned(thread uint* out, threadgroup uint* from, uint word, uint l)
{
    uint column = l >> 2, shift = 16u * (column & 1u);
    for (uint i = 0u; i < 4u; ++i) {
        uint low = from[simd_shuffle(word, (ushort)(8u * i + 2u * (l & 3u))) + (column >> 1)];
        uint high = from[simd_shuffle(word, (ushort)(8u * i + 2u * (l & 3u) + 1u)) + (column >> 1)];
        out[i] = ((low >> shift) & 0xffffu) | (((high >> shift) & 0xffffu) << 16);
    }
}
// C[16][8] += A[16][16] * B[16][8], bf16 and f32: lanes hold words of A and B as for bytes;
// `mma_f16`: the same of halves.
FN float bf16_half(uint word, uint high)
{
    return as_float(high == 0u ? word << 16 : word & 0xffff0000u);
}
FN float f16_half(uint word, uint high)
{
    return half_bits((ushort)(high == 0u ? word : word >> 16));
}
#define MMA_16(name, half_of_word) \
    FN void name(thread float* c, thread const uint* a, uint b0, uint b1, uint l) \
    { \
        for (uint k = 0u; k < 8u; ++k) { \
            ushort row = (ushort)((l & 28u) + (k & 3u)), \
                   column = (ushort)(8u * (l & 3u) + (k & 3u)); \
            uint low = simd_shuffle(a[k < 4u ? 0 : 2], row); \
            uint high = simd_shuffle(a[k < 4u ? 1 : 3], row); \
            uint own = k < 4u ? b0 : b1; \
            uint x = simd_shuffle(own, column), y = simd_shuffle(own, (ushort)(column + 4)); \
            for (uint h = 0u; h < 2u; ++h) { \
                float u = half_of_word(low, h), v = half_of_word(high, h); \
                float p = half_of_word(x, h), q = half_of_word(y, h); \
                c[0] = fma(u, p, c[0]); \
                c[1] = fma(u, q, c[1]); \
                c[2] = fma(v, p, c[2]); \
                c[3] = fma(v, q, c[3]); \
            } \
        } \
    }
MMA_16(mma_bf16, bf16_half)
MMA_16(mma_f16, f16_half)
// C[16][8] += A[16][32] * B[32][8], signed bytes and int32 (`tiles.k` says which lane holds what).
// There is no unit for it.
FN void mma_i8(thread int* c, thread const uint* a, uint b0, uint b1, uint l)
{
    for (uint k = 0u; k < 4u; ++k) {
        ushort row = (ushort)((l & 28u) + k), column = (ushort)(8u * (l & 3u) + k);
        uint low0 = simd_shuffle(a[0], row), high0 = simd_shuffle(a[1], row);
        uint low1 = simd_shuffle(a[2], row), high1 = simd_shuffle(a[3], row);
        uint x0 = simd_shuffle(b0, column), x1 = simd_shuffle(b1, column);
        uint y0 = simd_shuffle(b0, (ushort)(column + 4)),
             y1 = simd_shuffle(b1, (ushort)(column + 4));
        c[0] = dot4_i8(low1, x1, dot4_i8(low0, x0, c[0]));
        c[1] = dot4_i8(low1, y1, dot4_i8(low0, y0, c[1]));
        c[2] = dot4_i8(high1, x1, dot4_i8(high0, x0, c[2]));
        c[3] = dot4_i8(high1, y1, dot4_i8(high0, y0, c[3]));
    }
}
// Encoders order kernels.
#define KERNEL_EARLY(name) KERNEL(name)
#define GRID_START
#define GRID_WAIT
#define GRID_NEXT
