#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/dtype.h"

namespace perigee::test {

// Elements in device memory. Made with every bit set, which is NaN as a float and -1 as an integer, so that
// what a kernel leaves out shows.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    PERIGEE_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), Bytes() + 256) == cudaSuccess);
    Poison();
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(static_cast<int64_t>(host.size())) {
    Put(host);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void Poison() { PERIGEE_CHECK(cudaMemset(data_, 0xFF, Bytes()) == cudaSuccess); }
  void Put(const std::vector<T>& host) {
    PERIGEE_CHECK(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice) ==
                  cudaSuccess);
  }
  std::vector<T> Get() const {
    std::vector<T> host(static_cast<size_t>(count_));
    PERIGEE_CHECK(cudaMemcpy(host.data(), data_, Bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return host;
  }
  T* data() const { return data_; }
  int64_t size() const { return count_; }

 private:
  size_t Bytes() const { return static_cast<size_t>(count_) * sizeof(T); }

  T* data_ = nullptr;
  int64_t count_;
};

inline __nv_bfloat16 ToBf16(double x) {
  return __nv_bfloat16_raw{FloatToBFloat16(static_cast<float>(x))};
}

inline double FromBf16(__nv_bfloat16 b) {
  return BFloat16ToFloat(static_cast<__nv_bfloat16_raw>(b).x);
}

template <typename Values>
std::vector<__nv_bfloat16> AllToBf16(const Values& values) {
  std::vector<__nv_bfloat16> out;
  out.reserve(values.size());
  for (const auto x : values) out.push_back(ToBf16(x));
  return out;
}

inline std::vector<double> AllFromBf16(const std::vector<__nv_bfloat16>& values) {
  std::vector<double> out;
  out.reserve(values.size());
  for (const __nv_bfloat16 x : values) out.push_back(FromBf16(x));
  return out;
}

}  // namespace perigee::test
