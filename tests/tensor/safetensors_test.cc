#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "testing/random.h"
#include "testing/safetensors_writer.h"

namespace perigee {
namespace {

using test::WithHeader;
using test::WrittenTensor;
using ::testing::HasSubstr;

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

StatusOr<std::vector<StoredTensor>> Parse(const std::string& contents) {
  return ParseSafetensors(AsBytes(contents), "m.safetensors");
}

// Three tensors of 8, 12 and 4 bytes.
std::vector<WrittenTensor> SmallTensors() {
  return {{"a.weight", "F32", {2}, std::string(8, 'a')},
          {"b.weight", "BF16", {3, 2}, std::string(12, 'b')},
          {"c.weight", "F16", {2, 1, 1}, std::string(4, 'c')}};
}

TEST(ParseSafetensors, ReadsNamesTypesShapesAndBytes) {
  const std::string file = test::SafetensorsFile(SmallTensors());
  const auto parsed = Parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->size(), 3u);
  const StoredTensor& b = (*parsed)[1];
  EXPECT_EQ(b.name, "b.weight");
  EXPECT_EQ(b.file, "m.safetensors");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(b.NumElements(), 6);
  EXPECT_EQ(b.bytes.size(), 12u);
  EXPECT_EQ(static_cast<char>(b.bytes[0]), 'b');
  EXPECT_EQ(reinterpret_cast<const char*>(b.bytes.data()), file.data() + file.size() - 16);
}

TEST(ParseSafetensors, AcceptsScalarsEmptyTensorsAndAnyOrderOfEntries) {
  const std::string file = WithHeader(R"({"last":{"data_offsets":[4,8],"shape":[],"dtype":"F32"},)"
                                      R"("empty":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},)"
                                      R"("first":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}   )",
                                      "12345678");
  const auto parsed = Parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->size(), 3u);
  EXPECT_EQ((*parsed)[0].name, "first");
  EXPECT_EQ((*parsed)[1].name, "empty");
  EXPECT_EQ((*parsed)[1].NumElements(), 0);
  EXPECT_EQ((*parsed)[2].name, "last");
  EXPECT_EQ((*parsed)[2].NumElements(), 1);
}

TEST(ParseSafetensors, AcceptsAFileWithoutTensors) {
  const auto parsed = Parse(WithHeader("{}", ""));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(parsed->empty());
}

TEST(ParseSafetensors, RandomFilesComeBackAsWritten) {
  test::Random random(17);
  constexpr const char* kTypes[] = {"F32", "BF16", "F16"};
  for (int round = 0; round < 200; ++round) {
    std::vector<WrittenTensor> written;
    const int64_t count = random.Below(8);
    for (int64_t i = 0; i < count; ++i) {
      WrittenTensor t{.name = "model.layers." + std::to_string(i) + ".t", .dtype = kTypes[random.Below(3)]};
      int64_t elements = 1;
      for (int64_t rank = random.Below(4); rank > 0; --rank) {
        t.shape.push_back(random.Below(5));
        elements *= t.shape.back();
      }
      t.bytes.resize(static_cast<size_t>(elements * (t.dtype == "F32" ? 4 : 2)));
      for (char& c : t.bytes) c = static_cast<char>(random.Next());
      written.push_back(std::move(t));
    }
    const std::string file = test::SafetensorsFile(written, random.Below(2) == 0);
    const auto parsed = Parse(file);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    ASSERT_EQ(parsed->size(), written.size());
    for (const WrittenTensor& w : written) {
      const auto at =
          std::find_if(parsed->begin(), parsed->end(), [&](const auto& p) { return p.name == w.name; });
      ASSERT_NE(at, parsed->end()) << w.name;
      EXPECT_EQ(DTypeName(at->dtype), w.dtype);
      EXPECT_EQ(at->shape, w.shape);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(at->bytes.data()), at->bytes.size()), w.bytes);
    }
  }
}

// Every prefix of a valid file, and the file with bytes after it, is refused.
TEST(ParseSafetensors, RefusesEveryOtherLength) {
  const std::string file = test::SafetensorsFile(SmallTensors());
  for (size_t length = 0; length < file.size(); ++length) {
    const auto parsed = Parse(file.substr(0, length));
    ASSERT_FALSE(parsed.ok()) << length;
    EXPECT_THAT(parsed.status().message(), HasSubstr("m.safetensors: ")) << length;
  }
  EXPECT_FALSE(Parse(file + "x").ok());
}

