#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PERIGEE_ANY_DEVICE __host__ __device__
#else
#define PERIGEE_ANY_DEVICE
#endif

namespace perigee::kernels {

// A uniform number in [0, 1) with 24 bits: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over a
// counter.
PERIGEE_ANY_DEVICE inline float UniformAt(uint64_t seed, uint64_t place) {
  uint64_t z = seed + (place + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<uint32_t>((z ^ (z >> 31)) >> 40)) * 0x1p-24f;
}

// Product and sum rounded one after the other on every device.
PERIGEE_ANY_DEVICE inline float Between(float low, float high, float u) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(low, __fmul_rn(u, __fsub_rn(high, low)));
#else
  return low + u * (high - low);
#endif
}

}  // namespace perigee::kernels
