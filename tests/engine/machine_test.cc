#include "engine/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace perigee::engine {
namespace {

namespace fs = std::filesystem;

// A tree of /proc and /sys that goes with the test.
class GroupMemoryTest : public ::testing::Test {
 protected:
  GroupMemoryTest() {
    root_ = fs::temp_directory_path() / ("perigee_machine_" + std::to_string(getpid()) + "_" +
                                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
  }
  ~GroupMemoryTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = root_.string() + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<GroupMemory> Read() { return ReadGroupMemory(root_.string()); }

  fs::path root_;
};

TEST_F(GroupMemoryTest, Version2TakesTheTightestOfTheGroupAndThoseAbove) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/memory.max", "4096000\n");
  Write("/sys/fs/cgroup/a/memory.stat", "anon 1000\nfile 77777\n");
  Write("/sys/fs/cgroup/a/memory.current", "78777\n");
  Write("/sys/fs/cgroup/memory.max", "8192000\n");
  const auto group = Read();
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->limit_bytes, 4096000u);
  EXPECT_EQ(group->used_bytes, 1000u) << "cached file pages can go";
}

TEST_F(GroupMemoryTest, Version1) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/docker/f00\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n");
  const auto group = Read();
  ASSERT_TRUE(group.has_value()) << "the path of the group is not there, as in a container";
  EXPECT_EQ(group->limit_bytes, 1048576u);
  EXPECT_EQ(group->used_bytes, 500u);
}

TEST_F(GroupMemoryTest, NoLimitIsNoLimit) {
  EXPECT_FALSE(Read().has_value()) << "no control groups at all";
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_FALSE(Read().has_value());
}

// Whatever the kernel's files hold, a limit is one that a file names. The root group's limit is a number, so
// that there always is one.
TEST_F(GroupMemoryTest, AnyTextIsReadToSomeEnd) {
  std::mt19937 random(20);
  const std::vector<std::string> words = {"0::",
                                          "/",
                                          "a",
                                          "..",
                                          ":",
                                          "7:memory:",
                                          ",memory,",
                                          "\n",
                                          " ",
                                          "max",
                                          "4096",
                                          "anon",
                                          "99999999999999999999",
                                          "-1",
                                          "\xff",
                                          "total_rss"};
  const auto text = [&](int most) {
    std::string out;
    for (int n = static_cast<int>(random() % static_cast<unsigned>(most)); n > 0; --n)
      out += words[random() % words.size()];
    return out;
  };
  for (int i = 0; i < 300; ++i) {
    Write("/proc/self/cgroup", text(12) + "\n0::/a/b\n" + text(12));
    for (const char* file : {"/a/b/memory.max", "/a/memory.max", "/a/memory.stat", "/a/memory.current"})
      Write(std::string("/sys/fs/cgroup") + file, text(3));
    Write("/sys/fs/cgroup/memory.max", "12345\n");
    const auto group = Read();
    ASSERT_TRUE(group.has_value());
    EXPECT_TRUE(group->limit_bytes == 4096 || group->limit_bytes == 12345 || group->limit_bytes == 0)
        << group->limit_bytes;
  }
}

TEST(MachineTest, ReadsThisMachine) {
  const Machine machine = ReadMachine();
  EXPECT_GT(machine.available_bytes, uint64_t{1} << 20);
  EXPECT_GE(machine.memory_bytes, machine.available_bytes);
  EXPECT_GE(machine.cores, 1);
  EXPECT_NE(machine.random, ReadMachine().random);
}

}  // namespace
}  // namespace perigee::engine
