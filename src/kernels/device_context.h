#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "kernels/context.h"
#include "kernels/cuda_library.h"
#include "tensor/device.h"
#include "tensor/step_memory.h"

namespace perigee::kernels {

// All that a rank's kernels run on: its scratch memory and, on a device other than the CPU, a stream, the
// memory of a step's metadata and the libraries. The device is open on the constructing thread. One thread
// uses it.
class DeviceContext {
 public:
  // Held from the start on a device unless a plan says more: a step of the largest model in its usual chunks
  // needs no more. What a library allocates by itself (handles, code) and the metadata of steps come on top,
  // some hundred MiB that the memory plan leaves to the part that it does not claim.
  static constexpr size_t kScratchBytes = size_t{4} << 30;

  // scratch_bytes: held from the start; 0: kScratchBytes on a device, and on the CPU what is used. Counted in
  // `account`.
  DeviceContext(Device device, ThreadPool& pool, size_t scratch_bytes = 0, MemoryAccount account = {});
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const KernelContext& context() const { return context_; }
  // Before a step: the one before has ended, and its metadata goes.
  void BeginStep();

 private:
  Device device_;
  Stream stream_;
  Workspace workspace_;
  StepMemory step_;
  cuda::LibraryPtr library_;
  KernelContext context_;
};

// The rows on the host when the call returns, valid until the next call. Of F32 rows without gaps.
ConstMatrixF OnHost(const KernelContext& context, ConstMatrix rows);

}  // namespace perigee::kernels
