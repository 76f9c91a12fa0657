#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "tensor/dtype.h"

namespace perigee {

// One MLA layer's paged latent pool: [num_blocks, block_tokens, width] of `dtype`. A record is one token's
// kv_lora_rank latent values (normalised) followed by its qk_rope_head_dim shared key values.
struct PagedKvView {
  void* data = nullptr;
  int64_t block_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;

  // Record of token `position` of the sequence whose blocks are `block_table`.
  float* Record(std::span<const int32_t> block_table, int64_t position) const {
    PERIGEE_DCHECK(dtype == DType::kF32);
    const int64_t block = block_table[static_cast<size_t>(position / block_tokens)];
    return static_cast<float*>(data) + (block * block_tokens + position % block_tokens) * width;
  }
};

// One KDA layer's states. A slot belongs to one sequence.
struct StateView {
  float* recurrent = nullptr;  // [num_slots, num_heads, key_dim, value_dim]
  // [num_slots, conv_width - 1, channels] of conv_dtype: last pre-convolution rows, oldest first
  void* conv = nullptr;
  int64_t recurrent_stride = 0;  // elements from one slot to the next
  int64_t conv_stride = 0;
  DType conv_dtype = DType::kF32;

  float* Recurrent(int64_t slot) const { return recurrent + slot * recurrent_stride; }
  float* Conv(int64_t slot) const {
    PERIGEE_DCHECK(conv_dtype == DType::kF32);
    return static_cast<float*>(conv) + slot * conv_stride;
  }
};

}  // namespace perigee
