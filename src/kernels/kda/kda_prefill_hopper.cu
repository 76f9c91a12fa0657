#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kda/kda_prefill_hopper.h"

namespace perigee::kernels {
namespace {

using kda_hopper::kChunk;
using kda_hopper::kWidth;

bool Aligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

bool Valid(const KdaCudaPrefillArgs& a) {
  if (a.num_heads < 1 || a.num_heads > 32767) return false;
  if (a.key_dim < 1 || a.key_dim > 256 || a.value_dim < 1 || a.value_dim > 256) return false;
  if (a.q == nullptr || a.k == nullptr || a.v == nullptr || a.beta == nullptr || a.out == nullptr)
    return false;
  const KdaCudaDecay& d = a.decay;
  if (d.g == nullptr && (d.z == nullptr || d.dt_bias == nullptr || d.neg_exp_a == nullptr)) return false;
  for (const KdaCudaRun& run : a.runs) {
    if (run.q_begin < 0 || run.q_len < 0 || run.q_len > INT32_MAX || run.state == nullptr) return false;
  }
  const KdaCudaCheckpoint* before = nullptr;
  for (const KdaCudaCheckpoint& c : a.checkpoints) {
    if (c.run < 0 || c.run >= static_cast<int64_t>(a.runs.size()) || c.state == nullptr) return false;
    if (c.rows < kChunk || c.rows % kChunk != 0 || c.rows > a.runs[static_cast<size_t>(c.run)].q_len)
      return false;
    if (before != nullptr && (c.run < before->run || (c.run == before->run && c.rows <= before->rows)))
      return false;
    before = &c;
  }
  return true;
}

// Whether the tensor-core form can read these arguments.
bool Fast(const KdaCudaPrefillArgs& a) {
  if (a.key_dim != kWidth || a.value_dim != kWidth) return false;
  if (!Aligned(a.q, 4) || !Aligned(a.k, 4) || !Aligned(a.v, 16) || !Aligned(a.out, 16)) return false;
  if (a.q_stride % 2 != 0 || a.k_stride % 2 != 0 || a.v_stride % 8 != 0 || a.out_stride % 8 != 0)
    return false;
  const KdaCudaDecay& d = a.decay;
  if (d.g != nullptr) return Aligned(d.g, 8) && d.g_stride % 2 == 0;
  return Aligned(d.z, 4) && d.z_stride % 2 == 0 && Aligned(d.dt_bias, 8);
}

// Cuts the runs into passes that fit the workspace. Every unfinished run gets an equal share of the chunks
// left, so that as many chains as possible go on side by side.
class Passes {
 public:
  Passes(const KdaCudaPrefillArgs& args, int64_t chunks)
      : args_(args), room_(chunks), progress_(args.runs.size()) {
    size_t next = 0;
    for (size_t i = 0; i < progress_.size(); ++i) {
      progress_[i].checkpoint = next;
      while (next < args.checkpoints.size() && args.checkpoints[next].run == static_cast<int64_t>(i)) ++next;
    }
  }

  // Fills the next pass; false when nothing is left.
  bool Next(kda_hopper::Pass& pass) {
    pass.num_pieces = 0;
    pass.num_chunks = 0;
    int checkpoints = 0;
    int64_t active = 0;
    for (size_t i = 0; i < progress_.size(); ++i) active += Left(i) > 0 ? 1 : 0;
    active = std::min<int64_t>(active, kda_hopper::kMaxRuns);
    for (size_t i = 0; i < progress_.size() && pass.num_pieces < kda_hopper::kMaxRuns; ++i) {
      if (Left(i) == 0) continue;
      const int64_t room = room_ - pass.num_chunks;
      if (room == 0) break;
      const int64_t share = std::max<int64_t>(1, room / std::max<int64_t>(1, active--));
      AddPiece(pass, i, std::min(CeilDiv(Left(i)), share), checkpoints);
    }
    return pass.num_pieces > 0;
  }

 private:
  struct Progress {
    int64_t rows = 0;       // done
    size_t checkpoint = 0;  // the next one
  };

  static int64_t CeilDiv(int64_t rows) { return (rows + kChunk - 1) / kChunk; }
  int64_t Left(size_t run) const { return args_.runs[run].q_len - progress_[run].rows; }

  void AddPiece(kda_hopper::Pass& pass, size_t run, int64_t chunks, int& checkpoints) {
    Progress& progress = progress_[run];
    kda_hopper::Piece& piece = pass.pieces[pass.num_pieces];
    piece.checkpoint = checkpoints;
    for (; progress.checkpoint < args_.checkpoints.size(); ++progress.checkpoint) {
      const KdaCudaCheckpoint& c = args_.checkpoints[progress.checkpoint];
      const int64_t at = (c.rows - progress.rows) / kChunk;
      if (c.run != static_cast<int64_t>(run) || at > chunks) break;
      if (checkpoints == kda_hopper::kMaxCheckpoints) {
        chunks = at - 1;  // the rest of the run belongs to a later pass
        break;
      }
      pass.checkpoints[checkpoints++] = {c.state, at};
    }
    piece.checkpoint_end = checkpoints;
    if (chunks == 0) return;
    piece.row = args_.runs[run].q_begin + progress.rows;
    piece.rows = static_cast<int32_t>(std::min(chunks * kChunk, Left(run)));
    piece.chunk = pass.num_chunks;
    piece.state = args_.runs[run].state;
    progress.rows += piece.rows;
    pass.num_chunks += static_cast<int>(chunks);
    ++pass.num_pieces;
  }

  const KdaCudaPrefillArgs& args_;
  const int64_t room_;
  std::vector<Progress> progress_;
};

}  // namespace

size_t KdaCudaPrefillWorkspaceBytes(int num_heads, int64_t chunks) {
  return static_cast<size_t>(num_heads) * static_cast<size_t>(chunks) * kda_hopper::kFactorStride;
}

cudaError_t KdaCudaPrefill(const KdaCudaPrefillArgs& args, cudaStream_t stream) {
  if (!Valid(args)) return cudaErrorInvalidValue;
  if (!Fast(args)) return KdaCudaRecurrent(args, stream);
  if (args.workspace == nullptr || !Aligned(args.workspace, 16)) return cudaErrorInvalidValue;
  const auto chunks =
      static_cast<int64_t>(args.workspace_bytes / KdaCudaPrefillWorkspaceBytes(args.num_heads, 1));
  if (chunks < 1) return cudaErrorInvalidValue;
  const auto pass = std::make_unique<kda_hopper::Pass>();
  Passes passes(args, std::min<int64_t>(chunks, 65535));
  while (passes.Next(*pass)) {
    cudaError_t error = kda_hopper::LaunchPrepare(args, *pass, stream);
    if (error == cudaSuccess) error = kda_hopper::LaunchChain(args, *pass, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace perigee::kernels
