#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace perigee {

// One tensor as it lies in a file. Valid as long as the Checkpoint (or the text) it came from.
struct StoredTensor {
  std::string name;
  std::string file;  // file name inside the folder, for messages
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t NumElements() const;
};

// A safetensors file: 8-byte little-endian header length, JSON header, data. Parsing trusts nothing: the
// length must fit the file, every entry needs a known dtype, a shape whose byte count equals its offsets,
// offsets that lie in the data, do not overlap and leave no gap. `file` names the file in messages. Tensors
// of a dtype we do not compute with (integers, FP8) are an error naming the tensor. The format promises no
// alignment: a writer that does not pad its header leaves `bytes` at odd addresses.
StatusOr<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> contents,
                                                     const std::string& file);

// A read-only mapping of a whole file.
class MappedFile {
 public:
  static StatusOr<MappedFile> Open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  bool Contains(std::span<const std::byte> part) const;
  // Tells the kernel that these bytes will not be read again (weights that were packed): they stop counting
  // as ours.
  void Release(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// All tensors of a model folder: model.safetensors.index.json with its shards, or one single *.safetensors
// file. The index and the headers must agree: a tensor that the index places in another file, that no file
// holds, or that two files hold is an error naming file and tensor. Every tensor's bytes are aligned for its
// dtype: where the file does not align them, they are a copy. Immutable after Open; safe to read from several
// threads.
class Checkpoint {
 public:
  static StatusOr<Checkpoint> Open(const std::string& folder);
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(const std::string& name) const;
  // Sum of the tensors' bytes.
  uint64_t TotalBytes() const;
  // See MappedFile::Release. The bytes stay readable; reading them again costs a disk access.
  void Release(const StoredTensor& tensor) const;
  // The path that says which tensors there are, for messages: the index, or the one file.
  const std::string& source() const { return source_; }

 private:
  Checkpoint() = default;
  // Parses `mapped`, checks its tensors against the index (when there is one) and takes all in.
  Status AddFile(const std::string& file, const std::string& path, MappedFile mapped,
                 const std::map<std::string, std::string>* index);

  std::string source_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, MappedFile> files_;
  std::vector<Buffer> copies_;
};

}  // namespace perigee
