#include "base/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace perigee {
namespace {

TEST(BytesTest, WhatIsWrittenIsRead) {
  ByteWriter out;
  out.Put(uint8_t{200});
  out.Put(std::numeric_limits<int64_t>::min());
  out.PutText("text");
  out.PutArray(std::span<const int32_t>(std::vector<int32_t>{-1, 2}));
  out.PutText("");
  ByteReader in(out.bytes());
  EXPECT_EQ(in.Get<uint8_t>(), 200);
  EXPECT_EQ(in.Get<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(in.GetText(), "text");
  EXPECT_EQ(in.GetArray<int32_t>(), (std::vector<int32_t>{-1, 2}));
  EXPECT_EQ(in.GetText(), "");
  EXPECT_TRUE(in.ok());
  EXPECT_EQ(in.remaining(), 0u);
}

TEST(BytesTest, ReadingPastTheEndFailsForGood) {
  ByteWriter out;
  out.Put(uint16_t{7});
  ByteReader in(out.bytes());
  EXPECT_EQ(in.Get<uint32_t>(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.Get<uint16_t>(), 0) << "what would fit is not read either";
}

// No memory is taken for what is not there.
TEST(BytesTest, LengthsAreNotBelieved) {
  ByteWriter out;
  out.Put(std::numeric_limits<uint32_t>::max());
  out.Put(uint64_t{1});
  ByteReader in(out.bytes());
  EXPECT_TRUE(in.GetArray<uint64_t>().empty());
  EXPECT_FALSE(in.ok());
}

}  // namespace
}  // namespace perigee
