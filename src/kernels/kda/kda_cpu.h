#pragma once

#include <cstdint>
#include <span>

#include "kernels/kda/kda.h"
#include "kernels/kda/kda_summary.h"

// The CPU's forms of kda.h. Used by kda.cc and kda_summary.cc only.
namespace perigee::kernels::cpu {

struct KdaSegment {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  float* state = nullptr;  // [num_heads, key_dim, value_dim]
};

// kernels::KdaArgs in floats.
struct KdaArgs {
  int64_t num_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  ConstMatrixF q, k, v, g, beta;
  MatrixF out;
};

void KdaGate(const KernelContext& context, ConstMatrixF z, std::span<const float> dt_bias,
             std::span<const float> neg_exp_a, MatrixF g);
void Sigmoid(const KernelContext& context, ConstMatrixF x, MatrixF y);

// One head of one segment on one thread.

// Floats of scratch that the calls below need.
int64_t KdaChunkScratchFloats(int64_t key_dim, int64_t value_dim);
int64_t KdaDecodeScratchFloats(int64_t key_dim);
int64_t KdaSummaryScratchFloats(int64_t key_dim, int64_t value_dim);
int64_t KdaFoldScratchFloats(int64_t key_dim, int64_t value_dim);

void KdaPrefillHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch);
void KdaDecodeHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch);
void KdaSummaryHead(const KdaSummaryArgs& args, const KdaSummarySegment& segment, int64_t head,
                    float* scratch);
void KdaFoldHead(const KdaFoldArgs& args, const KdaFoldChain& chain, int64_t head, float* scratch);

}  // namespace perigee::kernels::cpu
