// Reads memory as fast as the card can: the ceiling that kernels are measured against.
// CUDA alone, without the dialect, so that `doctor` compiles ten lines and not all kernels.
// Launch: any number of groups; four 16-byte loads a lane in flight.
struct BandwidthArgs { unsigned long long words; };

static __device__ __forceinline__ unsigned mix(const uint4* p)
{
    unsigned x, y, z, w;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(p));
    return x ^ y ^ z ^ w;
}

extern "C" __global__ void read_bandwidth(const uint4* __restrict__ source,
                                          unsigned* __restrict__ sink, const BandwidthArgs a)
{
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mixed = 0u;
    for (; i + 3 * stride < a.words; i += 4 * stride)
        mixed ^= mix(source + i) ^ mix(source + i + stride) ^ mix(source + i + 2 * stride)
               ^ mix(source + i + 3 * stride);
    for (; i < a.words; i += stride) mixed ^= mix(source + i);
    // Memory of zeros never mixes to this, but the compiler cannot know.
    if (mixed == 0x12345678u) sink[0] = mixed;
}
