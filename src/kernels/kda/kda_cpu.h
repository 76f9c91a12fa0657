#pragma once

#include <cstdint>

#include "kernels/kda/kda.h"

// One head of one segment on one CPU thread. Used by kda.cc only.
namespace perigee::kernels {

// Floats of scratch that the calls below need.
int64_t KdaChunkScratchFloats(int64_t key_dim, int64_t value_dim);
int64_t KdaDecodeScratchFloats(int64_t key_dim);

void KdaPrefillHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch);
void KdaDecodeHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch);

}  // namespace perigee::kernels
