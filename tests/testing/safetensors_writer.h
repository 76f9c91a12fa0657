#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::test {

// A folder that lives as long as the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "perigee_test_XXXXXX").string();
    const char* made = mkdtemp(pattern.data());
    if (made == nullptr) std::abort();
    path_ = made;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }
  void Write(std::string_view name, std::string_view contents) const {
    std::ofstream out(File(name), std::ios::binary);
    out.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    ASSERT_TRUE(out.good()) << File(name);
  }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A tensor to write; `bytes` must fit the shape unless a broken file is wanted.
struct WrittenTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// Any text as the header of a safetensors file, with the data after it.
inline std::string WithHeader(std::string_view json, std::string_view data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xff);
  out += json;
  out += data;
  return out;
}

inline std::string HeaderEntryText(const WrittenTensor& tensor, size_t begin) {
  std::string out = "\"" + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":[)";
  for (size_t i = 0; i < tensor.shape.size(); ++i)
    out += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
  return out + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(begin + tensor.bytes.size()) + "]}";
}

// A safetensors file with the tensors one after another. `padded`: the data begins at a multiple of 8.
inline std::string SafetensorsFile(std::span<const WrittenTensor> tensors, bool padded = true) {
  std::string json = R"({"__metadata__":{"format":"pt"})", data;
  for (const WrittenTensor& tensor : tensors) {
    json += "," + HeaderEntryText(tensor, data.size());
    data += tensor.bytes;
  }
  json += "}";
  while (padded && json.size() % 8 != 0) json += ' ';
  return WithHeader(json, data);
}

// model.safetensors.index.json of (tensor, file) pairs.
inline std::string IndexFile(std::span<const std::pair<std::string, std::string>> places) {
  std::string json = R"({"metadata":{"total_size":1},"weight_map":{)";
  for (size_t i = 0; i < places.size(); ++i)
    json += (i > 0 ? ",\"" : "\"") + places[i].first + "\":\"" + places[i].second + "\"";
  return json + "}}";
}

}  // namespace perigee::test
