#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace perigee {

// Plain data as bytes between processes of one program: fixed-width integers as this machine (x86-64) lays
// them out, texts and arrays after their length in 32 bits.
class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    Append(&value, sizeof value);
  }
  template <typename T>
  void PutArray(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put(static_cast<uint32_t>(values.size()));
    Append(values.data(), values.size_bytes());
  }
  void PutText(std::string_view text) { PutArray(std::span<const char>(text)); }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  void Append(const void* from, size_t size) {
    const auto* begin = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }

  std::vector<std::byte> bytes_;
};

// Reads what a ByteWriter wrote, and anything else without harm: a read past the end gives zero or nothing
// and makes ok() false for good. No length is believed before that many bytes are there.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const std::byte* from = Skip(sizeof value)) std::memcpy(&value, from, sizeof value);
    return value;
  }
  // `T` must accept every bit pattern.
  template <typename T>
  std::vector<T> GetArray() {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto count = size_t{Get<uint32_t>()};
    std::vector<T> values;
    if (const std::byte* from = Skip(count * sizeof(T)); from != nullptr && count > 0) {
      values.resize(count);
      std::memcpy(values.data(), from, count * sizeof(T));
    }
    return values;
  }
  std::string GetText() {
    const std::vector<char> text = GetArray<char>();
    return {text.begin(), text.end()};
  }

  bool ok() const { return ok_; }
  size_t remaining() const { return bytes_.size(); }

 private:
  const std::byte* Skip(size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* begin = bytes_.data();
    bytes_ = bytes_.subspan(size);
    return begin;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace perigee
