#include "tensor/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/strings.h"
#include "tensor/cuda_check.h"

namespace perigee::device_memory {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSlab = size_t{256} << 20;

// Thousands of weights of a few megabytes each: cut from slabs, since the driver rounds each allocation up
// and takes its time over it. A slab goes back when nothing of it is in use.
class Slabs {
 public:
  void* Allocate(size_t bytes) {
    bytes = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    int device = 0;
    PERIGEE_CUDA_CHECK(cudaGetDevice(&device));
    const std::lock_guard lock(mutex_);
    for (auto& [begin, slab] : slabs_) {
      if (slab.device == device && slab.used + bytes <= slab.size) return Cut(begin, slab, bytes);
    }
    const size_t size = bytes > kSlab / 8 ? bytes : kSlab;
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, size);
    PERIGEE_CHECK_MSG(error == cudaSuccess, StrCat("cannot allocate ", HumanBytes(size),
                                                   " on the device: ", cudaGetErrorString(error)));
    Slab& slab = slabs_[static_cast<std::byte*>(data)];
    slab = {.size = size, .device = device};
    return Cut(static_cast<std::byte*>(data), slab, bytes);
  }

  void Free(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = std::prev(slabs_.upper_bound(static_cast<std::byte*>(data)));
    if (--found->second.pieces > 0) return;
    // Synchronises with the device: work on the memory has ended.
    PERIGEE_CUDA_CHECK(cudaFree(found->first));
    slabs_.erase(found);
  }

 private:
  struct Slab {
    size_t size = 0;
    size_t used = 0;
    int64_t pieces = 0;
    int device = 0;
  };

  static void* Cut(std::byte* begin, Slab& slab, size_t bytes) {
    void* piece = begin + slab.used;
    slab.used += bytes;
    ++slab.pieces;
    return piece;
  }

  std::mutex mutex_;
  std::map<std::byte*, Slab> slabs_;  // by first address
};

Slabs& AllSlabs() {
  static Slabs* slabs = new Slabs;
  return *slabs;
}

cudaStream_t Raw(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace

Status Open(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return InvalidArgument(
        StrCat("device cuda: no GPU can be used (", cudaGetErrorString(error), "); accepted: cpu"));
  }
  if (index >= count) {
    return InvalidArgument(
        StrCat("device cuda: rank ", index, " finds ", count, " GPUs; a rank needs one of its own"));
  }
  cudaDeviceProp properties;
  PERIGEE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  if (properties.major != 9 || properties.minor != 0) {
    return InvalidArgument(StrCat("device cuda: ", properties.name, " has compute capability ",
                                  properties.major, ".", properties.minor, "; accepted: 9.0"));
  }
  PERIGEE_CUDA_CHECK(cudaSetDevice(index));
  return Status::Ok();
}

std::string Name() {
  int index = 0;
  PERIGEE_CUDA_CHECK(cudaGetDevice(&index));
  cudaDeviceProp properties;
  PERIGEE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

Room Ask() {
  Room room;
  PERIGEE_CUDA_CHECK(cudaMemGetInfo(&room.free, &room.total));
  return room;
}

void* Allocate(size_t bytes) {
  void* data = AllSlabs().Allocate(bytes);
  PERIGEE_CUDA_CHECK(cudaMemset(data, 0, bytes));
  PERIGEE_CUDA_CHECK(cudaDeviceSynchronize());
  return data;
}

void Free(void* data) {
  AllSlabs().Free(data);
}

void* AllocatePinned(size_t bytes) {
  void* data = nullptr;
  PERIGEE_CUDA_CHECK(cudaMallocHost(&data, bytes));
  return data;
}

void FreePinned(void* data) {
  PERIGEE_CUDA_CHECK(cudaFreeHost(data));
}

Stream NewStream() {
  cudaStream_t stream = nullptr;
  PERIGEE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream};
}

void DeleteStream(Stream stream) {
  PERIGEE_CUDA_CHECK(cudaStreamDestroy(Raw(stream)));
}

void Wait(Stream stream) {
  PERIGEE_CUDA_CHECK(cudaStreamSynchronize(Raw(stream)));
}

void CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  PERIGEE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Raw(stream)));
}

void CopyToHost(void* to, const void* from, size_t bytes, Stream stream) {
  PERIGEE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, Raw(stream)));
}

void Zero(void* data, size_t bytes, Stream stream) {
  PERIGEE_CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, Raw(stream)));
}

void Fill(void* data, uint8_t byte, size_t bytes, Stream stream) {
  PERIGEE_CUDA_CHECK(cudaMemsetAsync(data, byte, bytes, Raw(stream)));
}

void Copy(void* to, const void* from, size_t bytes, Stream stream) {
  PERIGEE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, Raw(stream)));
}

}  // namespace perigee::device_memory
