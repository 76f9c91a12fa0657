#include "base/check.h"
#include "tensor/device_memory.h"

namespace perigee::device_memory {
namespace {

[[noreturn]] void NoDevice() {
  PERIGEE_CHECK_MSG(false, "memory of a device in a build without CUDA");
  __builtin_unreachable();
}

}  // namespace

Status Open(int) {
  return InvalidArgument("device cuda: this program was built without CUDA; accepted: cpu");
}

std::string Name() {
  NoDevice();
}
Room Ask() {
  NoDevice();
}
void* Allocate(size_t) {
  NoDevice();
}
void Free(void*) {
  NoDevice();
}
void* AllocatePinned(size_t) {
  NoDevice();
}
void FreePinned(void*) {
  NoDevice();
}
Stream NewStream() {
  NoDevice();
}
void DeleteStream(Stream) {
  NoDevice();
}
void Wait(Stream) {
  NoDevice();
}
void CopyToDevice(void*, const void*, size_t, Stream) {
  NoDevice();
}
void CopyToHost(void*, const void*, size_t, Stream) {
  NoDevice();
}
void Zero(void*, size_t, Stream) {
  NoDevice();
}
void Fill(void*, uint8_t, size_t, Stream) {
  NoDevice();
}
void Copy(void*, const void*, size_t, Stream) {
  NoDevice();
}

}  // namespace perigee::device_memory
