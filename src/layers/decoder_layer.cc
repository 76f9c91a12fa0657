#include "layers/decoder_layer.h"

#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rows/rows.h"

namespace perigee::layers {
namespace {

Matrix Room(const StepContext& step, int64_t rows, int64_t cols) {
  return step.kernels.Room(rows, cols);
}

// Moves rows out of the layer's scratch into storage that outlives it.
void Keep(const StepContext& step, const Matrix& storage, Matrix& rows) {
  if (rows.data == storage.data) return;
  const Matrix kept = storage.Rows(0, rows.rows);
  CopyRows(step.kernels, rows, kept);
  rows = kept;
}

}  // namespace

DecoderLayer::DecoderLayer(size_t index, const WeightScope& weights, float norm_eps,
                           std::unique_ptr<Attention> attention, std::unique_ptr<FeedForward> feed_forward)
    : index_(index),
      norm_eps_(norm_eps),
      input_layernorm_(weights.Parameters("input_layernorm.weight")),
      post_attention_layernorm_(weights.Parameters("post_attention_layernorm.weight")),
      attention_(std::move(attention)),
      feed_forward_(std::move(feed_forward)) {}

Matrix DecoderLayer::AddAndNorm(const StepContext& step, const parallel::RowStream& stream,
                                const Parameter& weight) const {
  const Matrix normed = Room(step, stream.residual.rows, stream.residual.cols);
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
  const Matrix normed = AddAndNorm(step, stream, input_layernorm_);
  PERIGEE_ASSIGN_OR_RETURN(const ConstMatrix x, communicator.AttnInput(index_, normed));
  const RowChoice* chosen = wanted == nullptr ? nullptr : &wanted->Of(block.input_rows);
  const Matrix result = Room(step, chosen == nullptr ? x.rows : chosen->size(), x.cols);
  PERIGEE_RETURN_IF_ERROR(attention_->Forward(step, x, chosen, result));
  if (wanted != nullptr) {
    stream.residual = SelectRows(step, wanted->Of(block.stream_rows), stream.residual);
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
  const Matrix normed = AddAndNorm(step, stream, post_attention_layernorm_);
  PERIGEE_ASSIGN_OR_RETURN(const ConstMatrix x, communicator.MlpInput(index_, normed));
  const Matrix result = Room(step, x.rows, x.cols);
  feed_forward_->Forward(step.kernels, x, result);
  PERIGEE_ASSIGN_OR_RETURN(stream.branch, communicator.PostprocessLayer(index_, result));
  Keep(step, step.stream_room.branch, stream.branch);
  Keep(step, step.stream_room.residual, stream.residual);
  return Status::Ok();
}

void AddBranch(const StepContext& step, parallel::RowStream& stream) {
  if (stream.branch.data != nullptr) AddInPlace(step.kernels, stream.branch, stream.residual);
  stream.branch = {};
}

Matrix SelectRows(const StepContext& step, const RowChoice& choice, ConstMatrix rows) {
  const Matrix selected = Room(step, choice.size(), rows.cols);
  GatherRows(step.kernels, rows, choice.index, selected);
  return selected;
}

void StoreRows(const StepContext& step, ConstMatrix rows, Matrix storage) {
  CopyRows(step.kernels, rows, storage);
}

}  // namespace perigee::layers
