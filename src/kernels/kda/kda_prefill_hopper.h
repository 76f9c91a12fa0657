#pragma once

#include <cstdint>

#include "kernels/kda/kda_hopper.h"

// What the two kernels of the 128 x 128 prefill form share. Private to kernels/kda.
namespace perigee::kernels::kda_hopper {

inline constexpr int kChunk = 64;
inline constexpr int kWidth = 128;  // key and value width of a head
inline constexpr int kSlab = 64;    // value channels of one chain

// Factors of one chunk of one head, as the chain kernel wants them in shared memory: 16-bit floats in rows of
// 128 bytes whose 16-byte pieces are permuted by the row (piece ^= row & 7, the 128-byte swizzle of wgmma).
//   decayed keys, decayed queries, keys decayed to the end of the chunk: [2 halves of the channels][64
//   rows][64] solve (I + L)^-1 diag(beta), pairs P: [64][64];   decay of the whole chunk: [128] fp32
inline constexpr int kKeysAt = 0;
inline constexpr int kQueriesAt = 16384;
inline constexpr int kKeysOutAt = 32768;
inline constexpr int kSolveAt = 49152;
inline constexpr int kPairsAt = 57344;
inline constexpr int kDecayAt = 65536;
inline constexpr int kFactorBytes = 65536 + 512;
inline constexpr int kFactorStride = kFactorBytes;

inline constexpr int kMaxRuns = 128;
inline constexpr int kMaxCheckpoints = 256;

// The part of a run that one pass over the workspace handles.
struct Piece {
  int64_t row;         // first row
  int32_t rows;        // > 0
  int32_t chunk;       // first chunk in the workspace
  float* state;        // read and replaced
  int32_t checkpoint;  // first of its checkpoints
  int32_t checkpoint_end;
};

struct Checkpoint {
  float* state;
  int64_t chunks;  // after so many chunks of its piece
};

// One pass, by value in the kernel parameters.
struct Pass {
  Piece pieces[kMaxRuns];
  Checkpoint checkpoints[kMaxCheckpoints];
  int num_pieces;
  int num_chunks;
};

// Both take the workspace of the pass from `args`. `started`, where given, is recorded by the chain once all
// its blocks run.
cudaError_t LaunchPrepare(const KdaCudaPrefillArgs& args, const Pass& pass, cudaStream_t stream);
cudaError_t LaunchChain(const KdaCudaPrefillArgs& args, const Pass& pass, cudaEvent_t started,
                        cudaStream_t stream);

}  // namespace perigee::kernels::kda_hopper