TEST(ParseSafetensors, OneFlippedByteNeverCrashes) {
  const std::string file = test::SafetensorsFile(SmallTensors());
  const size_t header_end = file.size() - 24;
  for (size_t at = 0; at < header_end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string broken = file;
      broken[at] = static_cast<char>(broken[at] ^ (1 << bit));
      const auto parsed = Parse(broken);
      if (parsed.ok()) {
        EXPECT_LE(parsed->size(), 3u);
      } else {
        EXPECT_THAT(parsed.status().message(), HasSubstr("m.safetensors: "));
      }
    }
  }
}

struct HostileCase {
  const char* label;
  std::string contents;
  std::vector<std::string> message_parts;  // each must be in the error, beside the file's name
};

std::string Cut(size_t bytes) {
  std::vector<WrittenTensor> tensors = SmallTensors();
  tensors.push_back({"d.weight", "F32", {1024}, std::string(4096, 'd')});
  const std::string file = test::SafetensorsFile(tensors);
  return file.substr(0, file.size() - bytes);
}

std::string Entry(std::string_view rest, size_t data_bytes = 8) {
  return WithHeader(R"({"x.weight":)" + std::string(rest) + "}", std::string(data_bytes, 'd'));
}

std::string Length(uint64_t length) {
  std::string file = test::SafetensorsFile(SmallTensors());
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i) & 0xff);
  return file;
}

