#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tensor/safetensors.h"
#include "testing/safetensors_writer.h"

namespace perigee {
namespace {

using test::TempFolder;
using test::WrittenTensor;
using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

WrittenTensor Tensor(std::string name, char fill) {
  return {std::move(name), "F32", {2}, std::string(8, fill)};
}

std::string OneTensorFile(const std::string& name) {
  const std::vector<WrittenTensor> tensors = {Tensor(name, 'x')};
  return test::SafetensorsFile(tensors);
}

// Two shards with a.weight and b.weight, and their index.
void WriteSharded(const TempFolder& folder) {
  folder.Write("s-1.safetensors", OneTensorFile("a.weight"));
  folder.Write("s-2.safetensors", OneTensorFile("b.weight"));
  folder.Write(kIndex, R"({"weight_map":{"a.weight":"s-1.safetensors","b.weight":"s-2.safetensors"}})");
}

void ExpectRefused(const TempFolder& folder, const std::vector<std::string>& parts) {
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_FALSE(opened.ok());
  const std::string& message = opened.status().message();
  EXPECT_EQ(message.find(folder.path()), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

TEST(Checkpoint, ReadsShardsThroughTheIndex) {
  TempFolder folder;
  WriteSharded(folder);
  folder.Write("unlisted.safetensors", "not looked at");
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->tensors().size(), 2u);
  ASSERT_NE(opened->Find("b.weight"), nullptr);
  EXPECT_EQ(opened->Find("b.weight")->file, "s-2.safetensors");
  EXPECT_EQ(opened->Find("c.weight"), nullptr);
  EXPECT_EQ(opened->TotalBytes(), 16u);
  EXPECT_EQ(opened->source(), folder.File(kIndex));
}

TEST(Checkpoint, ReadsASingleFileOfAnyName) {
  TempFolder folder;
  folder.Write("weights.safetensors", OneTensorFile("a.weight"));
  folder.Write("config.json", "{}");
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_NE(opened->Find("a.weight"), nullptr);
  EXPECT_EQ(opened->source(), folder.File("weights.safetensors"));
}

TEST(Checkpoint, ReadsThroughSymbolicLinks) {
  TempFolder blobs, folder;
  WriteSharded(blobs);
  for (const char* name : {"s-1.safetensors", "s-2.safetensors", kIndex})
    std::filesystem::create_symlink(blobs.File(name), folder.File(name));
  EXPECT_TRUE(Checkpoint::Open(folder.path()).ok());
}

TEST(Checkpoint, SurvivesAMove) {
  TempFolder folder;
  WriteSharded(folder);
  StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok());
  const Checkpoint moved = std::move(opened).value();
  EXPECT_EQ(static_cast<char>(moved.Find("a.weight")->bytes[7]), 'x');
}

// The header of this file is no multiple of 4 long.
TEST(Checkpoint, AlignsWhatTheFileDoesNot) {
  TempFolder folder;
  const std::vector<WrittenTensor> tensors = {{"first", "F32", {2}, "abcdefgh"},
                                              {"second", "F16", {2}, "ijkl"}};
  std::string file = test::SafetensorsFile(tensors, false);
  uint64_t length = static_cast<unsigned char>(file[0]);
  while (length % 4 != 3) {
    file.insert(8 + length, " ");
    file[0] = static_cast<char>(++length);
  }
  folder.Write("m.safetensors", file);
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  for (const auto& [name, expected] : {std::pair("first", "abcdefgh"), std::pair("second", "ijkl")}) {
    const StoredTensor* t = opened->Find(name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t->bytes.data()) % 4, 0u) << name;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t->bytes.data()), t->bytes.size()), expected);
    opened->Release(*t);
    EXPECT_EQ(static_cast<char>(t->bytes[0]), expected[0]);
  }
}

