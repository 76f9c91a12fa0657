#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/moe_rows_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/gemm/panel-inl.h"
#include "kernels/moe/moe_cpu.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

void Scores(const float* logits, int64_t experts, float* scores) {
  for (int64_t e = 0; e < experts; e += static_cast<int64_t>(kVecLanes)) {
    const auto left = static_cast<size_t>(experts - e);
    StoreUpTo(Sigmoid(LoadUpTo(logits + e, left)), scores + e, left);
  }
}

void Panels(const ConstMatrixF& x, const PackedWeight& w, int64_t begin, int64_t end, const MatrixF& y,
            float* wide) {
  const int64_t cols = std::min(end * 16, w.out()) - begin * 16;
  WithPanels(w, begin, end, 0, w.in(), x.rows, wide, [&](const auto& b) {
    MatMul<false>(x.data, x.stride, x.rows, b, w.in(), y.data + begin * 16, y.stride, cols);
  });
}

void Activation(const ConstMatrixF& gate_up, const float* weight, const MatrixF& act) {
  for (int64_t r = 0; r < act.rows; ++r) {
    const float* gate = gate_up.Row(r);
    const auto w = hn::Set(D(), weight == nullptr ? 1.0f : weight[r]);
    for (int64_t i = 0; i < act.cols; i += static_cast<int64_t>(kVecLanes)) {
      const auto left = static_cast<size_t>(act.cols - i);
      const auto gated = hn::Mul(Silu(LoadUpTo(gate + i, left)), LoadUpTo(gate + act.cols + i, left));
      StoreUpTo(weight == nullptr ? gated : hn::Mul(gated, w), act.Row(r) + i, left);
    }
  }
}

void AddDown(const ConstMatrixF& act, const MlpWeights& mlp, int64_t begin, int64_t end, const int32_t* index,
             int64_t parts, float* sums, float* wide) {
  const int64_t width = (end - begin) * 16;
  for (int64_t p = 0; p + 1 < static_cast<int64_t>(mlp.bounds.size()); ++p) {
    const int64_t from = mlp.bounds[static_cast<size_t>(p)];
    const int64_t count = mlp.bounds[static_cast<size_t>(p) + 1] - from;
    float* part = sums + (mlp.first_part + p) * width;
    WithPanels(mlp.down, begin, end, from, count, act.rows, wide, [&](const auto& b) {
      if (index == nullptr) {
        MatMul<true>(act.data + from, act.stride, act.rows, b, count, StridedRows{part, parts * width},
                     width);
      } else {
        MatMul<true>(act.data + from, act.stride, act.rows, b, count, IndexedRows{part, parts * width, index},
                     width);
      }
    });
  }
}

void Tree(float* sums, int64_t rows, int64_t parts, int64_t width, int64_t cols, const MatrixF& y) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = sums + r * parts * width;
    for (int64_t step = 1; step < parts; step *= 2) {
      for (int64_t p = 0; p < parts; p += 2 * step) AddTile(row + (p + step) * width, row + p * width, width);
    }
    std::copy_n(row, cols, y.Row(r));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels::cpu {

HWY_EXPORT(Scores);
HWY_EXPORT(Panels);
HWY_EXPORT(Activation);
HWY_EXPORT(AddDown);
HWY_EXPORT(Tree);

void MoeScores(const float* logits, int64_t experts, float* scores) {
  HWY_DYNAMIC_DISPATCH(Scores)(logits, experts, scores);
}

void MoePanels(ConstMatrixF x, const PackedWeight& w, int64_t begin, int64_t end, MatrixF y, float* wide) {
  HWY_DYNAMIC_DISPATCH(Panels)(x, w, begin, end, y, wide);
}

void MoeActivation(ConstMatrixF gate_up, const float* weight, MatrixF act) {
  HWY_DYNAMIC_DISPATCH(Activation)(gate_up, weight, act);
}

void MoeAddDown(ConstMatrixF act, const MlpWeights& mlp, int64_t begin, int64_t end, const int32_t* index,
                int64_t parts, float* sums, float* wide) {
  HWY_DYNAMIC_DISPATCH(AddDown)(act, mlp, begin, end, index, parts, sums, wide);
}

void MoeTree(float* sums, int64_t rows, int64_t parts, int64_t width, int64_t cols, MatrixF y) {
  HWY_DYNAMIC_DISPATCH(Tree)(sums, rows, parts, width, cols, y);
}

}  // namespace perigee::kernels::cpu
#endif  // HWY_ONCE
