#include "engine/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>

#include "base/strings.h"
#include "tensor/device_memory.h"

namespace perigee::engine {
namespace {

// A file that holds one number; "max" and what is absent are nothing.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  file >> text;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The number behind `key` in a file of "key number" lines (memory.stat), or of "key: number kB" lines.
std::optional<uint64_t> ReadKey(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// How one version of the hierarchy spells it.
struct Names {
  const char* folder;
  const char* limit;
  const char* anonymous;  // in memory.stat, with the groups below
  const char* current;
};
constexpr Names kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss",
                             "memory.usage_in_bytes"};
constexpr Names kVersion2 = {"/sys/fs/cgroup", "memory.max", "anon", "memory.current"};

void ReadGroup(const std::string& group, const Names& names, std::optional<GroupMemory>& tightest) {
  const std::optional<uint64_t> limit = ReadNumber(StrCat(group, "/", names.limit));
  if (!limit || (tightest && tightest->limit_bytes <= *limit)) return;
  // Cached file pages go when memory is needed.
  std::optional<uint64_t> used = ReadKey(group + "/memory.stat", names.anonymous);
  if (!used) used = ReadNumber(StrCat(group, "/", names.current));
  tightest = {*limit, used.value_or(0)};
}

// The group and all above it. In a container the path may name groups that are not to be seen there.
void ReadPath(const std::string& root, const Names& names, std::string path,
              std::optional<GroupMemory>& tightest) {
  const std::string top = root + names.folder;
  while (path.size() > 1) {
    ReadGroup(top + path, names, tightest);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  ReadGroup(top, names, tightest);
}

uint64_t PageBytes(int name) {
  return static_cast<uint64_t>(sysconf(name)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int32_t CountCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return static_cast<int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

std::optional<GroupMemory> ReadGroupMemory(const std::string& root) {
  std::optional<GroupMemory> tightest;
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // number:controllers:path; version 2 has number 0 and no controllers.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = StrCat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") ReadPath(root, kVersion2, path, tightest);
    if (controllers.find(",memory,") != std::string::npos) ReadPath(root, kVersion1, path, tightest);
  }
  return tightest;
}

Machine ReadMachine() {
  std::random_device random;
  Machine machine{.memory_bytes = PageBytes(_SC_PHYS_PAGES),
                  .available_bytes = PageBytes(_SC_AVPHYS_PAGES),
                  .cores = CountCores(),
                  .random = (uint64_t{random()} << 32) | random()};
  if (const auto kib = ReadKey("/proc/meminfo", "MemAvailable:")) machine.available_bytes = *kib * 1024;
  if (const auto group = ReadGroupMemory(""); group && group->limit_bytes < machine.memory_bytes) {
    machine.memory_bytes = group->limit_bytes;
    machine.available_bytes = std::min(machine.available_bytes,
                                       group->limit_bytes - std::min(group->limit_bytes, group->used_bytes));
  }
  return machine;
}

StatusOr<Machine> ReadMachine(Device device) {
  Machine machine = ReadMachine();
  if (device == Device::kCpu) return machine;
  PERIGEE_RETURN_IF_ERROR(device_memory::Open(0));
  const device_memory::Room room = device_memory::Ask();
  machine.memory_bytes = room.total;
  machine.available_bytes = room.free;
  return machine;
}

}  // namespace perigee::engine
