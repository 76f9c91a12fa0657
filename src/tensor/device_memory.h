#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "tensor/device.h"

// Memory of a device other than the CPU: device_memory_cuda.cc in a build with CUDA, no_cuda.cc in one
// without, where the device cannot be opened and nothing else here is ever reached. A failure of the device
// after it was opened is a CHECK. Any thread; the calling thread's current device counts.
namespace perigee::device_memory {

// Whether the device can be used; says what is missing if not. Makes device `index` the calling thread's.
Status Open(int index);
// What the thread's device calls itself.
std::string Name();
// Bytes free and in all on the thread's device.
struct Room {
  size_t free = 0;
  size_t total = 0;
};
Room Ask();

// Zeroed, aligned to 256 bytes.
void* Allocate(size_t bytes);
void Free(void* data);
// Host memory that the device can read while the host goes on.
void* AllocatePinned(size_t bytes);
void FreePinned(void* data);

Stream NewStream();
void DeleteStream(Stream stream);
void Wait(Stream stream);

// Ordered by the stream; the host side must stay as it is until the stream has come past, unless it is not
// pinned, when the call takes its bytes before it returns.
void CopyToDevice(void* to, const void* from, size_t bytes, Stream stream);
void CopyToHost(void* to, const void* from, size_t bytes, Stream stream);
void Zero(void* data, size_t bytes, Stream stream);
// Every byte the same.
void Fill(void* data, uint8_t byte, size_t bytes, Stream stream);
// From one place of the device to another that does not overlap it.
void Copy(void* to, const void* from, size_t bytes, Stream stream);

}  // namespace perigee::device_memory