TEST(Checkpoint, ReleasedBytesAndTheirNeighboursStayReadable) {
  TempFolder folder;
  const std::vector<WrittenTensor> tensors = {{"before", "F32", {100}, std::string(400, 'p')},
                                              {"big", "F32", {20000}, std::string(80000, 'q')},
                                              {"after", "F32", {100}, std::string(400, 'r')}};
  folder.Write("m.safetensors", test::SafetensorsFile(tensors));
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  for (const auto& [name, tensor] : opened->tensors()) opened->Release(tensor);
  for (const WrittenTensor& written : tensors) {
    const StoredTensor* t = opened->Find(written.name);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t->bytes.data()), t->bytes.size()), written.bytes);
  }
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Checkpoint, ReleasedBytesStopCountingAsOurs) {
  constexpr size_t kBytes = size_t{32} << 20;
  TempFolder folder;
  {
    const std::vector<WrittenTensor> tensors = {{"big", "F32", {kBytes / 4}, std::string(kBytes, 'q')}};
    folder.Write("m.safetensors", test::SafetensorsFile(tensors));
  }
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const StoredTensor& big = *opened->Find("big");
  EXPECT_EQ(std::count(big.bytes.begin(), big.bytes.end(), std::byte{'q'}), static_cast<int64_t>(kBytes));
  const int64_t before = ResidentBytes();
  opened->Release(big);
  EXPECT_LT(ResidentBytes(), before - static_cast<int64_t>(kBytes) * 3 / 4);
}

TEST(Checkpoint, RefusesFoldersThatAreNone) {
  TempFolder folder;
  ExpectRefused(folder, {"holds neither model.safetensors.index.json nor a .safetensors file"});
  const StatusOr<Checkpoint> absent = Checkpoint::Open(folder.File("absent"));
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr(folder.File("absent")));
}

TEST(Checkpoint, RefusesShardsWithoutAnIndex) {
  TempFolder folder;
  WriteSharded(folder);
  std::filesystem::remove(folder.File(kIndex));
  ExpectRefused(folder, {"2 .safetensors files", "s-1.safetensors", "but no model.safetensors.index.json"});
}

TEST(Checkpoint, RefusesAnAbsentShard) {
  TempFolder folder;
  WriteSharded(folder);
  std::filesystem::remove(folder.File("s-2.safetensors"));
  ExpectRefused(folder, {"s-2.safetensors", "\"b.weight\"", "No such file"});
}

TEST(Checkpoint, RefusesATruncatedShard) {
  for (size_t cut : {1u, 4u, 7u}) {
    TempFolder folder;
    WriteSharded(folder);
    std::filesystem::resize_file(folder.File("s-2.safetensors"),
                                 std::filesystem::file_size(folder.File("s-2.safetensors")) - cut);
    ExpectRefused(folder, {"/s-2.safetensors: ", "\"b.weight\"", "cut short"});
  }
}

TEST(Checkpoint, RefusesAnEmptyShard) {
  TempFolder folder;
  WriteSharded(folder);
  folder.Write("s-1.safetensors", "");
  ExpectRefused(folder, {"/s-1.safetensors: ", "has 0 bytes"});
}

TEST(Checkpoint, RefusesATensorInAnotherFileThanTheIndexSays) {
  TempFolder folder;
  WriteSharded(folder);
  const std::vector<WrittenTensor> both = {Tensor("a.weight", 'x'), Tensor("c.weight", 'y')};
  folder.Write("s-1.safetensors", test::SafetensorsFile(both));
  folder.Write(kIndex, R"({"weight_map":{"a.weight":"s-1.safetensors","b.weight":"s-2.safetensors",)"
                       R"("c.weight":"s-2.safetensors"}})");
  ExpectRefused(folder, {"/s-1.safetensors: ", "\"c.weight\"", "places it in s-2.safetensors"});
}

TEST(Checkpoint, RefusesATensorThatNoFileHolds) {
  TempFolder folder;
  WriteSharded(folder);
  folder.Write(kIndex, R"({"weight_map":{"a.weight":"s-1.safetensors","b.weight":"s-2.safetensors",)"
                       R"("c.weight":"s-2.safetensors"}})");
  ExpectRefused(folder, {"/s-2.safetensors: ", "\"c.weight\"", "not in this file"});
}

TEST(Checkpoint, RefusesATensorThatTheIndexDoesNotList) {
  TempFolder folder;
  WriteSharded(folder);
  folder.Write(kIndex, R"({"weight_map":{"a.weight":"s-1.safetensors","z.weight":"s-2.safetensors"}})");
  ExpectRefused(folder, {"/s-2.safetensors: ", "\"b.weight\"", "is not in model.safetensors.index.json"});
}

