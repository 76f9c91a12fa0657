#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Device memory and error checks for the standalone CUDA programs.
namespace perigee::tests {

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

// An allocation of `count` elements, all bits set: NaN as a float.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    Check(cudaMalloc(&data_, (count + 1) * sizeof(T)), "cudaMalloc");
    Poison();
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { Put(host); }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void Poison() { Check(cudaMemset(data_, 0xFF, count_ * sizeof(T)), "cudaMemset"); }
  void Put(const std::vector<T>& host) {
    Check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
          "copy to the device");
  }
  std::vector<T> Get() const {
    std::vector<T> host(count_);
    Check(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
    return host;
  }
  T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// [rows, columns] floats as bfloat16 rows of `stride` elements; NaN between.
inline std::vector<__nv_bfloat16> ToBf16(const std::vector<float>& x, size_t columns, size_t stride) {
  const size_t rows = columns == 0 ? 0 : x.size() / columns;
  std::vector<__nv_bfloat16> y(rows * stride, __float2bfloat16(NAN));
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) y[r * stride + c] = __float2bfloat16(x[r * columns + c]);
  }
  return y;
}

inline std::vector<float> Strided(const std::vector<float>& x, size_t columns, size_t stride) {
  const size_t rows = x.size() / columns;
  std::vector<float> y(rows * stride, NAN);
  for (size_t r = 0; r < rows; ++r) std::copy_n(&x[r * columns], columns, &y[r * stride]);
  return y;
}

}  // namespace perigee::tests
