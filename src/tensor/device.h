#pragma once

#include <cstdint>
#include <string_view>

namespace perigee {

// Where memory lies and where kernels run. Every rank has one; nothing in the program has a current one.
enum class Device : uint8_t { kCpu, kCuda };

constexpr std::string_view DeviceName(Device device) {
  return device == Device::kCpu ? "cpu" : "cuda";
}

// An order of work on a device: what is handed to one stream runs in that order. Empty on the CPU, where a
// call returns when its work is done. Owned by the rank's worker; this is a handle.
struct Stream {
  void* handle = nullptr;  // cudaStream_t
};

}  // namespace perigee
