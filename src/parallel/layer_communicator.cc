#include "parallel/layer_communicator.h"

#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "kernels/rows/rows.h"

namespace perigee::parallel {
namespace {

// Element counts of row counts.
std::vector<int64_t> Elements(std::span<const int64_t> rows, int64_t cols) {
  std::vector<int64_t> elements(rows.begin(), rows.end());
  for (int64_t& e : elements) e *= cols;
  return elements;
}

auto Flat(const auto& rows) {
  const auto m = rows.template As<float>();
  PERIGEE_CHECK(m.stride == m.cols);
  return std::span(m.data, static_cast<size_t>(m.rows * m.cols));
}

Status AllReduce(comm::Communicator* group, const Matrix& m) {
  return group->AllReduce(Flat(m));
}

}  // namespace

LayerCommunicator::LayerCommunicator(const ParallelContext& parallel, const LayoutPlan& plan,
                                     const RowPartition& rows, const kernels::KernelContext& context)
    : parallel_(parallel), plan_(plan), rows_(&rows), context_(context) {}

Matrix LayerCommunicator::Room(int64_t rows, int64_t cols) const {
  return context_.Room(rows, cols);
}

Matrix LayerCommunicator::Slice(ConstMatrix full) const {
  PERIGEE_CHECK(full.rows == rows_->total_rows());
  const Matrix local = Room(rows_->local_rows(), full.cols);
  kernels::GatherRows(context_, full, StepSpan(rows_->local()), local);
  return local;
}

StatusOr<Matrix> LayerCommunicator::GatherRows(ConstMatrix local) const {
  PERIGEE_CHECK(local.rows == rows_->local_rows());
  const int64_t total = rows_->total_rows();
  if (local.stride != local.cols) {
    const Matrix dense = Room(local.rows, local.cols);
    kernels::CopyRows(context_, local, dense);
    local = dense;
  }
  const Matrix gathered = Room(total, local.cols);
  PERIGEE_RETURN_IF_ERROR(
      parallel_.cp_group->AllGather(Flat(local), Flat(gathered), Elements(rows_->counts(), local.cols)));
  const Matrix ordered = Room(total, local.cols);
  kernels::ScatterRows(context_, gathered, StepSpan(rows_->order()), ordered);
  return ordered;
}

StatusOr<Matrix> LayerCommunicator::ReduceScatter(ConstMatrix full) const {
  PERIGEE_CHECK(full.rows == rows_->total_rows());
  const Matrix by_rank = Room(full.rows, full.cols);
  kernels::GatherRows(context_, full, StepSpan(rows_->order()), by_rank);
  const Matrix local = Room(rows_->local_rows(), full.cols);
  PERIGEE_RETURN_IF_ERROR(
      parallel_.cp_group->ReduceScatter(Flat(by_rank), Flat(local), Elements(rows_->counts(), full.cols)));
  if (parallel_.tp > parallel_.attn_cp) {
    PERIGEE_RETURN_IF_ERROR(AllReduce(parallel_.attn_tp_group, local));
  }
  return local;
}

StatusOr<Matrix> LayerCommunicator::Move(Transition t, Matrix rows) const {
  switch (t) {
    case Transition::kNone:
      return rows;
    case Transition::kSlice:
      return Slice(rows);
    case Transition::kAllGather:
      return GatherRows(rows);
    case Transition::kAllReduceTp:
      PERIGEE_RETURN_IF_ERROR(AllReduce(parallel_.tp_group, rows));
      return rows;
    case Transition::kAllReduceAttnTp:
      PERIGEE_RETURN_IF_ERROR(AllReduce(parallel_.attn_tp_group, rows));
      return rows;
    case Transition::kReduceScatter:
      return ReduceScatter(rows);
  }
  PERIGEE_CHECK(false);
  return rows;
}

StatusOr<RowStream> LayerCommunicator::MoveStream(Transition t, const RowStream& stream) const {
  RowStream moved;
  PERIGEE_ASSIGN_OR_RETURN(moved.residual, Move(t, stream.residual));
  if (stream.branch.data != nullptr) {
    PERIGEE_ASSIGN_OR_RETURN(moved.branch, Move(t, stream.branch));
  }
  return moved;
}

bool LayerCommunicator::EmbedsLocalRows() const {
  return plan_.entry == Transition::kSlice && !plan_.embedding_by_share;
}

StatusOr<RowStream> LayerCommunicator::Enter(Matrix embedded) const {
  PERIGEE_ASSIGN_OR_RETURN(const Matrix rows, Move(plan_.embedding_output, embedded));
  // Rows that were looked up where they belong need no slice.
  if (EmbedsLocalRows()) return RowStream{{}, rows};
  return MoveStream(plan_.entry, {{}, rows});
}

StatusOr<RowStream> LayerCommunicator::PrepareAttn(size_t layer, const RowStream& stream) const {
  return MoveStream(plan_.blocks[2 * layer].stream, stream);
}

StatusOr<RowStream> LayerCommunicator::PrepareMlp(size_t layer, const RowStream& stream) const {
  return MoveStream(plan_.blocks[2 * layer + 1].stream, stream);
}

StatusOr<ConstMatrix> LayerCommunicator::AttnInput(size_t layer, Matrix normed) const {
  PERIGEE_ASSIGN_OR_RETURN(const Matrix rows, Move(plan_.blocks[2 * layer].input, normed));
  return ConstMatrix(rows);
}

StatusOr<ConstMatrix> LayerCommunicator::MlpInput(size_t layer, Matrix normed) const {
  PERIGEE_ASSIGN_OR_RETURN(const Matrix rows, Move(plan_.blocks[2 * layer + 1].input, normed));
  return ConstMatrix(rows);
}

StatusOr<Matrix> LayerCommunicator::AttnOutput(size_t layer, Matrix result) const {
  return Move(plan_.blocks[2 * layer].output, result);
}

StatusOr<Matrix> LayerCommunicator::PostprocessLayer(size_t layer, Matrix result) const {
  return Move(plan_.blocks[2 * layer + 1].output, result);
}

bool LayerCommunicator::RowsAreSharded(BlockKind kind) const {
  return parallel_.attn_cp > 1 && LayoutsOf(kind, plan_.mode).input == Sharding::kCp;
}

StatusOr<RowStream> LayerCommunicator::Exit(const RowStream& stream) const {
  return MoveStream(plan_.exit, stream);
}

StatusOr<Matrix> LayerCommunicator::FinalRows(Matrix normed) const {
  return Move(plan_.final_rows, normed);
}

}  // namespace perigee::parallel
