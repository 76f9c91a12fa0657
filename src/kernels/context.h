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
  // reserve: bytes of the first block, held from the start.
  explicit Workspace(Device device = Device::kCpu, size_t reserve = 0);

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
  };

  // Bytes held, in use or not.
  size_t BytesHeld() const;

 private:
  void* Take(size_t bytes);

  struct Block {
    Buffer memory;
    size_t used = 0;
  };
  std::vector<Block> blocks_;
  size_t current_ = 0;
  Device device_;
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
  cuda::Library* library = nullptr;  // cuBLASLt handle and its cache of algorithms

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
