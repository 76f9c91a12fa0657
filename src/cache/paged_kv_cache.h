#pragma once

#include <cstdint>

#include "tensor/buffer.h"
#include "tensor/cache_view.h"

namespace perigee::cache {

// Tokens per block of the latent pool: the chunk grid of KDA prefill, so that a block boundary is a state
// boundary.
inline constexpr int64_t kBlockTokens = 64;

// Whether memory that becomes free is filled with NaN: in debug and sanitizer builds.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kPoisonFreed = true;
#else
inline constexpr bool kPoisonFreed = false;
#endif
// All bytes of a NaN, in fp32 as in bf16.
inline constexpr uint8_t kNanByte = 0xff;

// Memory of the MLA latents of one rank: `layers` pools of `num_blocks` blocks each. Which block belongs to
// whom is BlockAllocator's business. Blocks are handed out with stale contents: a record is written before it
// is read.
class PagedKvCache {
 public:
  PagedKvCache(int64_t layers, int64_t num_blocks, int64_t width, DType dtype = DType::kF32,
               Device device = Device::kCpu, MemoryAccount account = {});

  int64_t num_blocks() const { return num_blocks_; }
  PagedKvView View(int64_t layer) const;
  // Fills the block with NaN in all layers: whoever reads it without writing first shows.
  void Poison(int64_t block, Stream stream = {});
  uint64_t Bytes() const { return memory_.bytes(); }

 private:
  int64_t layers_;
  int64_t num_blocks_;
  int64_t width_;
  DType dtype_;
  Buffer memory_;
};

}  // namespace perigee::cache
