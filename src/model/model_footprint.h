#pragma once

#include <cstdint>

#include "batch/seq_span.h"
#include "batch/step_mode.h"
#include "model/causal_lm.h"
#include "parallel/shard.h"
#include "parallel/step_layout.h"
#include "tensor/device.h"

namespace perigee::kernels {
class WorkspaceTally;
}

namespace perigee::model {

// What can be cut over ranks; 0 where no layer has it.
struct ModelSizes {
  int64_t vocab_size = 0;
  int64_t kda_heads = 0;
  int64_t mla_heads = 0;
  int64_t experts = 0;
};

// The largest step of a kind that a rank may meet.
struct StepShape {
  batch::Phase phase = batch::Phase::kPrefill;
  batch::StepMode mode = batch::StepMode::kTp;
  parallel::AttentionForm form = parallel::AttentionForm::kMaterialised;  // of prompt rows
  int tp = 1;
  int attn_cp = 1;
  int64_t rows = 0;       // of all sequences; every one may be wanted
  int64_t sequences = 0;  // in the step
  int64_t snapshots = 0;  // states kept in the middle of the step
  int64_t keys = 0;       // of the longest sequence
};

// What a model costs a rank, from its shapes and the types of its tensors alone. Immutable.
class ModelFootprint {
 public:
  virtual ~ModelFootprint() = default;

  virtual ModelSizes sizes() const = 0;
  virtual int64_t hidden_size() const = 0;
  // Longest sequence that the checkpoint declares.
  virtual int64_t max_context() const = 0;
  // What one rank's pools hold.
  virtual CacheShape cache_shape(const parallel::Shard& shard) const = 0;
  // Weights as a rank's layers hold them on a device: exactly what its ledger counts.
  virtual uint64_t weight_bytes(const parallel::Shard& shard, Device device = Device::kCpu) const = 0;
  // The embedding table, which the ranks of a process share as it lies in the file (on the CPU).
  virtual uint64_t embedding_bytes() const = 0;
  // Room of CausalLm::Forward for any step up to this shape.
  virtual void TallyForward(const parallel::Shard& shard, const StepShape& step,
                            kernels::WorkspaceTally& tally) const = 0;
};

}  // namespace perigee::model
