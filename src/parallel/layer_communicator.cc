#include "parallel/layer_communicator.h"

#include <algorithm>
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

template <typename T>
std::span<T> Flat(const Matrix<T>& m) {
  PERIGEE_CHECK(m.stride == m.cols);
  return {m.data, static_cast<size_t>(m.rows * m.cols)};
}

Status AllReduce(comm::Communicator* group, const MatrixF& m) {
  return group->AllReduce(Flat(m));
}

}  // namespace

LayerCommunicator::LayerCommunicator(const ParallelContext& parallel, const LayoutPlan& plan,
                                     const RowPartition& rows, const kernels::KernelContext& context)
    : parallel_(parallel), plan_(plan), rows_(&rows), context_(context) {}

MatrixF LayerCommunicator::Room(int64_t rows, int64_t cols) const {
  return {context_.workspace->Floats(rows * cols), rows, cols};
}

MatrixF LayerCommunicator::Slice(ConstMatrixF full) const {
  PERIGEE_CHECK(full.rows == rows_->total_rows());
  const MatrixF local = Room(rows_->local_rows(), full.cols);
  kernels::GatherRows(context_, full, rows_->local(), local);
  return local;
}

StatusOr<MatrixF> LayerCommunicator::GatherRows(ConstMatrixF local) const {
  PERIGEE_CHECK(local.rows == rows_->local_rows());
  const int64_t total = rows_->total_rows();
  if (local.stride != local.cols) {
    const MatrixF dense = Room(local.rows, local.cols);
    for (int64_t r = 0; r < local.rows; ++r) std::copy_n(local.Row(r), local.cols, dense.Row(r));
    local = dense;
  }
  const MatrixF gathered = Room(total, local.cols);
  PERIGEE_RETURN_IF_ERROR(
      parallel_.cp_group->AllGather(Flat(local), Flat(gathered), Elements(rows_->counts(), local.cols)));
  const MatrixF ordered = Room(total, local.cols);
  kernels::ScatterRows(context_, gathered, rows_->order(), ordered);
  return ordered;
}

StatusOr<MatrixF> LayerCommunicator::ReduceScatter(ConstMatrixF full) const {
  PERIGEE_CHECK(full.rows == rows_->total_rows());
  const MatrixF by_rank = Room(full.rows, full.cols);
  kernels::GatherRows(context_, full, rows_->order(), by_rank);
  const MatrixF local = Room(rows_->local_rows(), full.cols);
  PERIGEE_RETURN_IF_ERROR(
      parallel_.cp_group->ReduceScatter(Flat(by_rank), Flat(local), Elements(rows_->counts(), full.cols)));
  if (parallel_.tp > parallel_.attn_cp) {
    PERIGEE_RETURN_IF_ERROR(AllReduce(parallel_.attn_tp_group, local));
  }
  return local;
}

StatusOr<MatrixF> LayerCommunicator::Move(Transition t, MatrixF rows) const {
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

StatusOr<RowStream> LayerCommunicator::Enter(MatrixF embedded) const {
  PERIGEE_ASSIGN_OR_RETURN(const MatrixF rows, Move(plan_.embedding_output, embedded));
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

StatusOr<ConstMatrixF> LayerCommunicator::AttnInput(size_t layer, MatrixF normed) const {
  PERIGEE_ASSIGN_OR_RETURN(const MatrixF rows, Move(plan_.blocks[2 * layer].input, normed));
  return ConstMatrixF(rows);
}

StatusOr<ConstMatrixF> LayerCommunicator::MlpInput(size_t layer, MatrixF normed) const {
  PERIGEE_ASSIGN_OR_RETURN(const MatrixF rows, Move(plan_.blocks[2 * layer + 1].input, normed));
  return ConstMatrixF(rows);
}

StatusOr<MatrixF> LayerCommunicator::AttnOutput(size_t layer, MatrixF result) const {
  return Move(plan_.blocks[2 * layer].output, result);
}

StatusOr<MatrixF> LayerCommunicator::PostprocessLayer(size_t layer, MatrixF result) const {
  return Move(plan_.blocks[2 * layer + 1].output, result);
}

bool LayerCommunicator::RowsAreSharded(BlockKind kind) const {
  return parallel_.attn_cp > 1 && LayoutsOf(kind, plan_.mode).input == Sharding::kCp;
}

StatusOr<RowStream> LayerCommunicator::Exit(const RowStream& stream) const {
  return MoveStream(plan_.exit, stream);
}

StatusOr<MatrixF> LayerCommunicator::FinalRows(MatrixF normed) const {
  return Move(plan_.final_rows, normed);
}

}  // namespace perigee::parallel
