#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace perigee {

// An array of a step's metadata: the host made it, and where kernels run on a device it may have been copied
// there before the step (StepMemory). Kernels of the CPU read `host`; those of a device read `device`, and
// copy the array themselves where nobody did. Launch sizes come from `host` alone. A view.
template <typename T>
struct StepSpan {
  std::span<const T> host;
  const T* device = nullptr;

  StepSpan() = default;
  StepSpan(std::span<const T> h, const T* d = nullptr) : host(h), device(d) {}
  StepSpan(std::span<T> h) : host(h) {}
  StepSpan(const std::vector<T>& h) : host(h) {}

  int64_t size() const { return static_cast<int64_t>(host.size()); }
  bool empty() const { return host.empty(); }
};

}  // namespace perigee
