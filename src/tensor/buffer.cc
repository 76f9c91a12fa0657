#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "tensor/device_memory.h"

namespace perigee {
namespace {

void* Allocate(size_t bytes, Device device) {
  if (device == Device::kCuda) return device_memory::Allocate(bytes);
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PERIGEE_CHECK_MSG(p != MAP_FAILED, StrCat("cannot reserve ", HumanBytes(bytes)));
  return p;
}

}  // namespace

Buffer::Buffer(size_t bytes, Device device, MemoryAccount account)
    : bytes_(bytes), device_(device), account_(account) {
  if (bytes == 0) return;
  data_ = Allocate(bytes, device);
  account_.Add(bytes);
}

Buffer Buffer::Of(const void* host, size_t bytes, Device device, MemoryAccount account) {
  Buffer buffer(bytes, device, account);
  if (bytes == 0) return buffer;
  if (device == Device::kCpu) {
    std::memcpy(buffer.data_, host, bytes);
  } else {
    device_memory::CopyToDevice(buffer.data_, host, bytes, {});
    device_memory::Wait({});
  }
  return buffer;
}

void Buffer::Release() {
  if (data_ == nullptr) return;
  account_.Remove(bytes_);
  if (device_ == Device::kCpu) {
    munmap(data_, bytes_);
  } else {
    device_memory::Free(data_);
  }
}

Buffer::~Buffer() {
  Release();
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      account_(other.account_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
    account_ = other.account_;
  }
  return *this;
}

void Buffer::Fill(size_t offset, size_t bytes, uint8_t byte, Stream stream) {
  PERIGEE_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  if (device_ == Device::kCpu) {
    std::memset(As<std::byte>() + offset, byte, bytes);
  } else {
    device_memory::Fill(As<std::byte>() + offset, byte, bytes, stream);
  }
}

void Buffer::CopyWithin(size_t from, size_t to, size_t bytes, Stream stream) {
  PERIGEE_CHECK(from <= bytes_ && bytes <= bytes_ - from && to <= bytes_ && bytes <= bytes_ - to);
  if (device_ == Device::kCpu) {
    std::memcpy(As<std::byte>() + to, As<std::byte>() + from, bytes);
  } else {
    device_memory::Copy(As<std::byte>() + to, As<std::byte>() + from, bytes, stream);
  }
}

}  // namespace perigee
