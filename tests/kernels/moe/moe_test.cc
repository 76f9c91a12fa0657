#include "kernels/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "ref/moe_ref.h"
#include "testing/compare.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/stored_weights.h"
#include "testing/targets.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using test::ForEachTarget;
using test::KernelRunner;
using test::kMoeTolerance;
using test::Near;
using test::PaddedMatrix;
using test::Random;
using test::SameBits;
using test::StoredWeights;
using test::ToDouble;

// One gated MLP as stored, and in the forms of kernel and reference.
class TestMlp {
 public:
  TestMlp(Random& random, DType dtype, int64_t hidden, int64_t width)
      : width_(width),
        gate_(random, dtype, width, hidden, 1.5 / std::sqrt(static_cast<double>(hidden))),
        up_(random, dtype, width, hidden, 1 / std::sqrt(static_cast<double>(hidden))),
        down_(random, dtype, hidden, width, 1 / std::sqrt(static_cast<double>(width))) {}

  // Parts [first, last) of the eight: what one rank of several holds.
  MlpWeights Weights(int64_t first = 0, int64_t last = kSumParts) const {
    std::vector<int64_t> bounds = SumPartBounds(width_);
    const int64_t begin = bounds[first], count = bounds[last] - begin;
    const StoredMatrix gate_up[] = {gate_.matrix().Rows(begin, count), up_.matrix().Rows(begin, count)};
    std::vector<int64_t> own(bounds.begin() + first, bounds.begin() + last + 1);
    for (int64_t& b : own) b -= begin;
    return {.gate_up = PackedWeight::Pack(gate_up),
            .down = PackedWeight::Pack(down_.matrix().Cols(begin, count)),
            .bounds = own};
  }
  ref::Mlp Reference() const {
    return {ToDouble(gate_.values()), ToDouble(up_.values()), ToDouble(down_.values())};
  }

 private:
  int64_t width_;
  StoredWeights gate_, up_, down_;
};

std::vector<double> Row(const std::vector<float>& x, int64_t row, int64_t width) {
  return {x.begin() + row * width, x.begin() + (row + 1) * width};
}

std::vector<float> RunMlp(const MlpWeights& weights, const std::vector<float>& x, int64_t rows,
                          int threads = 2) {
  KernelRunner runner(threads);
  const int64_t hidden = static_cast<int64_t>(x.size()) / rows;
  const PaddedMatrix in(rows, hidden, x);
  PaddedMatrix out(rows, hidden);
  GatedMlp(runner.context(), weights, in.view(), out.view());
  EXPECT_TRUE(out.GapsUntouched());
  return out.values();
}

TEST(GatedMlp, AgainstTheReference) {
  Random random(81);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [rows, hidden, width] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 20, 12}, {5, 64, 48}, {70, 33, 100}, {2, 17, 5}}) {
      const TestMlp mlp(random, dtype, hidden, width);
      const std::vector<float> x = random.Normals(rows * hidden);
      std::vector<double> expected;
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> row = ref::GatedMlp(mlp.Reference(), Row(x, r, hidden));
        expected.insert(expected.end(), row.begin(), row.end());
      }
      ForEachTarget([&](int64_t) {
        EXPECT_TRUE(Near(RunMlp(mlp.Weights(), x, rows), expected, kMoeTolerance))
            << rows << " x " << hidden << ", width " << width;
      });
    }
  }
}

TEST(GatedMlp, PartsOfTwoAndEightRanksAddUpToTheSameBits) {
  Random random(82);
  const TestMlp mlp(random, DType::kBF16, 40, 60);
  const std::vector<float> x = random.Normals(9 * 40);
  const std::vector<float> whole = RunMlp(mlp.Weights(), x, 9);
  for (int64_t ranks : {2, 8}) {
    std::vector<std::vector<float>> parts;
    for (int64_t r = 0; r < ranks; ++r) {
      parts.push_back(RunMlp(mlp.Weights(r * kSumParts / ranks, (r + 1) * kSumParts / ranks), x, 9));
    }
    for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
      for (size_t p = 0; p < parts.size() / 2; ++p) {
        for (size_t i = 0; i < whole.size(); ++i) parts[p][i] = parts[2 * p][i] + parts[2 * p + 1][i];
      }
    }
    EXPECT_TRUE(SameBits(parts[0], whole)) << ranks << " ranks";
  }
}

