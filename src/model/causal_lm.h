#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "batch/forward_batch.h"
#include "cache/paged_kv_cache.h"
#include "cache/recurrent_state_pool.h"
#include "parallel/parallel_context.h"
#include "parallel/step_layout.h"
#include "tensor/matrix.h"

namespace perigee::kernels {
struct KernelContext;
}

namespace perigee::model {

// What the pools of one rank must hold for a model: decided by the model, allocated by the engine.
struct CacheShape {
  int64_t kv_layers = 0;  // layers with a latent cache
  int64_t kv_width = 0;   // floats per token and layer
  int64_t state_layers = 0;
  int64_t recurrent_floats = 0;  // per slot and layer: num_heads * key_dim * value_dim
  int64_t conv_floats = 0;       // per slot and layer: (conv_width - 1) * channels
};

// The rank's pools as a model sees them.
struct Caches {
  cache::PagedKvCache* kv = nullptr;
  cache::RecurrentStatePool* states = nullptr;
};

// Rows of the vocabulary whose logits a rank computes, and the bounds, relative to `begin`, of the fixed
// parts in which their exponentials are summed.
struct VocabularyShare {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int64_t> part_bounds;

  int64_t size() const { return end - begin; }
};

// A decoder-only language model on one rank. Immutable after loading; one thread calls it at a time.
class CausalLm {
 public:
  virtual ~CausalLm() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t hidden_size() const = 0;
  virtual VocabularyShare vocabulary() const = 0;
  // Of this rank.
  virtual CacheShape cache_shape() const = 0;

  // Runs the step, updates latents and states, and writes the final-norm output of batch.wanted_rows, in
  // their order, to `hidden` [wanted_rows, hidden_size], on every rank. An error means that the ranks lost
  // each other.
  virtual Status Forward(const kernels::KernelContext& context, const batch::ForwardBatch& batch,
                         const parallel::StepLayout& layout, const parallel::ParallelContext& parallel,
                         const Caches& caches, Matrix hidden) const = 0;

  // logits [rows, vocabulary().size()] of final hidden states [rows, hidden_size].
  virtual void Logits(const kernels::KernelContext& context, ConstMatrix hidden, Matrix logits) const = 0;
};

}  // namespace perigee::model
