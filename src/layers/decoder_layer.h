#pragma once

#include <memory>
#include <vector>

#include "layers/attention.h"
#include "layers/feed_forward.h"

namespace perigee::layers {

// h = h + attention(norm(h)); h = h + feed_forward(norm(h)).
class DecoderLayer {
 public:
  // weights: the scope "model.layers.{l}.".
  DecoderLayer(const WeightScope& weights, float norm_eps, std::unique_ptr<Attention> attention,
               std::unique_ptr<FeedForward> feed_forward);

  // hidden [rows, hidden_size]: the residual stream, updated.
  void Forward(const StepContext& step, MatrixF hidden) const;

 private:
  float norm_eps_;
  std::vector<float> input_layernorm_;
  std::vector<float> post_attention_layernorm_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace perigee::layers
