#include "engine/model_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "testing/safetensors_writer.h"

namespace perigee::engine {
namespace {

using ::testing::HasSubstr;

TEST(ModelSummary, PublishedShapeAsDocumented) {
  const StatusOr<std::string> text = SummarizeShape("kimi-linear-48b");
  ASSERT_TRUE(text.ok()) << text.status().message();
  for (const char* part : {
           "0-2, 4-6, 8-10, 12-14, 16-18, 20-22, 24-25 (20 layers)\n",
           "3, 7, 11, 15, 19, 23, 26 (7 layers)\n",
           "parameters        49,122,681,728\n",
           "3,105,767,424 weights multiplied a token\n",
           "98,245,528,576 bytes (91.50 GiB): F32 330,240, BF16 98,245,198,336\n",
           "vocabulary        163,840\n",
           "1,048,576 tokens\n",
           "16,128 bytes (15.75 KiB) of latents in F32; 8,064 bytes (7.88 KiB) in BF16\n",
           "states 41,943,040, conv tails 2,949,120",
           "43,417,600 bytes (41.41 MiB) with conv tails in BF16\n",
           "20493 tensors expected\n",
       }) {
    EXPECT_THAT(*text, HasSubstr(part));
  }
}

TEST(ModelSummary, BundledFolderIsCheckedAndCounted) {
  const StatusOr<std::string> text = SummarizeFolder(PERIGEE_MODELS "/tiny-kimi-linear");
  ASSERT_TRUE(text.ok()) << text.status().message();
  for (const char* part : {
           "0-2, 4 (4 layers)\n",
           "3, 5 (2 layers)\n",
           "0 (1 layer)\n",
           "16,642,304 bytes (15.87 MiB): F32 8,576, BF16 16,633,728\n",
           "353 tensors in 2 files; names and shapes are those of config.json\n",
       }) {
    EXPECT_THAT(*text, HasSubstr(part));
  }
  EXPECT_EQ(text->find("keys not used"), std::string::npos);
}

TEST(ModelSummary, NamesKeysThatAreNotUsed) {
  namespace fs = std::filesystem;
  const fs::path bundled = PERIGEE_MODELS "/tiny-kimi-linear";
  test::TempFolder folder;
  for (const fs::directory_entry& file : fs::directory_iterator(bundled)) {
    if (file.path().filename() != "config.json")
      fs::create_symlink(fs::absolute(file.path()), folder.File(file.path().filename().string()));
  }
  std::string config = test::ReadAll((bundled / "config.json").string());
  config.insert(1, "\"curious\": 1,");
  folder.Write("config.json", config);
  const StatusOr<std::string> text = SummarizeFolder(folder.path());
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_THAT(*text, HasSubstr("keys not used     curious\n"));
}

TEST(ModelSummary, RefusesWhatItCannotRead) {
  EXPECT_THAT(SummarizeShape("kimi").status().message(),
              HasSubstr("\"kimi\" is not known; accepted: kimi-linear-48b"));
  EXPECT_THAT(SummarizeFolder("/nonexistent").status().message(), HasSubstr("/nonexistent/config.json: "));
}

}  // namespace
}  // namespace perigee::engine
