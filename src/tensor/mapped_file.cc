#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/strings.h"
#include "tensor/safetensors.h"

namespace perigee {

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO in place of the file must not hang us.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    std::string message = StrCat(path, ": cannot be opened: ", std::strerror(error));
    if (error == ENOENT) return NotFound(std::move(message));
    return InvalidArgument(std::move(message));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return InvalidArgument(StrCat(path, ": not a regular file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* address = nullptr;
  if (size > 0) address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (address == MAP_FAILED)
    return InternalError(StrCat(path, ": cannot be mapped (", size, " bytes): ", std::strerror(error)));
  return MappedFile(std::span(static_cast<const std::byte*>(address), size));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

bool MappedFile::Contains(std::span<const std::byte> part) const {
  const auto address = [](const std::byte* p) { return reinterpret_cast<uintptr_t>(p); };
  return address(part.data()) >= address(bytes_.data()) &&
         address(part.data() + part.size()) <= address(bytes_.data() + bytes_.size());
}

void MappedFile::Release(std::span<const std::byte> part) const {
  if (part.empty()) return;
  PERIGEE_CHECK(Contains(part));
  // Whole pages only: the borders may belong to neighbours that are still to be read.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  // Advice only: on failure the pages stay until the kernel wants them back.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace perigee
