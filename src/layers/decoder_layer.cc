#include "layers/decoder_layer.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::layers {
namespace {

MatrixF Room(const StepContext& step, int64_t rows, int64_t cols) {
  return {step.kernels.workspace->Floats(rows * cols), rows, cols};
}

// Moves rows out of the layer's scratch into storage that outlives it.
void Keep(const MatrixF& storage, MatrixF& rows) {
  if (rows.data == storage.data) return;
  PERIGEE_CHECK(rows.rows <= storage.rows && rows.stride == rows.cols && rows.cols == storage.cols);
  std::copy_n(rows.data, rows.rows * rows.cols, storage.data);
  rows.data = storage.data;
}

}  // namespace

DecoderLayer::DecoderLayer(size_t index, const WeightScope& weights, float norm_eps,
                           std::unique_ptr<Attention> attention, std::unique_ptr<FeedForward> feed_forward)
    : index_(index),
      norm_eps_(norm_eps),
      input_layernorm_(weights.Floats("input_layernorm.weight")),
      post_attention_layernorm_(weights.Floats("post_attention_layernorm.weight")),
      attention_(std::move(attention)),
      feed_forward_(std::move(feed_forward)) {}

MatrixF DecoderLayer::AddAndNorm(const StepContext& step, const parallel::RowStream& stream,
                                 const std::vector<float>& weight) const {
  const MatrixF normed = Room(step, stream.residual.rows, stream.residual.cols);
  if (stream.branch.data == nullptr) {
    RmsNorm(step.kernels, stream.residual, weight, norm_eps_, normed);
  } else {
    AddRmsNorm(step.kernels, stream.branch, stream.residual, weight, norm_eps_, normed);
  }
  return normed;
}

Status DecoderLayer::Attend(const StepContext& step, const WantedRows* wanted,
                            parallel::RowStream& stream) const {
  parallel::LayerCommunicator& communicator = step.communicator;
  const parallel::BlockTransitions& block = communicator.plan().blocks[2 * index_];
  PERIGEE_ASSIGN_OR_RETURN(stream, communicator.PrepareAttn(index_, stream));
  const MatrixF normed = AddAndNorm(step, stream, input_layernorm_);
  PERIGEE_ASSIGN_OR_RETURN(const ConstMatrixF x, communicator.AttnInput(index_, normed));
  std::optional<std::span<const int64_t>> chosen;
  int64_t rows = x.rows;
  if (wanted != nullptr) {
    chosen = wanted->Places(block.input_rows);
    rows = static_cast<int64_t>(chosen->size());
  }
  const MatrixF result = Room(step, rows, x.cols);
  PERIGEE_RETURN_IF_ERROR(attention_->Forward(step, x, chosen, result));
  if (wanted != nullptr) {
    stream.residual = SelectRows(step, wanted->Places(block.stream_rows), stream.residual);
    communicator.UseRows(wanted->rows);
  }
  PERIGEE_ASSIGN_OR_RETURN(stream.branch, communicator.AttnOutput(index_, result));
  return Status::Ok();
}

Status DecoderLayer::Forward(const StepContext& step, const WantedRows* wanted,
                             parallel::RowStream& stream) const {
  const kernels::Workspace::Scope scope(*step.kernels.workspace);
  parallel::LayerCommunicator& communicator = step.communicator;
  PERIGEE_RETURN_IF_ERROR(Attend(step, wanted, stream));
  PERIGEE_ASSIGN_OR_RETURN(stream, communicator.PrepareMlp(index_, stream));
  const MatrixF normed = AddAndNorm(step, stream, post_attention_layernorm_);
  PERIGEE_ASSIGN_OR_RETURN(const ConstMatrixF x, communicator.MlpInput(index_, normed));
  const MatrixF result = Room(step, x.rows, x.cols);
  feed_forward_->Forward(step.kernels, x, result);
  PERIGEE_ASSIGN_OR_RETURN(stream.branch, communicator.PostprocessLayer(index_, result));
  Keep(step.stream_room.branch, stream.branch);
  Keep(step.stream_room.residual, stream.residual);
  return Status::Ok();
}

void AddBranch(const StepContext& step, parallel::RowStream& stream) {
  if (stream.branch.data != nullptr) AddInPlace(step.kernels, stream.branch, stream.residual);
  stream.branch = {};
}

MatrixF SelectRows(const StepContext& step, std::span<const int64_t> places, ConstMatrixF rows) {
  const MatrixF selected = Room(step, static_cast<int64_t>(places.size()), rows.cols);
  GatherRows(step.kernels, rows, places, selected);
  return selected;
}

}  // namespace perigee::layers
