#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace perigee::kernels {

// Scratch memory of one rank's step: a stack of blocks that are handed out and taken back in order, kept
// between steps, so that a steady state allocates nothing. One user thread (the rank's); the pieces may be
// written by the pool.
class Workspace {
 public:
  // Uninitialised room for `count` floats, 64-byte aligned, valid until the enclosing Scope ends.
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
};

// What every kernel call gets: where to run and where to put scratch. Knows no rank.
struct KernelContext {
  ThreadPool* pool = nullptr;
  Workspace* workspace = nullptr;
};

// Runs body(task, scratch) for every task in [0, tasks), each exactly once, on the context's pool; `scratch`
// is room for `scratch_floats` floats (uninitialised, 64-byte aligned) that no other running body shares.
void ForTasks(const KernelContext& context, int64_t tasks, int64_t scratch_floats,
              const std::function<void(int64_t task, float* scratch)>& body);

}  // namespace perigee::kernels
