#include "text/vocab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/text_testing.h"

namespace perigee::text {
namespace {

using testing::Base64;
using testing::TiktokenModel;

TEST(Vocab, ReadsTokensByRankInAnyOrder) {
  const std::string file = "\r\n" + Base64("the ") + " 257\r\n\n" + TiktokenModel({"th"}) + "\n\n";
  const auto vocab = Vocab::Parse(file, "f");
  ASSERT_TRUE(vocab.ok()) << vocab.status().message();
  EXPECT_EQ(vocab->size(), 258);
  EXPECT_EQ(vocab->Bytes(256), "th");
  EXPECT_EQ(vocab->Bytes(257), "the ");
  EXPECT_EQ(vocab->Find("th"), 256);
  EXPECT_EQ(vocab->Find("the "), 257);
  EXPECT_EQ(vocab->Find("the"), -1);
  EXPECT_EQ(vocab->Find("much longer than any token"), -1);
  EXPECT_EQ(vocab->Find(std::string_view("\0", 1)), 0);
  EXPECT_EQ(vocab->Find("\xFF"), 255);
}

TEST(Vocab, LastLineNeedsNoLineBreak) {
  std::string file = TiktokenModel({"th"});
  file.pop_back();
  EXPECT_EQ(Vocab::Parse(file, "f").value().size(), 257);
}

TEST(Vocab, HostileFilesGiveOneLineWithItsNumber) {
  struct Case {
    std::string file;
    std::string message;
  };
  const std::string bytes = TiktokenModel();
  std::string without_a = bytes;
  without_a.replace(without_a.find("YQ== 97"), 4, "YWE=");
  const Case cases[] = {
      {"", "dir/f: no token for the single byte \"\\x00\" (0) in its 0 tokens; all 256 bytes are needed"},
      {without_a,
       "dir/f: no token for the single byte \"a\" (97) in its 256 tokens; all 256 bytes are needed"},
      {bytes + "dGg= 256\ndGhl 256\n", "dir/f line 258: rank 256 was already given on line 257"},
      {bytes + "dGg= 257\n",
       "dir/f line 257: rank 257 leaves a gap: the file has 257 tokens, so ranks must be 0 to 256"},
      {bytes + "dGg= 256\n\ndGg= 257\n", "dir/f line 259: the token \"th\" was already given on line 257"},
      {bytes + "dGg 256\n", "dir/f line 257: the token \"dGg\" is not base64"},
      {bytes + "d!g= 256\n", "dir/f line 257: the token \"d!g=\" is not base64"},
      {bytes + "dG=g 256\n", "dir/f line 257: the token \"dG=g\" is not base64"},
      {bytes + "dGh= 256\n", "dir/f line 257: the token \"dGh=\" is not base64"},
      {bytes + "==== 256\n", "dir/f line 257: the token \"====\" is not base64"},
      {bytes + " 256\n", "dir/f line 257: the token \"\" is not base64"},
      {bytes + "dGg=\n", "dir/f line 257: \"dGg=\" is not base64, a space and a rank"},
      {bytes + "dGg=\t256\n", "dir/f line 257: \"dGg=\\x09256\" is not base64, a space and a rank"},
      {bytes + "dGg= -1\n", "dir/f line 257: the rank \"-1\" is not a whole number from 0"},
      {bytes + "dGg= \n", "dir/f line 257: the rank \"\" is not a whole number from 0"},
      {bytes + "dGg= 256 \n", "dir/f line 257: the rank \"256 \" is not a whole number from 0"},
      {bytes + "dGg= 0x100\n", "dir/f line 257: the rank \"0x100\" is not a whole number from 0"},
      {bytes + "dGg= 99999999999999999999\n",
       "dir/f line 257: the rank \"99999999999999999999\" is not a whole number from 0"},
      {bytes + "dGg= 9223372036854775807\n",
       "dir/f line 257: rank 9223372036854775807 leaves a gap: the file has 257 tokens, so ranks must be 0 "
       "to 256"},
      {bytes + std::string("\0\0 256\n", 7), "dir/f line 257: the token \"\\x00\\x00\" is not base64"},
  };
  for (const Case& c : cases) {
    const auto vocab = Vocab::Parse(c.file, "dir/f");
    ASSERT_FALSE(vocab.ok()) << c.message;
    EXPECT_EQ(vocab.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(vocab.status().message(), c.message);
  }
}

}  // namespace
}  // namespace perigee::text
