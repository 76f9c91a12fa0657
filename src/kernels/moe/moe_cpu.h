#pragma once

#include <cstdint>
#include <span>

#include "kernels/moe/moe.h"

// The CPU's forms of moe.h, used by moe.cc only, and their pieces that run on one thread.
namespace perigee::kernels::cpu {

void RouteTopK(const KernelContext& context, ConstMatrixF logits, std::span<const float> bias,
               const RouterOptions& options, const Routing& routing);
void MoeForward(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                ConstMatrixF x, MatrixF y);

// The scores of one row's logits, sigmoid.
void MoeScores(const float* logits, int64_t experts, float* scores);

// y [rows, panels [begin, end) of w] = x w^T.
void MoePanels(ConstMatrixF x, const PackedWeight& w, int64_t begin, int64_t end, MatrixF y, float* wide);

// act[r, i] = silu(gate_up[r, i]) * gate_up[r, width + i] * weight[r]; weight may be null (1). gate_up [rows,
// 2 width].
void MoeActivation(ConstMatrixF gate_up, const float* weight, MatrixF act);

// sums[index[i], part] += act[i] down^T over part's inputs, for panels [begin, end). A row of sums is `parts`
// runs of (end - begin) * 16 floats. index null: row i itself.
void MoeAddDown(ConstMatrixF act, const MlpWeights& mlp, int64_t begin, int64_t end, const int32_t* index,
                int64_t parts, float* sums, float* wide);

// y[r, 0, cols) = the parts of row r added in a binary tree of neighbours (sums are used up).
void MoeTree(float* sums, int64_t rows, int64_t parts, int64_t width, int64_t cols, MatrixF y);

}  // namespace perigee::kernels::cpu
