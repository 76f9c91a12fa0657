#include "cli/template_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace perigee::cli {
namespace {

class TemplateFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }

  std::string Read() {
    const StatusOr<std::string> text = ReadChatTemplate(folder_);
    return text.ok() ? *text : "error: " + text.status().message();
  }

  std::string folder_ = ::testing::TempDir() + "template_file_test";
};

TEST_F(TemplateFile, TheFileComesFirst) {
  EXPECT_EQ(Read(), "");
  Write("tokenizer_config.json", R"({"chat_template": "from the config"})");
  EXPECT_EQ(Read(), "from the config");
  Write("chat_template.jinja", "from the file");
  EXPECT_EQ(Read(), "from the file");
}

TEST_F(TemplateFile, AListGivesAllOfThem) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "one"}, {"name": "rag", "template": "two"}]})");
  EXPECT_EQ(Read(), "one\ntwo\n");
}

TEST_F(TemplateFile, NoTemplateInTheConfig) {
  Write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(Read(), "");
  Write("tokenizer_config.json", "[1");
  EXPECT_NE(Read().find("tokenizer_config.json"), std::string::npos);
}

}  // namespace
}  // namespace perigee::cli
