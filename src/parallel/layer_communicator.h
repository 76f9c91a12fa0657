#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/context.h"
#include "parallel/layout_plan.h"
#include "parallel/parallel_context.h"
#include "parallel/row_partition.h"
#include "tensor/matrix.h"

namespace perigee::parallel {

// The residual stream between two blocks: `branch` is the last block's result, not yet added to `residual`.
// Before the first block there is no branch.
struct RowStream {
  Matrix branch;    // [rows, hidden]; null data: none
  Matrix residual;  // [rows, hidden]
};

// Executes the transitions of a layout plan on a step's rows, and nothing else. Made for one step and one
// rank; rows it hands out live in the step's workspace scope. With one rank every call is a no-op that
// returns its argument.
class LayerCommunicator {
 public:
  // All outlive the object.
  LayerCommunicator(const ParallelContext& parallel, const LayoutPlan& plan, const RowPartition& rows,
                    const kernels::KernelContext& context);

  const LayoutPlan& plan() const { return plan_; }
  const RowPartition& rows() const { return *rows_; }
  const ParallelContext& parallel() const { return parallel_; }
  // From now on the stream holds the rows of another partition (the wanted rows of the last layer).
  void UseRows(const RowPartition& rows) { rows_ = &rows; }

  // embedded: [all rows, hidden] if the plan's embedding is cut by share, else the rows of EmbeddedRows().
  StatusOr<RowStream> Enter(Matrix embedded) const;
  // The rows that the embedding has to look up, in order: all of them, or this rank's.
  bool EmbedsLocalRows() const;

  // Before a layer's attention and before its feed-forward: moves the stream to where the block's norm runs.
  StatusOr<RowStream> PrepareAttn(size_t layer, const RowStream& stream) const;
  StatusOr<RowStream> PrepareMlp(size_t layer, const RowStream& stream) const;
  // The normed rows as the block takes them.
  StatusOr<ConstMatrix> AttnInput(size_t layer, Matrix normed) const;
  StatusOr<ConstMatrix> MlpInput(size_t layer, Matrix normed) const;
  // The block's result, added up and moved to where the stream is.
  StatusOr<Matrix> AttnOutput(size_t layer, Matrix result) const;
  StatusOr<Matrix> PostprocessLayer(size_t layer, Matrix result) const;
  // Before the final norm, and its output: every rank then holds all rows.
  StatusOr<RowStream> Exit(const RowStream& stream) const;
  StatusOr<Matrix> FinalRows(Matrix normed) const;

  // Whether blocks of this kind are given this rank's rows alone in this mode.
  bool RowsAreSharded(BlockKind kind) const;

  // All rows, in token order, of local rows of any width (the latents of an MLA layer).
  StatusOr<Matrix> GatherRows(ConstMatrix local) const;

 private:
  StatusOr<RowStream> MoveStream(Transition t, const RowStream& stream) const;
  StatusOr<Matrix> Move(Transition t, Matrix rows) const;
  Matrix Slice(ConstMatrix full) const;
  StatusOr<Matrix> ReduceScatter(ConstMatrix full) const;
  Matrix Room(int64_t rows, int64_t cols) const;

  const ParallelContext& parallel_;
  const LayoutPlan& plan_;
  const RowPartition* rows_;
  const kernels::KernelContext& context_;
};

}  // namespace perigee::parallel
