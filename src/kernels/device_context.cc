#include "kernels/device_context.h"

#include "base/check.h"
#include "tensor/device_memory.h"

namespace perigee::kernels {

DeviceContext::DeviceContext(Device device, ThreadPool& pool, size_t scratch_bytes, MemoryAccount account)
    : device_(device),
      stream_(device == Device::kCpu ? Stream{} : device_memory::NewStream()),
      workspace_(device, device == Device::kCpu || scratch_bytes > 0 ? scratch_bytes : kScratchBytes,
                 account),
      step_(device, stream_) {
  context_ = {.pool = &pool, .workspace = &workspace_};
  if (device == Device::kCpu) return;
  library_ = cuda::NewLibrary();
  context_.device = device;
  context_.activations = DType::kBF16;
  context_.stream = stream_;
  context_.step = &step_;
  context_.handles = library_.get();
}

DeviceContext::~DeviceContext() {
  if (device_ == Device::kCpu) return;
  device_memory::Wait(stream_);
  device_memory::DeleteStream(stream_);
}

void DeviceContext::BeginStep() {
  if (device_ == Device::kCpu) return;
  device_memory::Wait(stream_);
  step_.Begin();
}

ConstMatrixF OnHost(const KernelContext& context, ConstMatrix rows) {
  if (context.device == Device::kCpu) return rows.As<float>();
  PERIGEE_CHECK(rows.stride == rows.cols && rows.dtype == DType::kF32);
  const size_t bytes = static_cast<size_t>(rows.rows * rows.cols) * sizeof(float);
  auto* data = static_cast<float*>(context.step->Landing(bytes));
  device_memory::CopyToHost(data, rows.data, bytes, context.stream);
  device_memory::Wait(context.stream);
  return {data, rows.rows, rows.cols};
}

}  // namespace perigee::kernels
