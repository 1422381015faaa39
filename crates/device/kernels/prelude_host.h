// Dialect prelude: C++14 of the host. Every thread of a group is a fibre (`host_rt.cpp`): barriers
// and simdgroup operations hand over to the scheduler, which checks that every lane comes to the
// same place; shared arrays check every access. Options: -ffp-contract=off.
#include <cmath>
#include <cstdint>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <sched.h>
#include <time.h>
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef signed char schar;
typedef unsigned long ulong;
struct uint3 {
    uint x, y, z;
};
namespace host {
struct Context {
    uint3 group;
    uint thread, threads;
};
extern thread_local Context* current;
// Every thread of the group.
void barrier(int line);
// Every lane of the simdgroup: gives all their values.
const uint* exchange(uint bits, int line);
// Storage of a shared array; `words` are its trackers.
struct Word {
    uint written, writer, read, reader;
};
struct Array {
    uchar* bytes;
    Word* words;
};
// Every thread of the cluster.
void meeting(int line);
// A word for an array of another group of the cluster, and the boxes that such words come by.
struct Sent {
    int id;
    size_t index;
    uint bits;
};
void open_box(uint box, uint bytes);
void put(Sent word, uint rank, uint box);
void wait_for_box(uint box);
Array shared(int id, size_t bytes, size_t elements);
void on_read(Word& w, size_t index);
void on_write(Word& w, size_t index);
void out_of_shared(size_t index, size_t elements);
// A shared array that tracks who touches what.
template <class T> struct Shared {
    T* values;
    Word* words;
    size_t length;
    int id;
    size_t first;
    struct Element {
        T& value;
        Word& word;
        size_t index;
        operator T() const
        {
            on_read(word, index);
            return value;
        }
        Element& operator=(T v)
        {
            on_write(word, index);
            value = v;
            return *this;
        }
        Element& operator=(const Element& o) { return *this = (T)o; }
        Element& operator+=(T v) { return *this = (T) * this + v; }
    };
    Element operator[](size_t i) const
    {
        if (i >= length) out_of_shared(i, length);
        return Element{values[i], words[i], i};
    }
    Shared operator+(size_t i) const
    {
        if (i > length) out_of_shared(i, length);
        return Shared{values + i, words + i, length - i, id, first + i};
    }
};
template <class T> Shared<T> make_shared(int id, size_t n)
{
    Array a = shared(id, n * sizeof(T), n);
    return Shared<T>{(T*)a.bytes, a.words, n, id, 0};
}
struct Atomic {
    uint* values;
    Word* words;
    size_t length;
};
inline Atomic make_atomic(int id, size_t n)
{
    Array a = shared(id, n * sizeof(uint), n);
    return Atomic{(uint*)a.bytes, a.words, n};
}
struct Atomic64 {
    ulong* values;
    Word* words;
    size_t length;
};
inline Atomic64 make_atomic64(int id, size_t n)
{
    Array a = shared(id, n * sizeof(ulong), n);
    return Atomic64{(ulong*)a.bytes, a.words, n};
}
} // namespace host
#define SIMD_WIDTH 32u
#define DEV
#define CONST const
#define THREAD
#define TG_PTR(T) host::Shared<T>
#define KERNEL(name) extern "C" __attribute__((visibility("default"))) void name
#define FN static inline
#define IN(T, n, i) const T* n
#define OUT(T, n, i) T* n
#define ARGS(T, n, i) const T& n
#define GRID_ARGS
#define tgid (host::current->group)
#define tid (host::current->thread)
#define ntid (host::current->threads)
#define lane (host::current->thread & (SIMD_WIDTH - 1u))
#define sgid (host::current->thread / SIMD_WIDTH)
#define nsg (host::current->threads / SIMD_WIDTH)
#define SHARED(T, n, N) host::Shared<T> n = host::make_shared<T>(__COUNTER__, N)
#define SHARED_ATOMIC(n, N) host::Atomic n = host::make_atomic(__COUNTER__, N)
#define TG_ATOMIC_PTR host::Atomic
#define TG_BARRIER() host::barrier(__LINE__)
// Here all of the group meet.
#define SIMD_MEET() TG_BARRIER()
#define UNROLL
#define NO_UNROLL
#define UNROLL_FOUR
#define UNROLL_TWO
#define UNROLL_EIGHT
// A struct read from device or constant memory.
#define LOAD(T, from) (from)
#define TABLE(T, n, N) static const T n[N]
FN uint as_uint(float f)
{
    uint u;
    std::memcpy(&u, &f, 4);
    return u;
}
FN float as_float(uint u)
{
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
#define simd_shuffle_xor(v, m) host_shuffle((v), lane ^ (m), __LINE__)
#define simd_shuffle(v, l) host_shuffle((v), (l), __LINE__)
FN float host_shuffle(float v, uint l, int line)
{
    return as_float(host::exchange(as_uint(v), line)[l & (SIMD_WIDTH - 1u)]);
}
FN uint host_shuffle(uint v, uint l, int line)
{
    return host::exchange(v, line)[l & (SIMD_WIDTH - 1u)];
}
FN int host_shuffle(int v, uint l, int line)
{
    return (int)host::exchange((uint)v, line)[l & (SIMD_WIDTH - 1u)];
}
FN void tg_atomic_store(host::Atomic p, uint i, uint v)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    host::on_write(p.words[i], i);
    p.values[i] = v;
}
FN uint tg_atomic_load(host::Atomic p, uint i)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    host::on_read(p.words[i], i);
    return p.values[i];
}
// Between two barriers additions may come from any thread; the array was stored to before.
FN void tg_atomic_add(host::Atomic p, uint i, uint v)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    p.values[i] += v;
}
// Whole numbers of 64 bits in shared memory and lanes, and floats of 64 bits.
#define WIDE_NUMBERS
#define SHARED_ATOMIC64(n, N) host::Atomic64 n = host::make_atomic64(__COUNTER__, N)
#define TG_ATOMIC64_PTR host::Atomic64
FN void tg_atomic_store(host::Atomic64 p, uint i, ulong v)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    host::on_write(p.words[i], i);
    p.values[i] = v;
}
FN ulong tg_atomic_load(host::Atomic64 p, uint i)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    host::on_read(p.words[i], i);
    return p.values[i];
}
FN void tg_atomic_add(host::Atomic64 p, uint i, ulong v)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    p.values[i] += v;
}
// Adds one, and gives what was there: another number for every thread.
FN uint tg_atomic_next(host::Atomic p, uint i)
{
    if (i >= p.length) host::out_of_shared(i, p.length);
    return p.values[i]++;
}
FN ulong host_shuffle(ulong v, uint l, int line)
{
    ulong low = host::exchange((uint)v, line)[l & (SIMD_WIDTH - 1u)];
    return ((ulong)host::exchange((uint)(v >> 32), line)[l & (SIMD_WIDTH - 1u)] << 32) | low;
}
FN double as_double(ulong u)
{
    double f;
    std::memcpy(&f, &u, 8);
    return f;
}
FN ulong as_ulong(double f)
{
    ulong u;
    std::memcpy(&u, &f, 8);
    return u;
}
FN double fma_wide(double a, double b, double c) { return __builtin_fma(a, b, c); }
FN ulong mul_high(ulong a, ulong b) { return (ulong)(((unsigned __int128)a * b) >> 64); }
FN float half_bits(ushort h)
{
    uint s = (uint)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    if (e == 31) return as_float(s | (m ? 0x7fc00000u : 0x7f800000u) | (m << 13));
    if (e == 0) return as_float(as_uint((float)m * 5.9604644775390625e-8f) | s);
    return as_float(s | ((e + 112) << 23) | (m << 13));
}
// The nearest half, ties to the even one.
FN ushort to_half(float x)
{
    uint bits = as_uint(x), s = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return (ushort)0x7fffu;
    if (a >= 0x47800000u) return (ushort)(s | 0x7c00u);
    // Below the normal halves a unit is 2^-24, which adding 1/2 leaves as the last bit.
    if (a < 0x38800000u) return (ushort)(s | (as_uint(as_float(a) + 0.5f) - 0x3f000000u));
    return (ushort)(s | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}
FN float sqrt_(float x) { return std::sqrt(x); }
FN float abs_(float x) { return std::fabs(x); }
FN float rint_(float x) { return std::nearbyintf(x); }
FN uint popcount_(uint x) { return (uint)__builtin_popcount(x); }
#define fma(a, b, c) __builtin_fmaf((a), (b), (c))
// Four signed bytes times four signed bytes, exact.
FN int dot4_i8(uint a, uint b, int c)
{
    return c + (schar)a * (schar)b + (schar)(a >> 8) * (schar)(b >> 8)
           + (schar)(a >> 16) * (schar)(b >> 16) + (schar)(a >> 24) * (schar)(b >> 24);
}
// Sixteen bytes at a multiple of sixteen.
struct Words4 {
    uint x, y, z, w;
};
FN Words4 load16(const uchar* p)
{
    if (((size_t)p & 15u) != 0u) __builtin_trap();
    Words4 r;
    std::memcpy(&r, p, 16);
    return r;
}
FN Words4 load8(const uchar* p)
{
    if (((size_t)p & 7u) != 0u) __builtin_trap();
    Words4 r = {0u, 0u, 0u, 0u};
    std::memcpy(&r, p, 8);
    return r;
}
FN Words4 stream16(const uchar* p) { return load16(p); }
FN void fetch_far(const uchar*, uint) {}
FN void stream8(const uchar* p, uint* out)
{
    if (((size_t)p & 7u) != 0u) __builtin_trap();
    std::memcpy(out, p, 8);
}
FN void put_two(float* p, const float* v)
{
    if ((size_t)p % 8u != 0u) __builtin_trap();
    std::memcpy(p, v, 8);
}
FN void put16(uchar* p, Words4 v)
{
    if (((size_t)p & 15u) != 0u) __builtin_trap();
    std::memcpy(p, &v, 16);
}
// Sixteen bytes that the kernels of another thread of this machine, which stands for a card, write
// or read at the same time; they may be torn.
FN void peer_store16(uchar* p, Words4 v)
{
    if (((size_t)p & 15u) != 0u) __builtin_trap();
    uint* to = (uint*)p;
    __atomic_store_n(to, v.x, __ATOMIC_RELAXED);
    __atomic_store_n(to + 1, v.y, __ATOMIC_RELAXED);
    __atomic_store_n(to + 2, v.z, __ATOMIC_RELAXED);
    __atomic_store_n(to + 3, v.w, __ATOMIC_RELAXED);
}
FN Words4 peer_load16(const uchar* p)
{
    if (((size_t)p & 15u) != 0u) __builtin_trap();
    const uint* from = (const uint*)p;
    Words4 r;
    r.x = __atomic_load_n(from, __ATOMIC_RELAXED);
    r.y = __atomic_load_n(from + 1, __ATOMIC_RELAXED);
    r.z = __atomic_load_n(from + 2, __ATOMIC_RELAXED);
    r.w = __atomic_load_n(from + 3, __ATOMIC_RELAXED);
    return r;
}
#define PEER_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define PEER_PAUSE() sched_yield()
FN ulong clock_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (ulong)t.tv_sec * 1000000000ul + (ulong)t.tv_nsec;
}
FN uint clock_ticks() { return (uint)clock_ns(); }
// C[16][8] = A[16][32] * B[32][8]; `mma_u8_new`: the bytes of A are unsigned.
FN void host_mma_i8(int* c, const uint* a, uint b0, uint b1, int line);
#define mma_i8_new(c, a, b0, b1, l) host_mma_new((c), (a), (b0), (b1), __LINE__)
#define mma_u8_new(c, a, b0, b1, l) host_mma_u8((c), (a), (b0), (b1), __LINE__)
FN void host_mma_new(int* c, const uint* a, uint b0, uint b1, int line)
{
    for (uint i = 0u; i < 4u; ++i) c[i] = 0;
    host_mma_i8(c, a, b0, b1, line);
}
// 256 is twice 128: halves and lowest bits of the bytes are signed ones.
FN void host_mma_u8(int* c, const uint* a, uint b0, uint b1, int line)
{
    uint half[4], low[4];
    int d[4];
    for (uint i = 0u; i < 4u; ++i) {
        half[i] = (a[i] >> 1) & 0x7f7f7f7fu;
        low[i] = a[i] & 0x01010101u;
    }
    host_mma_new(c, half, b0, b1, line);
    host_mma_new(d, low, b0, b1, line);
    for (uint i = 0u; i < 4u; ++i) c[i] = 2 * c[i] + d[i];
}
// A bit for each lane whose v is true.
#define simd_votes(v, l) host_votes((v), __LINE__)
FN uint host_votes(bool v, int line)
{
    const uint* all = host::exchange(v ? 1u : 0u, line);
    uint votes = 0u;
    for (uint i = 0u; i < SIMD_WIDTH; ++i) votes |= all[i] << i;
    return votes;
}
// Byte i of the result is byte number (nibble i of s) of a's four bytes and b's.
FN uint pick_bytes(uint a, uint b, uint s)
{
    if ((s & 0x8888u) != 0u) __builtin_trap();
    ulong all = (ulong)b << 32 | a;
    uint out = 0u;
    for (uint i = 0u; i < 4u; ++i)
        out |= (uint)(all >> (8u * ((s >> (4u * i)) & 7u)) & 255u) << (8u * i);
    return out;
}
// The same with nibbles up to 15: from 8 on, the sign of byte number nibble - 8 eight times.
FN uint pick_signs(uint a, uint b, uint s)
{
    uint out = 0u, bytes = pick_bytes(a, b, s & 0x7777u);
    for (uint i = 0u; i < 4u; ++i) {
        uint byte = (bytes >> (8u * i)) & 255u;
        if (((s >> (4u * i)) & 8u) != 0u) byte = (byte >> 7) * 255u;
        out |= byte << (8u * i);
    }
    return out;
}
#define BOUNDS(threads, groups)
#define POOL(T, n, N, at) SHARED(T, n, N)
// Copies to shared memory; here they arrive at once.
template <uint WORDS, class T>
static inline void host_copy(host::Shared<T> to, uint word, const uchar* from)
{
    if (((size_t)from % (4u * WORDS)) != 0u || word % WORDS != 0u) __builtin_trap();
    for (uint i = 0u; i < WORDS; ++i) {
        T v;
        std::memcpy(&v, from + 4u * i, 4);
        to[word + i] = v;
    }
}
#define copy16(to, word, from) host_copy<4u>((to), (word), (from))
#define copy8(to, word, from) host_copy<2u>((to), (word), (from))
#define copy4(to, word, from) host_copy<1u>((to), (word), (from))
#define COPIES_END()
#define COPIES_WAIT()
#define COPIES_WAIT_BUT(n)
// A word at a byte offset that is a multiple of four.
FN uint tg_load(host::Shared<uint> p, uint byte)
{
    if (byte % 4u != 0u) __builtin_trap();
    return p[byte / 4u];
}
// Four words at a multiple of four.
FN Words4 tg_load16(host::Shared<uint> p, uint word)
{
    if (word % 4u != 0u) __builtin_trap();
    Words4 r = {p[word], p[word + 1u], p[word + 2u], p[word + 3u]};
    return r;
}
// A half of a word by its number, the low one first.
FN ushort tg_short(host::Shared<uint> p, uint i) { return (ushort)(p[i / 2u] >> (16u * (i & 1u))); }
FN void store16(host::Shared<uint> to, uint word, Words4 v)
{
    if (word % 4u != 0u) __builtin_trap();
    to[word] = v.x;
    to[word + 1u] = v.y;
    to[word + 2u] = v.z;
    to[word + 3u] = v.w;
}
// Four floats at a multiple of four.
FN void load_floats(float* out, host::Shared<float> from, uint at)
{
    if (at % 4u != 0u) __builtin_trap();
    for (uint i = 0u; i < 4u; ++i) out[i] = from[at + i];
}
FN void load_two(float* out, host::Shared<float> from, uint at)
{
    if (at % 2u != 0u) __builtin_trap();
    for (uint i = 0u; i < 2u; ++i) out[i] = from[at + i];
}
FN void load_two(uint* out, host::Shared<uint> from, uint at)
{
    if (at % 2u != 0u) __builtin_trap();
    for (uint i = 0u; i < 2u; ++i) out[i] = from[at + i];
}
// Four words at a multiple of four.
FN void load_four(uint* out, host::Shared<uint> from, uint at)
{
    if (at % 4u != 0u) __builtin_trap();
    for (uint i = 0u; i < 4u; ++i) out[i] = from[at + i];
}
FN void store_two(host::Shared<float> to, uint at, const float* v)
{
    if (at % 2u != 0u) __builtin_trap();
    for (uint i = 0u; i < 2u; ++i) to[at + i] = v[i];
}
FN void store_two(host::Shared<uint> to, uint at, const uint* v)
{
    if (at % 2u != 0u) __builtin_trap();
    for (uint i = 0u; i < 2u; ++i) to[at + i] = v[i];
}
FN void store_floats(host::Shared<float> to, uint at, const float* v)
{
    if (at % 4u != 0u) __builtin_trap();
    for (uint i = 0u; i < 4u; ++i) to[at + i] = v[i];
}
// Four matrices of eight rows of sixteen bytes: lane l names row l mod 8 of matrix l / 8 and gets,
// of each, word l mod 4 of row l / 4.
#define load_matrices(out, from, word, l) host_load_matrices((out), (from), (word), __LINE__)
FN void host_load_matrices(uint* out, host::Shared<uint> from, uint word, int line)
{
    if (word % 4u != 0u) __builtin_trap();
    uint l = lane;
    const uint* all = host::exchange(word, line);
    uint at[4];
    for (uint i = 0u; i < 4u; ++i) at[i] = all[8u * i + (l >> 2)] + (l & 3u);
    for (uint i = 0u; i < 4u; ++i) out[i] = from[at[i]];
}
// The same of the matrices turned: word l mod 4 of column l / 4, of a matrix of halves of words.
#define load_turned(out, from, word, l) host_load_turned((out), (from), (word), __LINE__)
FN void host_load_turned(uint* out, host::Shared<uint> from, uint word, int line)
{
    if (word % 4u != 0u) __builtin_trap();
    uint l = lane, column = l >> 2, at[4][2];
    const uint* all = host::exchange(word, line);
    for (uint i = 0u; i < 4u; ++i)
        for (uint h = 0u; h < 2u; ++h) at[i][h] = all[8u * i + 2u * (l & 3u) + h] + (column >> 1);
    for (uint i = 0u; i < 4u; ++i) {
        uint low = from[at[i][0]], high = from[at[i][1]], shift = 16u * (column & 1u);
        out[i] = ((low >> shift) & 0xffffu) | (((high >> shift) & 0xffffu) << 16);
    }
}
FN uint turned_left(uint x, uint n)
{
    n &= 31u;
    return x << n | (n == 0u ? 0u : x >> (32u - n));
}
FN uint kept(uint x) { return x; }
#define SIGNALS
// Here a signal is waited for by all at one place.
#define SIGNAL(n, at) uint n = 0u
#define SIGNAL_OPEN(n, threads)
#define SIGNAL_GIVE(n)
#define SIGNAL_WAIT(n, odd) TG_BARRIER()
#define CLUSTERS
// A box is its place. What is put comes when somebody waits for the box.
#define BOX(n, at) uint n = (at)
#define BOX_OPEN(n, bytes) host::open_box((n), (bytes))
#define BOXES_OPEN()
#define BOXES_KNOWN() host::meeting(__LINE__)
#define BOX_WAIT(n) host::wait_for_box((n))
FN void cluster_put(host::Shared<float> to, uint at, uint rank, float v, uint box)
{
    if (at >= to.length) host::out_of_shared(at, to.length);
    host::put(host::Sent{to.id, to.first + at, as_uint(v)}, rank, box);
}
FN void cluster_put_four(host::Shared<float> to, uint at, uint rank, const float* v, uint box)
{
    if ((to.first + at) % 4u != 0u) __builtin_trap();
    for (uint i = 0u; i < 4u; ++i) cluster_put(to, at + i, rank, v[i], box);
}
FN void cluster_put_four(host::Shared<uint> to, uint at, uint rank, const uint* v, uint box)
{
    if ((to.first + at) % 4u != 0u) __builtin_trap();
    for (uint i = 0u; i < 4u; ++i) {
        if (at + i >= to.length) host::out_of_shared(at + i, to.length);
        host::put(host::Sent{to.id, to.first + at + i, v[i]}, rank, box);
    }
}
// C[16][8] += A[16][16] * B[16][8], bf16 and f32: lanes hold words of A and B as for bytes. One
// element of K after the other, by fma; `mma_f16`: the same of halves.
#define mma_bf16(c, a, b0, b1, l) host_mma_16<false>((c), (a), (b0), (b1), __LINE__)
#define mma_f16(c, a, b0, b1, l) host_mma_16<true>((c), (a), (b0), (b1), __LINE__)
template <bool HALVES> FN float host_half(uint word, uint high)
{
    if (HALVES) return half_bits((ushort)(high != 0u ? word >> 16 : word));
    return as_float(high != 0u ? word & 0xffff0000u : word << 16);
}
template <bool HALVES>
static inline void host_mma_16(float* c, const uint* a, uint b0, uint b1, int line)
{
    uint l = lane, row = l & 28u, column = 8u * (l & 3u);
    float w[2][16], x[2][16];
    for (uint r = 0u; r < 4u; ++r) {
        const uint* all = host::exchange(a[r], line);
        for (uint k = 0u; k < 8u; ++k)
            w[r & 1u][8u * (r >> 1) + k] = host_half<HALVES>(all[row + (k >> 1)], k & 1u);
    }
    for (uint r = 0u; r < 2u; ++r) {
        const uint* all = host::exchange(r == 0u ? b0 : b1, line);
        for (uint k = 0u; k < 16u; ++k)
            x[k >> 3][8u * r + (k & 7u)] = host_half<HALVES>(all[column + (k >> 1)], k & 1u);
    }
    for (uint k = 0u; k < 16u; ++k)
        for (uint i = 0u; i < 4u; ++i) c[i] = __builtin_fmaf(w[i >> 1][k], x[i & 1u][k], c[i]);
}
// Four simdgroups that multiply together: here each lane makes what it gets, at once. A word at
// `at` counts whole rows of 128 bytes, and its chunk is exchanged.
FN void four_done(float* c, uint n) {}
FN float host_four(host::Shared<uint> p, uint at, uint half)
{
    return host_half<false>(p[at ^ ((at >> 3) & 28u)], half);
}
// C[64][8 J] += A[64][16] * B: of `B[32][16]`, or of rows that are elements of K (`across` is not
// 0).
template <uint J> static inline void host_four_bf16(float* c, host::Shared<uint> a, uint at_a,
    host::Shared<uint> b, uint at_b, uint across, uint t)
{
    uint l = t & 31u, row = 16u * ((t >> 5) & 3u) + (l >> 2);
    for (uint k = 0u; k < 16u; ++k) {
        float w[2];
        for (uint r = 0u; r < 2u; ++r)
            w[r] = host_four(a, at_a + 32u * (row + 8u * r) + (k >> 1), k & 1u);
        for (uint i = 0u; i < 2u * J; ++i) {
            uint n = 8u * (i >> 1) + 2u * (l & 3u) + (i & 1u);
            float x = across == 0u
                          ? host_four(b, at_b + 32u * n + (k >> 1), k & 1u)
                          : host_four(
                                b, at_b + 32u * k + across * (n >> 6) + ((n & 63u) >> 1), n & 1u);
            for (uint r = 0u; r < 2u; ++r) {
                float* own = c + (4u * (i >> 1) + 2u * r + (i & 1u));
                *own = __builtin_fmaf(w[r], x, *own);
            }
        }
    }
}
FN void four_bf16_32(
    float* c, host::Shared<uint> a, uint at_a, host::Shared<uint> b, uint at_b, uint t)
{
    host_four_bf16<4u>(c, a, at_a, b, at_b, 0u, t);
}
FN void four_bf16_128(float* c, host::Shared<uint> a, uint at_a, host::Shared<uint> b, uint at_b,
    uint across, uint t)
{
    host_four_bf16<16u>(c, a, at_a, b, at_b, across, t);
}
// C[64][N] (+)= A[64][16] * B[16][N], A from registers, B as N rows.
template <uint N> FN void held_bf16(float* c, const uint* a, host::Shared<uint> b, uint at_b)
{
    uint l = lane;
    for (uint j = 0u; j < N / 8u; ++j) {
        uint at = 4u * at_b + 256u * j + 32u * (l >> 2) + (l & 3u), other = at + 4u;
        host_mma_16<false>(c + 4u * j, a, b[at ^ ((at >> 3) & 28u)],
            b[other ^ ((other >> 3) & 28u)], __LINE__);
    }
}
template <uint N> FN void held_bf16_new(float* c, const uint* a, host::Shared<uint> b, uint at_b)
{
    for (uint i = 0u; i < N / 2u; ++i) c[i] = 0.0f;
    held_bf16<N>(c, a, b, at_b);
}
#define held_bf16_32 held_bf16<32u>
#define held_bf16_64 held_bf16<64u>
#define held_bf16_32_new held_bf16_new<32u>
#define held_bf16_64_new held_bf16_new<64u>
// The larger one of a number and 0.
FN float positive(float x) { return x > 0.0f ? x : 0.0f; }
// A pair of bf16 times another, whose products are bf16.
FN uint bf16_times(uint pair, uint other)
{
    float low = host_half<false>(pair, 0u) * host_half<false>(other, 0u);
    float high = host_half<false>(pair, 1u) * host_half<false>(other, 1u);
    return as_uint(low) >> 16 | (as_uint(high) & 0xffff0000u);
}
// The same of halves, A from registers, B as rows of sixteen bytes, the next eight elements of K
// `apart` rows further.
FN void four_f16_128(float* c, const uint* a, host::Shared<uint> b, uint word, uint apart)
{
    uint l = lane;
    for (uint j = 0u; j < 16u; ++j) {
        uint at = word + 32u * j + l;
        host_mma_16<true>(c + 4u * j, a, b[at], b[at + 4u * apart], __LINE__);
    }
}
FN void four_i8_64(
    int* c, host::Shared<uint> a, uint at_a, host::Shared<uint> b, uint at_b, uint t)
{
    uint l = t & 31u, row = 16u * ((t >> 5) & 3u) + (l >> 2), column = 2u * (l & 3u);
    for (uint i = 0u; i < 32u; ++i) c[i] = 0;
    for (uint k = 0u; k < 8u; ++k) {
        uint w[2];
        for (uint r = 0u; r < 2u; ++r) {
            uint at = 4u * at_a + 32u * (row + 8u * r) + k;
            w[r] = a[at ^ ((at >> 3) & 28u)];
        }
        for (uint i = 0u; i < 16u; ++i) {
            uint at = 4u * at_b + 32u * (column + 8u * (i >> 1) + (i & 1u)) + k;
            uint x = b[at ^ ((at >> 3) & 28u)];
            for (uint r = 0u; r < 2u; ++r) {
                int* own = c + (4u * (i >> 1) + 2u * r + (i & 1u));
                *own = dot4_i8(w[r], x, *own);
            }
        }
    }
}
// Here simdgroups that do different things take turns.
#define ROLES_IN_TURN
#define COPIES_GIVE(n)
#define ROLE_WAIT(n, odd)
#define ROLES_MEET() TG_BARRIER()
#define LANES_MEET()
#define REGISTERS_FEWER(n)
#define REGISTERS_MORE(n)
// C[16][8] += A[16][32] * B[32][8], signed bytes and int32 (`tiles.k` says which lane holds what).
#define mma_i8(c, a, b0, b1, l) host_mma_i8((c), (a), (b0), (b1), __LINE__)
FN void host_mma_i8(int* c, const uint* a, uint b0, uint b1, int line)
{
    uint l = lane, row = l & 28u, column = 8u * (l & 3u), w[4][4], x[2][4], y[2][4];
    for (uint r = 0u; r < 4u; ++r) {
        const uint* all = host::exchange(a[r], line);
        for (uint k = 0u; k < 4u; ++k) w[r][k] = all[row + k];
    }
    for (uint r = 0u; r < 2u; ++r) {
        const uint* all = host::exchange(r == 0u ? b0 : b1, line);
        for (uint k = 0u; k < 4u; ++k) {
            x[r][k] = all[column + k];
            y[r][k] = all[column + 4u + k];
        }
    }
    for (uint k = 0u; k < 4u; ++k) {
        c[0] = dot4_i8(w[2][k], x[1][k], dot4_i8(w[0][k], x[0][k], c[0]));
        c[1] = dot4_i8(w[2][k], y[1][k], dot4_i8(w[0][k], y[0][k], c[1]));
        c[2] = dot4_i8(w[3][k], x[1][k], dot4_i8(w[1][k], x[0][k], c[2]));
        c[3] = dot4_i8(w[3][k], y[1][k], dot4_i8(w[1][k], y[0][k], c[3]));
    }
}
// Matrices of four simdgroups: here each makes its own rows at once. B is N rows of 128 bytes whose
// sixteens are exchanged, or of twice sixteen bytes `apart` rows apart.
#define MATRIX_OPEN()
#define MATRIX_CLOSE()
#define MATRIX_WAIT_BUT(n)
#define MATRIX_SEES()
template <uint N> FN void matrix_settled(int*) {}
template <uint N>
FN void matrix_i8(int* c, const uint* a, host::Shared<uint> b, uint word, bool more)
{
    uint l = lane, row = l >> 2, k = (word >> 2) & 7u;
    if (word % 8u != 0u) __builtin_trap();
    for (uint j = 0u; j < N / 8u; ++j) {
        uint at = (word & ~31u) + 256u * j + 32u * row + (l & 3u), key = (at >> 5) & 7u;
        if (!more) c[4u * j] = c[4u * j + 1u] = c[4u * j + 2u] = c[4u * j + 3u] = 0;
        host_mma_i8(
            c + 4u * j, a, b[at + 4u * (k ^ key)], b[at + 4u * ((k + 1u) ^ key)], __LINE__);
    }
}
template <uint N>
FN void matrix_u8_new(int* c, const uint* a, host::Shared<uint> b, uint word, uint apart)
{
    uint l = lane;
    for (uint j = 0u; j < N / 8u; ++j) {
        uint at = word + 32u * j + l;
        host_mma_u8(c + 4u * j, a, b[at], b[at + 4u * apart], __LINE__);
    }
}
// Kernels run one after another.
#define KERNEL_EARLY(name) KERNEL(name)
#define GRID_START
#define GRID_WAIT
#define GRID_NEXT
