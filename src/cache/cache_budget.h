#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace perigee::cache {

// The type of latents and conv tails on a device: that of its activations.
constexpr DType CachedType(Device device) {
  return device == Device::kCpu ? DType::kF32 : DType::kBF16;
}

// What caching costs on one rank, in bytes.
struct CacheCosts {
  uint64_t per_token = 0;     // latent records of all layers
  uint64_t per_sequence = 0;  // recurrent states and conv tails of all layers
};

// cached: the type of latents and conv tails.
CacheCosts ComputeCacheCosts(int64_t kv_layers, int64_t kv_width, int64_t state_layers,
                             int64_t recurrent_floats, int64_t conv_floats, DType cached = DType::kF32);

// How many tokens the latent pool may hold, a multiple of kBlockTokens: what `bytes` hold beside the states
// of `sequences`, at most sequences * context_length, and never less than a request of `least` tokens needs.
// least <= context_length; all arguments positive but `bytes`.
int64_t PoolTokens(const CacheCosts& costs, uint64_t bytes, int64_t sequences, int64_t context_length,
                   int64_t least);

}  // namespace perigee::cache
