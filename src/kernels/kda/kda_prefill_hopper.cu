#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kda/kda_prefill_hopper.h"

namespace perigee::kernels {
namespace {

using kda_hopper::kChunk;
using kda_hopper::kWidth;

constexpr int64_t kMaxChunks = 65535;  // of a pass: one dimension of a grid

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

// Whether the chains leave multiprocessors free for the factors of the next pass: one block fills one.
bool LeavesRoom(const KdaCudaPrefillArgs& a) {
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return false;
  }
  int64_t chains = 0;
  for (const KdaCudaRun& run : a.runs) chains += run.q_len > 0 ? 2 * a.num_heads : 0;
  return chains < multiprocessors;
}

// One pass after the other.
cudaError_t RunInTurn(const KdaCudaPrefillArgs& args, int64_t chunks, cudaStream_t stream) {
  const auto pass = std::make_unique<kda_hopper::Pass>();
  Passes passes(args, chunks);
  while (passes.Next(*pass)) {
    cudaError_t error = kda_hopper::LaunchPrepare(args, *pass, stream);
    if (error == cudaSuccess) error = kda_hopper::LaunchChain(args, *pass, nullptr, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// The chains of all passes on `stream`; the factors of the next pass on the side, in the other half of the
// workspace, on the multiprocessors that the chain leaves free. They start once the chain has its own, which
// they would fill otherwise; the chain before, which read the half that they replace, is over by then.
cudaError_t RunOverlapped(const KdaCudaPrefillArgs& args, int64_t chunks, cudaStream_t stream) {
  const KdaCudaOverlap& o = *args.overlap;
  const auto pass = std::make_unique<kda_hopper::Pass>(), next = std::make_unique<kda_hopper::Pass>();
  Passes passes(args, chunks);
  KdaCudaPrefillArgs halves[2] = {args, args};
  halves[1].workspace =
      static_cast<char*>(args.workspace) + KdaCudaPrefillWorkspaceBytes(args.num_heads, chunks);
  cudaError_t error = cudaSuccess;
  const auto run = [&](cudaError_t result) {
    if (error == cudaSuccess) error = result;
  };
  const auto prepare = [&](int half, const kda_hopper::Pass& what, cudaEvent_t after) {
    run(cudaStreamWaitEvent(o.side, after));
    run(kda_hopper::LaunchPrepare(halves[half], what, o.side));
    run(cudaEventRecord(o.prepared, o.side));
  };
  if (!passes.Next(*pass)) return cudaSuccess;
  run(cudaEventRecord(o.begun, stream));
  prepare(0, *pass, o.begun);
  for (int half = 0;; half ^= 1) {
    run(cudaStreamWaitEvent(stream, o.prepared));
    run(cudaEventRecord(o.chained, stream));  // the chain before
    run(cudaStreamWaitEvent(o.side, o.chained));
    run(kda_hopper::LaunchChain(halves[half], *pass, o.chaining, stream));
    if (error != cudaSuccess || !passes.Next(*next)) return error;
    prepare(half ^ 1, *next, o.chaining);
    *pass = *next;
  }
}

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
  if (args.overlap == nullptr || chunks < 2 || !LeavesRoom(args))
    return RunInTurn(args, std::min(chunks, kMaxChunks), stream);
  return RunOverlapped(args, std::min(chunks / 2, kMaxChunks), stream);
}

cudaError_t KdaCudaCreateOverlap(KdaCudaOverlap* overlap) {
  cudaError_t error = cudaStreamCreateWithFlags(&overlap->side, cudaStreamNonBlocking);
  for (cudaEvent_t* event : {&overlap->begun, &overlap->prepared, &overlap->chaining, &overlap->chained}) {
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  }
  if (error != cudaSuccess) KdaCudaDestroyOverlap(overlap);
  return error;
}

void KdaCudaDestroyOverlap(KdaCudaOverlap* overlap) {
  if (overlap->side != nullptr) cudaStreamDestroy(overlap->side);
  for (cudaEvent_t event : {overlap->begun, overlap->prepared, overlap->chaining, overlap->chained}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  *overlap = {};
}

}  // namespace perigee::kernels
