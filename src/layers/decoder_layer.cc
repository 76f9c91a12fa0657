#include "layers/decoder_layer.h"

#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"

namespace perigee::layers {

DecoderLayer::DecoderLayer(const WeightScope& weights, float norm_eps, std::unique_ptr<Attention> attention,
                           std::unique_ptr<FeedForward> feed_forward)
    : norm_eps_(norm_eps),
      input_layernorm_(weights.Floats("input_layernorm.weight")),
      post_attention_layernorm_(weights.Floats("post_attention_layernorm.weight")),
      attention_(std::move(attention)),
      feed_forward_(std::move(feed_forward)) {}

void DecoderLayer::Forward(const StepContext& step, MatrixF hidden) const {
  const kernels::KernelContext& k = step.kernels;
  const kernels::Workspace::Scope scope(*k.workspace);
  const MatrixF normed(k.workspace->Floats(hidden.rows * hidden.cols), hidden.rows, hidden.cols);
  const MatrixF branch(k.workspace->Floats(hidden.rows * hidden.cols), hidden.rows, hidden.cols);
  RmsNorm(k, hidden, input_layernorm_, norm_eps_, normed);
  attention_->Forward(step, normed, branch);
  AddRmsNorm(k, branch, hidden, post_attention_layernorm_, norm_eps_, normed);
  feed_forward_->Forward(step, normed, branch);
  AddInPlace(k, branch, hidden);
}

}  // namespace perigee::layers