std::vector<HostileCase> HostileCases() {
  const std::string deep(100000, '[');
  std::string deep_objects;
  for (int i = 0; i < 100000; ++i) deep_objects += R"({"a":)";
  return {
      {"empty file", "", {"has 0 bytes", "header length"}},
      {"seven bytes", "1234567", {"has 7 bytes"}},
      {"cut by 1 byte", Cut(1), {"\"d.weight\"", "ends at byte", "which has only", "cut short"}},
      {"cut by 1 KiB", Cut(1024), {"\"d.weight\"", "cut short"}},
      {"cut by half", Cut(2200), {"\"d.weight\"", "cut short"}},
      {"cut into the first tensors", Cut(4100), {"\"c.weight\"", "cut short"}},
      {"header longer than the file", Length(1000000), {"header of 1000000 bytes is longer than the file"}},
      {"header one byte longer than the file",
       std::string("\3\0\0\0\0\0\0\0{}", 10),
       {"header of 3 bytes is longer than the file, which has 10"}},
      {"header length 2^64-1", Length(~uint64_t{0}), {"18446744073709551615", "longer than the file"}},
      {"header length 2^64-8", Length(~uint64_t{0} - 7), {"longer than the file"}},
      {"header length 2^63", Length(uint64_t{1} << 63), {"longer than the file"}},
      {"header length too small", Length(10), {"header", "not valid JSON"}},
      {"header length 0", Length(0), {"does not begin with '{'"}},
      {"header is no JSON", WithHeader("{nonsense}", ""), {"header: not valid JSON near byte"}},
      {"header is a list", WithHeader("[1]", ""), {"does not begin with '{'"}},
      {"header begins with a space", WithHeader(" {}", ""), {"does not begin with '{'"}},
      {"text after the header's object", WithHeader("{} x", ""), {"not valid JSON"}},
      {"NUL after the header's object", WithHeader(std::string("{}\0\0", 4), ""), {"NUL"}},
      {"deep lists", WithHeader(R"({"x.weight":)" + deep, ""), {"\"x.weight\"", "is a list"}},
      {"deep objects", WithHeader(deep_objects, ""), {"\"a\"", "unknown key"}},
      {"deep metadata", WithHeader(R"({"__metadata__":{"a":)" + deep, ""), {"__metadata__", "a list"}},
      {"invalid UTF-8 name", WithHeader("{\"\xff\xfe\":1}", ""), {"not valid JSON"}},
      {"metadata is a number", WithHeader(R"({"__metadata__":3})", ""), {"__metadata__ is 3"}},
      {"metadata twice", WithHeader(R"({"__metadata__":{},"__metadata__":{}})", ""), {"given twice"}},
      {"duplicate tensor",
       WithHeader(R"({"x.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("x.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "12345678"),
       {"tensor \"x.weight\" is given twice"}},
      {"duplicate by escape",
       WithHeader(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("\u0078":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "12345678"),
       {"tensor \"x\" is given twice"}},
      {"overlapping offsets",
       WithHeader(R"({"x.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("y.weight":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                  "123456789012"),
       {"\"y.weight\"", "overlap \"x.weight\""}},
      {"one place twice",
       WithHeader(R"({"x.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("y.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                  "12345678"),
       {"overlap"}},
      {"gap",
       WithHeader(R"({"x.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("y.weight":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                  "123456789012"),
       {"\"y.weight\"", "leave 4 bytes before it"}},
      {"gap at the start",
       WithHeader(R"({"x.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678"),
       {"\"x.weight\"", "leave 4 bytes before it"}},
      {"trailing bytes",
       test::SafetensorsFile(SmallTensors()) + "123",
       {"3 bytes after the last tensor \"c.weight\""}},
      {"data without tensors", WithHeader("{}", "1234"), {"4 bytes after the header"}},
      {"offsets backwards",
       Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       {"\"x.weight\"", "end before they begin"}},
      {"offsets beyond 64 bits",
       Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551624]})"),
       {"\"x.weight\"", "data_offsets holds"}},
      {"end of 2^64-1",
       Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]})"),
       {"\"x.weight\"", "of the file, which has only"}},
      {"shape and offsets differ",
       Entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "[3] of F32 is 12 bytes", "span 8"}},
      {"negative dimension",
       Entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "shape holds -2"}},
      {"huge dimension",
       Entry(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "9223372036854775808"}},
      {"product overflows",
       Entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "[4294967296, 4294967296]", "64 bits"}},
      {"product wraps to the right size",
       Entry(R"({"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "64 bits"}},
      {"overflow hidden by a zero",
       Entry(R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0),
       {"\"x.weight\"", "64 bits"}},
      {"too many dimensions",
       Entry(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "more than 16 dimensions"}},
      {"fractional dimension",
       Entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "shape holds \"2.0\""}},
      {"shape is a number",
       Entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"),
       {"\"x.weight\"", "shape holds 2"}},
      {"nested shape",
       Entry(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "shape holds a list"}},
      {"one offset",
       Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"),
       {"\"x.weight\"", "has 1 numbers"}},
      {"three offsets",
       Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})"),
       {"\"x.weight\"", "more than 2"}},
      {"integer dtype",
       Entry(R"({"dtype":"I32","shape":[2],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "\"I32\" is not supported", "F32, F16 and BF16"}},
      {"dtype is a number",
       Entry(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "dtype holds 32"}},
      {"no dtype", Entry(R"({"shape":[2],"data_offsets":[0,8]})"), {"\"x.weight\"", "no dtype"}},
      {"no shape", Entry(R"({"dtype":"F32","data_offsets":[0,8]})"), {"\"x.weight\"", "no shape"}},
      {"no offsets", Entry(R"({"dtype":"F32","shape":[2]})"), {"\"x.weight\"", "no data_offsets"}},
      {"shape twice",
       Entry(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
       {"\"x.weight\"", "shape is given twice"}},
      {"unknown key",
       Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"scale":1})"),
       {"\"x.weight\"", "unknown key \"scale\""}},
      {"entry is null", Entry("null"), {"\"x.weight\"", "is null"}},
      {"control characters in a name",
       WithHeader(R"({"\u001b[31m":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "1"),
       {R"(\x1b[31m)", "I8"}},
  };
}

TEST(ParseSafetensors, HostileFilesAreOneClearError) {
  for (const HostileCase& hostile : HostileCases()) {
    SCOPED_TRACE(hostile.label);
    const auto parsed = Parse(hostile.contents);
    if (parsed.ok()) {
      ADD_FAILURE() << "accepted";
      continue;
    }
    const std::string& message = parsed.status().message();
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(message.find("m.safetensors: "), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u) << message;
    for (const std::string& part : hostile.message_parts) EXPECT_THAT(message, HasSubstr(part));
  }
}

}  // namespace
}  // namespace perigee
