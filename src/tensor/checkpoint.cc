#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/strings.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_json.h"

namespace perigee {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
// The index of a model with half a million tensors has about 60 MB.
constexpr size_t kMaxIndexBytes = size_t{1} << 28;

std::string PathIn(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

bool IsAligned(const StoredTensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  return tensor.bytes.empty() || address % static_cast<uintptr_t>(DTypeBytes(tensor.dtype)) == 0;
}

// The only *.safetensors file of a folder without an index.
StatusOr<std::string> SingleFile(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors")) found.push_back(std::move(name));
  }
  if (error) return NotFound(StrCat(folder, ": cannot be read as a folder: ", error.message()));
  if (found.empty())
    return NotFound(StrCat(folder, ": holds neither ", kIndexName, " nor a .safetensors file"));
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    return InvalidArgument(StrCat(folder, ": holds ", found.size(), " .safetensors files (", found[0], ", ",
                                  found[1], found.size() > 2 ? ", ..." : "", ") but no ", kIndexName));
  }
  return found[0];
}

StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  PERIGEE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kMaxIndexBytes) {
    return InvalidArgument(
        StrCat(path, ": has ", bytes.size(), " bytes, accepted are at most ", kMaxIndexBytes));
  }
  return internal::ParseIndexJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace

StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  const std::string index_path = PathIn(folder, kIndexName);
  std::error_code error;
  std::map<std::string, std::string> index;
  std::map<std::string, std::string> example;  // file -> a tensor that it should hold
  Checkpoint checkpoint;
  const bool sharded = fs::exists(fs::symlink_status(index_path, error));
  if (sharded) {
    PERIGEE_ASSIGN_OR_RETURN(index, ReadIndex(index_path));
    for (const auto& [tensor, file] : index) example.emplace(file, tensor);
    if (example.empty()) return InvalidArgument(StrCat(index_path, ": weight_map is empty"));
    checkpoint.source_ = index_path;
  } else {
    PERIGEE_ASSIGN_OR_RETURN(const std::string file, SingleFile(folder));
    example.emplace(file, "");
    checkpoint.source_ = PathIn(folder, file);
  }

  for (const auto& [file, tensor] : example) {
    const std::string path = PathIn(folder, file);
    StatusOr<MappedFile> mapped = MappedFile::Open(path);
    if (!mapped.ok()) {
      if (!sharded) return std::move(mapped).status();
      return Status(mapped.status().code(), StrCat(mapped.status().message(), " (", kIndexName,
                                                   " places tensor ", Quoted(tensor), " there)"));
    }
    PERIGEE_RETURN_IF_ERROR(
        checkpoint.AddFile(file, path, std::move(mapped).value(), sharded ? &index : nullptr));
  }
  for (const auto& [tensor, file] : index) {
    if (!checkpoint.tensors_.contains(tensor)) {
      return InvalidArgument(StrCat(PathIn(folder, file), ": tensor ", Quoted(tensor),
                                    " is not in this file, where ", kIndexName, " places it"));
    }
  }
  return checkpoint;
}

Status Checkpoint::AddFile(const std::string& file, const std::string& path, MappedFile mapped,
                           const std::map<std::string, std::string>* index) {
  PERIGEE_ASSIGN_OR_RETURN(std::vector<StoredTensor> parsed, ParseSafetensors(mapped.bytes(), path));
  for (StoredTensor& tensor : parsed) {
    tensor.file = file;
    const auto [known, added] = tensors_.try_emplace(tensor.name);
    if (!added) {
      return InvalidArgument(
          StrCat(path, ": tensor ", Quoted(tensor.name), " is also in ", known->second.file));
    }
    if (index != nullptr) {
      const auto place = index->find(tensor.name);
      if (place == index->end())
        return InvalidArgument(StrCat(path, ": tensor ", Quoted(tensor.name), " is not in ", kIndexName));
      if (place->second != file) {
        return InvalidArgument(StrCat(path, ": tensor ", Quoted(tensor.name), " is in this file, but ",
                                      kIndexName, " places it in ", place->second));
      }
    }
    if (!IsAligned(tensor)) {
      const Buffer& copy = copies_.emplace_back(tensor.bytes.size());
      std::memcpy(copy.data(), tensor.bytes.data(), tensor.bytes.size());
      tensor.bytes = std::span(copy.As<const std::byte>(), tensor.bytes.size());
    }
    known->second = std::move(tensor);
  }
  files_.emplace(file, std::move(mapped));
  return Status::Ok();
}

const StoredTensor* Checkpoint::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t Checkpoint::TotalBytes() const {
  uint64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.bytes.size();
  return total;
}

void Checkpoint::Release(const StoredTensor& tensor) const {
  const auto file = files_.find(tensor.file);
  PERIGEE_CHECK_MSG(file != files_.end(), tensor.file);
  if (file->second.Contains(tensor.bytes)) file->second.Release(tensor.bytes);
}

}  // namespace perigee
