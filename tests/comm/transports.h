#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "testing/random.h"

namespace perigee::test {

struct WorldCase {
  std::string_view transport;
  int size;
};

// Every test of collectives runs on each of these. A new transport is a row. Ranks that are processes have
// test programs of their own, which mpirun starts.
inline std::vector<WorldCase> AllWorlds(int min_size = 1) {
  struct Row {
    std::string_view transport;
    int max_size;
  };
  std::vector<WorldCase> worlds;
#ifdef PERIGEE_TEST_UNDER_MPIRUN
  const std::vector<Row> rows = {{"mpi", 4}};
#else
  const std::vector<Row> rows = {{"local", 1}, {"thread", 8}};
#endif
  for (const Row& row : rows) {
    for (int size = min_size; size <= row.max_size; ++size) worlds.push_back({row.transport, size});
  }
  return worlds;
}

inline std::string WorldName(const testing::TestParamInfo<WorldCase>& info) {
  return std::string(info.param.transport) + std::to_string(info.param.size);
}

// Whether every rank of a test has a process of its own, and so none sees the variables of another.
inline bool RanksAreProcesses(const WorldCase& world) {
  return world.transport == "mpi";
}

// A rank's data of a round, which every rank can compute: magnitudes are spread so that another order of
// additions gives other bits.
inline std::vector<float> RankData(uint64_t round, int rank, int64_t n) {
  Random random(round * 1000 + static_cast<uint64_t>(rank));
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) {
    const auto scale = static_cast<double>(int64_t{1} << random.Below(12));
    x = static_cast<float>(random.Normal() * scale);
  }
  return out;
}

// The tree that sums must follow, written out by levels: neighbours merge, an odd last one moves up.
inline float ExpectedSum(std::vector<float> terms) {
  while (terms.size() > 1) {
    std::vector<float> merged;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) merged.push_back(terms[i] + terms[i + 1]);
    if (terms.size() % 2 == 1) merged.push_back(terms.back());
    terms = merged;
  }
  return terms[0];
}

// The element-wise ExpectedSum of all ranks' RankData.
inline std::vector<float> ExpectedSums(uint64_t round, int size, int64_t n) {
  std::vector<std::vector<float>> data;
  for (int r = 0; r < size; ++r) data.push_back(RankData(round, r, n));
  std::vector<float> out;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    std::vector<float> terms;
    for (const std::vector<float>& d : data) terms.push_back(d[i]);
    out.push_back(ExpectedSum(terms));
  }
  return out;
}

inline int64_t Total(std::span<const int64_t> counts) {
  int64_t total = 0;
  for (const int64_t n : counts) total += n;
  return total;
}

// counts[0] + ... + counts[rank - 1]
inline int64_t Offset(std::span<const int64_t> counts, int rank) {
  return Total(counts.first(static_cast<size_t>(rank)));
}

}  // namespace perigee::test
