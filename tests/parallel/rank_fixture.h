#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "comm/communicator.h"
#include "comm/process_grid.h"
#include "parallel/parallel_context.h"
#include "tensor/matrix.h"
#include "testing/kernel_fixture.h"

namespace perigee::test {

// What one rank of a test has: its groups, a pool of one thread and a workspace.
class RankFixture {
 public:
  // Collective over the world.
  RankFixture(comm::Communicator& world, int attn_cp) {
    auto grid = comm::MakeProcessGrid(world, attn_cp, 1);
    EXPECT_TRUE(grid.ok()) << (grid.ok() ? "" : grid.status().message());
    grid_ = std::move(grid).value();
    parallel_ = parallel::ContextOf(grid_);
  }

  const parallel::ParallelContext& parallel() const { return parallel_; }
  const kernels::KernelContext& context() const { return runner_.context(); }
  comm::ProcessGrid& grid() { return grid_; }

  // What this rank has sent in all its groups.
  comm::Traffic Sent() const {
    comm::Traffic sum;
    for (const comm::Communicator* group : {grid_.tp.get(), grid_.cp.get(), grid_.attn_tp.get()}) {
      for (size_t c = 0; c < comm::kNumCollectives; ++c) {
        sum.elements[c] += group->traffic().elements[c];
        sum.calls[c] += group->traffic().calls[c];
      }
    }
    return sum;
  }

  Matrix Zeros(int64_t rows, int64_t cols) const {
    const MatrixF m(context().workspace->Floats(rows * cols), rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) m.data[i] = 0.0f;
    return m;
  }

 private:
  KernelRunner runner_{1};
  comm::ProcessGrid grid_;
  parallel::ParallelContext parallel_;
};

}  // namespace perigee::test
