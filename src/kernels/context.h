#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/matrix.h"
#include "tensor/step_memory.h"

namespace perigee::kernels {

// Scratch memory of one rank's step: a stack of blocks that are handed out and taken back in order, kept
// between steps, so that a steady state allocates nothing. One user thread (the rank's); the pieces may be
// written by the pool. On a device a piece is reused in the order of the rank's stream.
class Workspace {
 public:
  // reserve: bytes of the first block, held from the start: what was planned for the largest step
  // (WorkspaceTally), which allocates nothing more as long as the plan is right.
  explicit Workspace(Device device = Device::kCpu, size_t reserve = 0, MemoryAccount account = {});

  // Uninitialised room, valid until the enclosing Scope ends; 64-byte aligned, 256 on a device.
  void* Bytes(size_t bytes) { return Take(bytes); }
  float* Floats(int64_t count);
  int32_t* Ints(int64_t count);

  // Everything taken after construction is given back at the end of the scope.
  class Scope {
   public:
    explicit Scope(Workspace& workspace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    size_t used_;
    size_t taken_;
  };

  // Bytes held, in use or not.
  size_t BytesHeld() const;
  // The most that was ever taken at one time.
  size_t peak_taken() const { return peak_taken_; }

 private:
  void* Take(size_t bytes);

  struct Block {
    Buffer memory;
    size_t used = 0;
  };
  std::vector<Block> blocks_;
  size_t current_ = 0;
  size_t taken_ = 0;
  size_t peak_taken_ = 0;
  Device device_;
  MemoryAccount account_;
};

// Counts what a step of the CPU would take from a Workspace without running it: the same calls in the same
// order, with scopes. Pure arithmetic. A kernel that takes room has a Tally function beside it, which gives
// an upper bound over all steps of up to the rows that it is told; layers/tally.h does it for the layers.
class WorkspaceTally {
 public:
  // threads: of the rank's pool.
  explicit WorkspaceTally(int threads) : threads_(threads) {}

  void Floats(int64_t count);
  // As ForTasks takes: a slot a running task.
  void Tasks(int64_t tasks, int64_t scratch_floats);
  int threads() const { return threads_; }
  uint64_t peak_bytes() const { return peak_; }

  class Scope {
   public:
    explicit Scope(WorkspaceTally& tally) : tally_(tally), taken_(tally.taken_) {}
    ~Scope() { tally_.taken_ = taken_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WorkspaceTally& tally_;
    uint64_t taken_;
  };

 private:
  int threads_;
  uint64_t taken_ = 0;
  uint64_t peak_ = 0;
};

namespace cuda {
class Library;
}

// What every kernel call gets: where to run and where to put scratch. Knows no rank.
struct KernelContext {
  ThreadPool* pool = nullptr;
  Workspace* workspace = nullptr;  // on the device
  Device device = Device::kCpu;
  DType activations = DType::kF32;  // of rows between kernels: F32 on the CPU, BF16 on CUDA
  // Of a device other than the CPU only.
  Stream stream = {};
  StepMemory* step = nullptr;
  cuda::Library* handles = nullptr;  // cuBLASLt handle and its cache of algorithms
  // Of a step that was recorded for more rows than there may be: how many there are, in device memory. Rows
  // from there on are padding, which no expert is read for. Null: all rows are real.
  const int32_t* valid_rows = nullptr;

  // The array where kernels read it, copied to the device once if there is one (StepMemory).
  template <typename T>
  StepSpan<T> Mirror(const std::vector<T>& host) const {
    return step == nullptr ? StepSpan<T>(host) : step->Mirror(host);
  }
  // Uninitialised rows in the workspace, of activations or of another type.
  Matrix Room(int64_t rows, int64_t cols) const { return Room(rows, cols, activations); }
  Matrix Room(int64_t rows, int64_t cols, DType dtype) const;
};

// Runs body(task, scratch) for every task in [0, tasks), each exactly once, on the context's pool; `scratch`
// is room for `scratch_floats` floats (uninitialised, 64-byte aligned) that no other running body shares.
void ForTasks(const KernelContext& context, int64_t tasks, int64_t scratch_floats,
              const std::function<void(int64_t task, float* scratch)>& body);

}  // namespace perigee::kernels
