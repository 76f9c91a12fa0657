// What must be equal to the bit: pieces, neighbours, threads, heads; and the records that MlaAppend writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/mla/mla.h"
#include "kernels/mla/mla_problem.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

const MlaDims kDims{3, 24, 8, 40, 50};

struct Kernel {
  const char* name;
  MlaKernel run;
};

class MlaBitsTest : public ::testing::TestWithParam<Kernel> {
 protected:
  MlaBitsTest() : kv_b_(RandomKvB(random_, kDims)), weights_(MlaWeights::Pack(kDims, kv_b_.matrix())) {}

  std::vector<float> Run(const MlaSequence& s, int threads = 2) {
    return RunMla(GetParam().run, kDims, weights_, {s}, threads)[0];
  }

  Random random_{61};
  StoredWeights kv_b_;
  MlaWeights weights_;
};

TEST_P(MlaBitsTest, PiecesOfAPrompt) {
  const MlaSequence s = RandomMlaSequence(random_, kDims, 257, 257, 3);
  const std::vector<float> whole = Run(s);
  for (int64_t length : {1, 3, 64, 100}) {
    std::vector<float> out;
    for (int64_t begin = 0; begin < 257; begin += length) {
      const auto piece = Run(MlaPiece(kDims, s, begin, std::min<int64_t>(length, 257 - begin)));
      out.insert(out.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(SameBits(out, whole)) << "pieces of " << length;
  }
}

TEST_P(MlaBitsTest, PiecesOverALongPrefix) {
  const MlaSequence s = RandomMlaSequence(random_, kDims, 192, 2300, 3);
  const std::vector<float> whole = Run(s);
  std::vector<float> out;
  for (int64_t begin : {0, 64, 128}) {
    const auto piece = Run(MlaPiece(kDims, s, begin, 64));
    out.insert(out.end(), piece.begin(), piece.end());
  }
  EXPECT_TRUE(SameBits(out, whole));
}

TEST_P(MlaBitsTest, ThreadsAndNeighbours) {
  std::vector<MlaSequence> batch;
  for (int64_t q : {1, 64, 65, 3}) batch.push_back(RandomMlaSequence(random_, kDims, q, q + 100, 3));
  batch.push_back(RandomMlaSequence(random_, kDims, 1, 1500, 3));
  std::vector<std::vector<float>> alone;
  for (const MlaSequence& s : batch) alone.push_back(Run(s, 1));
  for (int threads : {1, 2, 3}) {
    const auto together = RunMla(GetParam().run, kDims, weights_, batch, threads);
    for (size_t i = 0; i < batch.size(); ++i) EXPECT_TRUE(SameBits(together[i], alone[i])) << threads;
  }
  std::reverse(batch.begin(), batch.end());
  std::reverse(alone.begin(), alone.end());
  const auto reversed = RunMla(GetParam().run, kDims, weights_, batch, 2);
  for (size_t i = 0; i < batch.size(); ++i) EXPECT_TRUE(SameBits(reversed[i], alone[i]));
}

TEST_P(MlaBitsTest, SomeHeadsAlone) {
  // A rank of a tensor-parallel group holds the rows of its heads.
  const MlaSequence s = RandomMlaSequence(random_, kDims, 70, 140, 3);
  const std::vector<float> whole = Run(s);
  MlaDims two = kDims;
  two.num_heads = 2;
  const MlaWeights part =
      MlaWeights::Pack(two, kv_b_.matrix().Rows(kDims.nope + kDims.value, 2 * (kDims.nope + kDims.value)));
  MlaSequence tail = s;
  tail.q.clear();
  std::vector<float> expected;
  for (int64_t t = 0; t < 70; ++t) {
    const int64_t qw = kDims.qk(), vw = kDims.value;
    tail.q.insert(tail.q.end(), s.q.begin() + (t * 3 + 1) * qw, s.q.begin() + (t * 3 + 3) * qw);
    expected.insert(expected.end(), whole.begin() + (t * 3 + 1) * vw, whole.begin() + (t * 3 + 3) * vw);
  }
  EXPECT_TRUE(SameBits(RunMla(GetParam().run, two, part, {tail})[0], expected));
}

INSTANTIATE_TEST_SUITE_P(Forms, MlaBitsTest,
                         ::testing::Values(Kernel{"Prefill", MlaPrefill}, Kernel{"Decode", MlaDecode}),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

TEST(Mla, PrefillAndDecodeAgree) {
  Random random(62);
  const StoredWeights kv_b = RandomKvB(random, kDims);
  const MlaWeights weights = MlaWeights::Pack(kDims, kv_b.matrix());
  const MlaSequence s = RandomMlaSequence(random, kDims, 130, 700, 3);
  const auto prefill = RunMla(MlaPrefill, kDims, weights, {s})[0];
  EXPECT_TRUE(Near(RunMla(MlaDecode, kDims, weights, {s})[0], ToDouble(prefill), kMlaWideTolerance));
}

TEST(MlaAppend, WritesTheNewRecordsAndNothingElse) {
  Random random(63);
  const std::vector<MlaSequence> sequences = {RandomMlaSequence(random, kDims, 1, 1),
                                              RandomMlaSequence(random, kDims, 40, 75),
                                              RandomMlaSequence(random, kDims, 1, 49)};
  MlaCache cache(kDims, {1, 75, 49}), expected(kDims, {1, 75, 49});
  std::vector<float> latent, shared_key;
  std::vector<Segment> segments;
  int64_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const MlaSequence& s = sequences[i];
    const int64_t old = s.kv_len - s.q_len;
    cache.Fill(i, s, old);
    expected.Fill(i, s, s.kv_len);
    latent.insert(latent.end(), s.latent.begin() + old * kDims.rank, s.latent.end());
    shared_key.insert(shared_key.end(), s.shared_key.begin() + old * kDims.rope, s.shared_key.end());
    segments.push_back(
        {.q_begin = rows, .q_len = s.q_len, .kv_len = s.kv_len, .first_block = cache.first_block(i)});
    rows += s.q_len;
  }
  std::reverse(segments.begin(), segments.end());
  KernelRunner runner(3);
  const PaddedMatrix lm(rows, kDims.rank, latent), km(rows, kDims.rope, shared_key);
  MlaAppend(runner.context(), lm.view(), km.view(), {segments, cache.tables()}, cache.view());
  EXPECT_TRUE(SameBits(cache.data(), expected.data()));
}

}  // namespace
}  // namespace perigee::kernels
