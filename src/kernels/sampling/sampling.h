#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// lse[r] = ln sum_v exp(logits[r, v]). The vocabulary is summed in 8 fixed parts (part p: columns floor(pV/8)
// to floor((p+1)V/8)), each as (maximum, sum of exponentials) with a fixed lane structure, merged in one
// binary tree, so that the value does not depend on threads, rows or on how the vocabulary is split over
// ranks. Finite for finite logits.
void LogSumExp(const KernelContext& context, ConstMatrixF logits, std::span<float> lse);

// sum_v exp(x_v) as exp(max) * sum; (-inf, 0) when every term is zero. NaN terms are in the sum only.
struct ExpSum {
  float max = -__builtin_inff();
  float sum = 0;
};

// What LogSumExp is made of, for a vocabulary that is spread over ranks: per row the sum over columns
// [bounds.front(), bounds.back()) of logits, in the parts that bounds tells (a power of two), merged in a
// binary tree. sums [rows].
void ExpSums(const KernelContext& context, ConstMatrixF logits, std::span<const int64_t> bounds,
             std::span<ExpSum> sums);
// The sum of two neighbours of the tree; and the logarithm at its root.
ExpSum MergeExpSums(ExpSum left, ExpSum right);
float LogOf(ExpSum total);

struct TopLogit {
  int32_t id = 0;
  float logit = 0;
};

// The k largest logits of one row, descending; equal values in ascending id order. k is cut to the row's
// length.
std::vector<TopLogit> TopK(std::span<const float> logits, int32_t k);

// A uniform number in [0, 1) from a counter-based generator: depends on its three arguments only, so neither
// batch, ranks nor preemption change it.
double UniformFromKey(uint64_t seed, uint32_t choice, uint64_t token_index);

struct SamplingChoice {
  float temperature = 1.0f;  // >= 0; 0 takes the largest logit (lowest id among equals)
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0f;        // smallest set of most probable tokens whose sum reaches top_p, at least one
};

// The chosen id: softmax(logits / temperature), cut to the top_k most probable, then to top_p of what is
// left, drawn with the uniform number u in descending order of probability (ties: ascending id).
int32_t SampleToken(std::span<const float> logits, const SamplingChoice& choice, double u);

}  // namespace perigee::kernels
