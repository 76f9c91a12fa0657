#pragma once

#include <cstdint>

#include "kernels/kda/kda.h"
#include "kernels/kda/kda_summary.h"

// One head of one segment on one CPU thread. Used by kda.cc and kda_summary.cc only.
namespace perigee::kernels {

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

}  // namespace perigee::kernels