struct MoeCase {
  DType dtype = DType::kBF16;
  int64_t rows = 1, hidden = 40, width = 24, shared_width = 24, experts = 6, top_k = 2;
};

class MoeProblem {
 public:
  MoeProblem(Random& random, const MoeCase& c) : c_(c) {
    for (int64_t e = 0; e < c.experts; ++e) experts_.emplace_back(random, c.dtype, c.hidden, c.width);
    if (c.shared_width > 0) shared_.emplace_back(random, c.dtype, c.hidden, c.shared_width);
    x_ = random.Normals(c.rows * c.hidden);
    std::vector<int32_t> all(static_cast<size_t>(c.experts));
    for (int64_t r = 0; r < c.rows; ++r) {
      std::iota(all.begin(), all.end(), 0);
      random.Shuffle(all);
      Choose(random, {all.begin(), all.begin() + c.top_k});
    }
  }

  // Routes every row to these experts.
  void RouteAllTo(Random& random, const std::vector<int32_t>& experts) {
    experts_of_rows_.clear();
    weights_of_rows_.clear();
    for (int64_t r = 0; r < c_.rows; ++r) Choose(random, experts);
  }

  MoeWeights Weights(int64_t first = 0, int64_t last = kSumParts) const {
    MoeWeights w;
    w.parts = last - first;
    for (const TestMlp& e : experts_) w.experts.push_back(e.Weights(first, last));
    if (!shared_.empty()) w.shared = shared_[0].Weights(first, last);
    return w;
  }

  std::vector<float> Run(const MoeWeights& weights, int64_t begin, int64_t count, int threads = 2) const {
    KernelRunner runner(threads);
    const PaddedMatrix x(count, c_.hidden, std::span(x_).subspan(begin * c_.hidden, count * c_.hidden));
    PaddedMatrix y(count, c_.hidden);
    const int64_t k = c_.top_k;
    std::vector<int32_t> experts(experts_of_rows_.begin() + begin * k,
                                 experts_of_rows_.begin() + (begin + count) * k);
    std::vector<float> shares(weights_of_rows_.begin() + begin * k,
                              weights_of_rows_.begin() + (begin + count) * k);
    const Routing routing{.top_k = k, .experts = experts, .weights = shares};
    MoeForward(runner.context(), weights, routing, x.view(), y.view());
    EXPECT_TRUE(y.GapsUntouched());
    return y.values();
  }
  std::vector<float> Run(int threads = 2) const { return Run(Weights(), 0, c_.rows, threads); }

  std::vector<double> Expected() const {
    std::vector<ref::Mlp> experts;
    for (const TestMlp& e : experts_) experts.push_back(e.Reference());
    std::vector<double> y;
    for (int64_t r = 0; r < c_.rows; ++r) {
      ref::Choice choice;
      for (int64_t i = r * c_.top_k; i < (r + 1) * c_.top_k; ++i) {
        choice.experts.push_back(experts_of_rows_[i]);
        choice.weights.push_back(weights_of_rows_[i]);
      }
      const std::vector<double> row = ref::Moe(experts, shared_.empty() ? ref::Mlp{} : shared_[0].Reference(),
                                               choice, Row(x_, r, c_.hidden));
      y.insert(y.end(), row.begin(), row.end());
    }
    return y;
  }

 private:
  void Choose(Random& random, std::vector<int32_t> experts) {
    std::sort(experts.begin(), experts.end());
    for (int32_t e : experts) {
      experts_of_rows_.push_back(e);
      weights_of_rows_.push_back(static_cast<float>(random.Uniform(0.05, 2.4)));
    }
  }

