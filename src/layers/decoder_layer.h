#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "layers/attention.h"
#include "layers/feed_forward.h"
#include "tensor/parameter.h"

namespace perigee::layers {

// Rows whose results are wanted, for the last layer: the others end where their states and latents are
// written.
struct WantedRows {
  parallel::RowPartition rows =
      parallel::RowPartition::Whole(0);  // the wanted rows, numbered by their place among them
  RowChoice full;                        // the wanted rows among all rows
  RowChoice local;                       // this rank's wanted rows among its rows

  const RowChoice& Of(parallel::Sharding held) const {
    return held == parallel::Sharding::kCp ? local : full;
  }
};

// h = h + attention(norm(h)); h = h + feed_forward(norm(h)), between calls that move rows where each block
// needs them.
class DecoderLayer {
 public:
  // weights: the scope "model.layers.{l}.".
  DecoderLayer(size_t index, const WeightScope& weights, float norm_eps, std::unique_ptr<Attention> attention,
               std::unique_ptr<FeedForward> feed_forward);

  // Updates the stream; its rows lie in the step's stream room afterwards. With `wanted` the stream comes out
  // with those rows only.
  Status Forward(const StepContext& step, const WantedRows* wanted, parallel::RowStream& stream) const;

 private:
  // Adds the branch (if there is one) and norms: [rows, hidden].
  Matrix AddAndNorm(const StepContext& step, const parallel::RowStream& stream,
                    const Parameter& weight) const;
  Status Attend(const StepContext& step, const WantedRows* wanted, parallel::RowStream& stream) const;

  size_t index_;
  float norm_eps_;
  Parameter input_layernorm_;
  Parameter post_attention_layernorm_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<FeedForward> feed_forward_;
};

// residual += branch; the branch is gone afterwards.
void AddBranch(const StepContext& step, parallel::RowStream& stream);
// The chosen rows, in the step's workspace.
Matrix SelectRows(const StepContext& step, const RowChoice& choice, ConstMatrix rows);

// Copies rows out of the step's workspace.
void StoreRows(const StepContext& step, ConstMatrix rows, Matrix storage);

}  // namespace perigee::layers
