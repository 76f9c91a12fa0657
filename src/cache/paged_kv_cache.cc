#include "cache/paged_kv_cache.h"

#include <cstddef>

#include "base/check.h"

namespace perigee::cache {

PagedKvCache::PagedKvCache(int64_t layers, int64_t num_blocks, int64_t width, DType dtype, Device device,
                           MemoryAccount account)
    : layers_(layers), num_blocks_(num_blocks), width_(width), dtype_(dtype) {
  PERIGEE_CHECK(layers >= 0 && num_blocks >= 0 && width >= 0);
  memory_ = Buffer(static_cast<size_t>(layers * num_blocks * kBlockTokens * width * DTypeBytes(dtype)),
                   device, account);
}

PagedKvView PagedKvCache::View(int64_t layer) const {
  PERIGEE_CHECK(layer >= 0 && layer < layers_);
  const int64_t layer_bytes = num_blocks_ * kBlockTokens * width_ * DTypeBytes(dtype_);
  return {.data = memory_.As<std::byte>() + layer * layer_bytes,
          .block_tokens = kBlockTokens,
          .width = width_,
          .dtype = dtype_,
          .num_blocks = num_blocks_};
}

void PagedKvCache::Poison(int64_t block, Stream stream) {
  PERIGEE_CHECK(block >= 0 && block < num_blocks_);
  const auto bytes = static_cast<size_t>(kBlockTokens * width_ * DTypeBytes(dtype_));
  for (int64_t layer = 0; layer < layers_; ++layer) {
    memory_.Fill(static_cast<size_t>(layer * num_blocks_ + block) * bytes, bytes, kNanByte, stream);
  }
}

}  // namespace perigee::cache