TEST(Checkpoint, RefusesATensorInTwoFiles) {
  TempFolder folder;
  WriteSharded(folder);
  const std::vector<WrittenTensor> both = {Tensor("a.weight", 'x'), Tensor("b.weight", 'y')};
  folder.Write("s-2.safetensors", test::SafetensorsFile(both));
  ExpectRefused(folder, {"/s-2.safetensors: ", "\"a.weight\"", "is also in s-1.safetensors"});
}

TEST(Checkpoint, RefusesFilesThatAreNoFiles) {
  TempFolder folder;
  WriteSharded(folder);
  std::filesystem::remove(folder.File("s-1.safetensors"));
  std::filesystem::create_directory(folder.File("s-1.safetensors"));
  ExpectRefused(folder, {"/s-1.safetensors: ", "not a regular file", "\"a.weight\""});
}

TEST(Checkpoint, RefusesADanglingIndex) {
  TempFolder folder;
  folder.Write("m.safetensors", OneTensorFile("a.weight"));
  std::filesystem::create_symlink(folder.File("nowhere"), folder.File(kIndex));
  ExpectRefused(folder, {kIndex, "No such file"});
}

TEST(Checkpoint, HostileIndexesAreOneClearError) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"not valid JSON"}},
      {"[]", {"is a list"}},
      {"3", {"is 3, expected an object"}},
      {"{}", {"has no weight_map"}},
      {R"({"weight_map":{}})", {"weight_map is empty"}},
      {R"({"weight_map":[]})", {"weight_map is a list"}},
      {R"({"weight_map":null})", {"weight_map is null"}},
      {R"({"weight_map":{"a.weight":["s-1.safetensors"]}})", {"\"a.weight\"", "file is a list"}},
      {R"({"weight_map":{"a.weight":{}}})", {"\"a.weight\"", "file is an object"}},
      {R"({"weight_map":{"a.weight":7}})", {"\"a.weight\"", "file is 7"}},
      {R"({"weight_map":{"a.weight":"../s-1.safetensors"}})", {"\"a.weight\"", "../s-1.safetensors"}},
      {R"({"weight_map":{"a.weight":"/etc/passwd"}})", {"\"a.weight\"", "/etc/passwd"}},
      {R"({"weight_map":{"a.weight":"sub/s-1.safetensors"}})", {"\"a.weight\"", "sub/"}},
      {R"({"weight_map":{"a.weight":".."}})", {"\"a.weight\"", "\"..\""}},
      {R"({"weight_map":{"a.weight":""}})", {"\"a.weight\"", "\"\""}},
      {R"({"weight_map":{"a.weight":"config.json"}})", {"\"a.weight\"", "config.json"}},
      {R"({"weight_map":{"a.weight":"s-1\u0000.safetensors"}})", {"\"a.weight\"", R"(\x00)"}},
      {R"({"weight_map":{"a.weight":"s-1.safetensors","a.weight":"s-2.safetensors"}})",
       {"\"a.weight\" is given twice"}},
      {R"({"weight_map":{"a.weight":"s-1.safetensors"},"weight_map":{}})", {"weight_map is given twice"}},
      {R"({"weight_map":{"a.weight":"s-1.safetensors"}} x)", {"not valid JSON"}},
      {std::string(R"({"weight_map":{"a.weight":"s-1.safetensors"}})") + '\0', {"NUL"}},
  };
  for (const auto& [text, parts] : cases) {
    SCOPED_TRACE(text);
    TempFolder folder;
    WriteSharded(folder);
    folder.Write(kIndex, text);
    std::vector<std::string> all = parts;
    all.push_back(std::string("/") + kIndex + ": ");
    ExpectRefused(folder, all);
  }
}

TEST(Checkpoint, AnythingMayStandBesideTheWeightMap) {
  TempFolder folder;
  WriteSharded(folder);
  folder.Write(kIndex,
               R"({"metadata":{"a":[1,{"weight_map":{"x":[[]]}}],"b":null,"c":-1.5,"d":true},)"
               R"("weight_map":{"a.weight":"s-1.safetensors","b.weight":"s-2.safetensors"},"more":[]})");
  const StatusOr<Checkpoint> opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->tensors().size(), 2u);
}

}  // namespace
}  // namespace perigee
