#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_json.h"

namespace {

void CheckError(const perigee::Status& status) {
  PERIGEE_CHECK(status.message().starts_with("FILE: "));
  PERIGEE_CHECK(status.message().find('\n') == std::string::npos);
}

void ParseFile(std::string_view contents) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(contents.data(), contents.size()));
  const auto parsed = perigee::ParseSafetensors(bytes, "FILE");
  if (!parsed.ok()) return CheckError(parsed.status());
  size_t total = 0;
  for (const perigee::StoredTensor& t : *parsed) {
    int64_t elements = 1;
    for (int64_t dim : t.shape) elements *= dim;
    PERIGEE_CHECK(elements == t.NumElements());
    PERIGEE_CHECK(t.bytes.data() >= bytes.data() &&
                  t.bytes.data() + t.bytes.size() <= bytes.data() + bytes.size());
    total += t.bytes.size();
  }
  PERIGEE_CHECK(total <= bytes.size());
}

}  // namespace

// The first byte chooses what the rest is: a whole file, a header to which we add a right length and 64 bytes
// of data, or an index.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'i': {
      const auto parsed = perigee::internal::ParseIndexJson(rest, "FILE");
      if (!parsed.ok()) CheckError(parsed.status());
      break;
    }
    case 'h': {
      std::string file;
      for (int i = 0; i < 8; ++i) file += static_cast<char>(rest.size() >> (8 * i) & 0xff);
      file += rest;
      file.append(64, 'd');
      ParseFile(file);
      break;
    }
    default:
      ParseFile(rest);
  }
  return 0;
}
