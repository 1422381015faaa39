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
#define KERNEL(name) extern "C" __global__ void name
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
#define SHARED(T, n, N) __shared__ T n[N]
#define SHARED_ATOMIC(n, N) __shared__ uint n[N]
#define TG_ATOMIC_PTR uint*
#define TG_BARRIER() __syncthreads()
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
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
// Sixteen bytes: `load16` what others read too, `stream16` weights, which nobody reads twice.
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
// C[16][8] += A[16][32] * B[32][8], signed bytes and int32 (`tiles.k` says which lane holds what).
FN void mma_i8(int* c, const uint* a, uint b0, uint b1, uint l)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
        "%9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// A kernel that waits for the one before by itself, at its GRID_START (src/gpu/cuda/edges.rs);
// others wait first.
#define KERNEL_EARLY(name) extern "C" __global__ void name
#ifndef GRID_START
#define GRID_START
#endif
