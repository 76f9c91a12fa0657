#include "tensor/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/math.h"
#include "base/strings.h"
#include "tensor/safetensors_json.h"

namespace perigee {
namespace {

constexpr uint64_t kLengthBytes = 8;
// What the reference reader accepts; a real header of 10,000 tensors has about 1.5 MB.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Bytes of a tensor, or nothing when they do not fit 64 bits. Zero dimensions do not hide an overflow of the
// others.
std::optional<uint64_t> ByteCount(const std::vector<int64_t>& shape, DType dtype) {
  uint64_t product = static_cast<uint64_t>(DTypeBytes(dtype));
  bool empty = false;
  for (int64_t dim : shape) {
    if (dim == 0) {
      empty = true;
      continue;
    }
    const std::optional<uint64_t> next = CheckedMul(product, static_cast<uint64_t>(dim));
    if (!next) return std::nullopt;
    product = *next;
  }
  return empty ? 0 : product;
}

StatusOr<std::string_view> HeaderText(std::span<const std::byte> contents, const std::string& file) {
  if (contents.size() < kLengthBytes) {
    return InvalidArgument(StrCat(file, ": has ", contents.size(),
                                  " bytes, too few for the header length of a safetensors file"));
  }
  uint64_t length = 0;
  for (uint64_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<uint64_t>(contents[i]);
  const uint64_t rest = contents.size() - kLengthBytes;
  if (length > rest) {
    return InvalidArgument(StrCat(file, ": header of ", length, " bytes is longer than the file, which has ",
                                  contents.size(), " bytes (cut short, or not a safetensors file)"));
  }
  if (length > kMaxHeaderBytes) {
    return InvalidArgument(
        StrCat(file, ": header of ", length, " bytes, accepted are at most ", kMaxHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(contents.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) return InvalidArgument(StrCat(file, ": header does not begin with '{'"));
  return text;
}

// Type, shape and length of one entry, without its place in the file.
StatusOr<DType> CheckEntry(const internal::HeaderEntry& entry, const std::string& where) {
  const std::optional<DType> dtype = ParseDType(entry.dtype);
  if (!dtype) {
    return InvalidArgument(
        StrCat(where, "dtype ", Quoted(entry.dtype), " is not supported; accepted are F32, F16 and BF16"));
  }
  if (entry.begin > entry.end) {
    return InvalidArgument(
        StrCat(where, "data_offsets [", entry.begin, ", ", entry.end, "] end before they begin"));
  }
  const std::optional<uint64_t> bytes = ByteCount(entry.shape, *dtype);
  if (!bytes) {
    return InvalidArgument(
        StrCat(where, "shape ", ShapeString(entry.shape), " has more bytes than 64 bits count"));
  }
  if (*bytes != entry.end - entry.begin) {
    return InvalidArgument(StrCat(where, "shape ", ShapeString(entry.shape), " of ", DTypeName(*dtype),
                                  " is ", *bytes, " bytes, but data_offsets [", entry.begin, ", ", entry.end,
                                  "] span ", entry.end - entry.begin));
  }
  return *dtype;
}

}  // namespace

int64_t StoredTensor::NumElements() const {
  return static_cast<int64_t>(bytes.size()) / DTypeBytes(dtype);
}

StatusOr<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> contents,
                                                     const std::string& file) {
  PERIGEE_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(contents, file));
  PERIGEE_ASSIGN_OR_RETURN(std::vector<internal::HeaderEntry> entries, internal::ParseHeaderJson(text, file));
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  const uint64_t data_begin = kLengthBytes + text.size();
  const std::span<const std::byte> data = contents.subspan(data_begin);
  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.size());
  uint64_t covered = 0;  // bytes of `data` that the tensors so far occupy
  for (internal::HeaderEntry& entry : entries) {
    const std::string where = StrCat(file, ": tensor ", Quoted(entry.name), ": ");
    PERIGEE_ASSIGN_OR_RETURN(const DType dtype, CheckEntry(entry, where));
    if (entry.begin < covered) {
      return InvalidArgument(StrCat(where, "data_offsets [", entry.begin, ", ", entry.end, "] overlap ",
                                    Quoted(tensors.back().name), ", which ends at ", covered));
    }
    if (entry.end > data.size()) {
      return InvalidArgument(StrCat(where, "ends at byte ",
                                    CheckedAdd(data_begin, entry.end).value_or(entry.end),
                                    " of the file, which has only ", contents.size(), " bytes (cut short)"));
    }
    if (entry.begin > covered) {
      return InvalidArgument(StrCat(where, "data_offsets [", entry.begin, ", ", entry.end, "] leave ",
                                    entry.begin - covered, " bytes before it that belong to no tensor"));
    }
    covered = entry.end;
    tensors.push_back({.name = std::move(entry.name),
                       .file = file,
                       .dtype = dtype,
                       .shape = std::move(entry.shape),
                       .bytes = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  if (covered != data.size()) {
    const std::string last =
        tensors.empty() ? "the header" : StrCat("the last tensor ", Quoted(tensors.back().name));
    return InvalidArgument(StrCat(file, ": ", data.size() - covered, " bytes after ", last,
                                  " that belong to no tensor: the file has ", contents.size(),
                                  " bytes, expected ", data_begin + covered));
  }
  return tensors;
}

}  // namespace perigee