  MoeCase c_;
  std::vector<TestMlp> experts_, shared_;
  std::vector<float> x_;
  std::vector<int32_t> experts_of_rows_;  // [rows, top_k]
  std::vector<float> weights_of_rows_;
};

TEST(Moe, AgainstTheReference) {
  Random random(83);
  for (const MoeCase& c : {MoeCase{}, MoeCase{.rows = 129}, MoeCase{.rows = 7, .shared_width = 48},
                           MoeCase{.rows = 3, .width = 5, .shared_width = 3},
                           MoeCase{.rows = 33, .hidden = 51, .width = 20, .experts = 9, .top_k = 9},
                           MoeCase{.dtype = DType::kF32, .rows = 20, .experts = 64, .top_k = 8},
                           MoeCase{.dtype = DType::kF16, .rows = 20, .width = 33, .top_k = 1}}) {
    const MoeProblem problem(random, c);
    const std::vector<double> expected = problem.Expected();
    ForEachTarget([&](int64_t) {
      EXPECT_TRUE(Near(problem.Run(), expected, kMoeTolerance))
          << c.rows << " rows, width " << c.width << ", " << c.top_k << " of " << c.experts;
    });
  }
}

TEST(Moe, NoSharedExpert) {
  Random random(84);
  const MoeProblem problem(random, {.rows = 20, .shared_width = 0});
  EXPECT_TRUE(Near(problem.Run(), problem.Expected(), kMoeTolerance));
}

TEST(Moe, ExpertsWithoutRowsAndAllRowsAtOne) {
  Random random(85);
  MoeProblem problem(random, {.rows = 70});
  problem.RouteAllTo(random, {1, 4});
  EXPECT_TRUE(Near(problem.Run(), problem.Expected(), kMoeTolerance));
  const MoeProblem sparse(random, {.rows = 1, .experts = 64, .top_k = 1});
  EXPECT_TRUE(Near(sparse.Run(), sparse.Expected(), kMoeTolerance));
}

TEST(Moe, BitsDependOnNeitherThreadsNorNeighbours) {
  Random random(86);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const MoeProblem problem(random, {.dtype = dtype, .rows = 67, .hidden = 45, .width = 27, .experts = 5});
    const std::vector<float> all = problem.Run(1);
    for (int threads : {2, 3}) EXPECT_TRUE(SameBits(problem.Run(threads), all)) << threads;
    const MoeWeights weights = problem.Weights();
    for (int64_t r : {0, 1, 32, 66}) {
      EXPECT_TRUE(SameBits(problem.Run(weights, r, 1),
                           std::vector<float>(all.begin() + r * 45, all.begin() + (r + 1) * 45)));
    }
    EXPECT_TRUE(
        SameBits(problem.Run(weights, 10, 20), std::vector<float>(all.begin() + 450, all.begin() + 1350)));
  }
}

TEST(Moe, PartsOfTwoAndEightRanksAddUpToTheSameBits) {
  // Every rank holds its share of each expert's width and of the shared expert's.
  Random random(87);
  const MoeProblem problem(random, {.rows = 30, .width = 40, .shared_width = 80});
  const std::vector<float> whole = problem.Run();
  for (int64_t ranks : {2, 8}) {
    std::vector<std::vector<float>> parts;
    for (int64_t r = 0; r < ranks; ++r) {
      parts.push_back(
          problem.Run(problem.Weights(r * kSumParts / ranks, (r + 1) * kSumParts / ranks), 0, 30));
    }
    for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
      for (size_t p = 0; p < parts.size() / 2; ++p) {
        for (size_t i = 0; i < whole.size(); ++i) parts[p][i] = parts[2 * p][i] + parts[2 * p + 1][i];
      }
    }
    EXPECT_TRUE(SameBits(parts[0], whole)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace perigee::kernels
