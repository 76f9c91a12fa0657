#include "kernels/mla/mla.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/mla/mla_problem.h"
#include "testing/targets.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

struct Kernel {
  const char* name;
  MlaKernel run;
};

class MlaTest : public ::testing::TestWithParam<Kernel> {
 protected:
  void ExpectReference(const MlaDims& dims, const StoredWeights& kv_b, const std::vector<MlaSequence>& batch,
                       const Tolerance& tolerance, int64_t block_tokens = 64) {
    const MlaWeights weights = MlaWeights::Pack(dims, kv_b.matrix());
    std::vector<std::vector<double>> expected;
    for (const MlaSequence& s : batch) expected.push_back(MlaReference(dims, s, kv_b));
    ForEachTarget([&](int64_t) {
      const auto results = RunMla(GetParam().run, dims, weights, batch, 2, block_tokens);
      for (size_t i = 0; i < batch.size(); ++i) {
        EXPECT_TRUE(Near(results[i], expected[i], tolerance))
            << batch[i].q_len << " queries, " << batch[i].kv_len << " keys, " << dims.num_heads
            << " heads, nope " << dims.nope << ", rope " << dims.rope << ", value " << dims.value << ", rank "
            << dims.rank;
      }
    });
  }
};

// (queries, keys): one key, block borders of 64, cached prefixes.
const std::vector<std::pair<int64_t, int64_t>> kLengths = {{1, 1},   {1, 2},   {2, 2},    {1, 63},
                                                           {1, 64},  {1, 65},  {3, 70},   {63, 63},
                                                           {64, 64}, {65, 65}, {66, 130}, {129, 129}};

std::vector<MlaSequence> RandomBatch(Random& random, const MlaDims& dims, double spread = 1) {
  std::vector<MlaSequence> batch;
  for (const auto& [q, kv] : kLengths) batch.push_back(RandomMlaSequence(random, dims, q, kv, spread));
  return batch;
}

TEST_P(MlaTest, ShapesAgainstTheReference) {
  Random random(51);
  // Value width other than the nope width, no shared key, ranks and widths that fill no vector, the released
  // model's widths.
  for (const MlaDims& dims : {MlaDims{2, 24, 8, 40, 50}, MlaDims{1, 5, 3, 7, 11}, MlaDims{6, 32, 16, 24, 48},
                              MlaDims{3, 16, 8, 16, 33}, MlaDims{2, 20, 0, 12, 16}}) {
    const StoredWeights kv_b = RandomKvB(random, dims);
    ExpectReference(dims, kv_b, RandomBatch(random, dims), kMlaTolerance);
  }
  const MlaDims full{2, 128, 64, 128, 512};
  ExpectReference(full, RandomKvB(random, full),
                  {RandomMlaSequence(random, full, 1, 130), RandomMlaSequence(random, full, 70, 70)},
                  kMlaTolerance);
}

TEST_P(MlaTest, StoredAsF32AndF16) {
  Random random(52);
  const MlaDims dims{2, 24, 8, 40, 50};
  for (DType dtype : {DType::kF32, DType::kF16}) {
    ExpectReference(dims, RandomKvB(random, dims, dtype), RandomBatch(random, dims), kMlaTolerance);
  }
}

TEST_P(MlaTest, ScoresSpreadToSixtyAndMore) {
  Random random(53);
  const MlaDims dims{2, 24, 8, 40, 50};
  ExpectReference(dims, RandomKvB(random, dims), RandomBatch(random, dims, 20), kMlaWideTolerance);
}

TEST_P(MlaTest, ManyKeysCrossPiecesAndSplits) {
  Random random(54);
  const MlaDims dims{2, 24, 8, 40, 50};
  std::vector<MlaSequence> batch;
  for (const auto& [q, kv] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 511}, {1, 512}, {1, 513}, {1, 2500}, {2, 1025}, {70, 2200}, {3, 4100}}) {
    batch.push_back(RandomMlaSequence(random, dims, q, kv, 4));
  }
  ExpectReference(dims, RandomKvB(random, dims), batch, kMlaWideTolerance);
}

TEST_P(MlaTest, ScoresThatGrowAndFallOverTheKeys) {
  // The running maximum moves with every block, or never; or one key far back outweighs all.
  Random random(55);
  const MlaDims dims{1, 4, 2, 6, 5};
  const StoredWeights kv_b = RandomKvB(random, dims);
  std::vector<MlaSequence> batch;
  for (int kind : {0, 1, 2}) {
    MlaSequence s = RandomMlaSequence(random, dims, 2, 1200);
    for (size_t i = 0; i < s.q.size(); ++i) s.q[i] = i % 6 < 4 ? 0.0f : 1.0f;  // only the shared key counts
    for (int64_t t = 0; t < 1200; ++t) {
      const double ramp = kind == 2 ? (t == 37 ? 60 : 0) : (kind == 0 ? t : 1199 - t) * 0.05;
      s.shared_key[t * 2] = s.shared_key[t * 2 + 1] = static_cast<float>(ramp);
    }
    batch.push_back(std::move(s));
  }
  ExpectReference(dims, kv_b, batch, kMlaWideTolerance);
}

TEST_P(MlaTest, EqualScoresAverageTheValues) {
  Random random(56);
  const MlaDims dims{2, 16, 8, 24, 32};
  MlaSequence s = RandomMlaSequence(random, dims, 5, 700);
  for (float& q : s.q) q = 0;
  ExpectReference(dims, RandomKvB(random, dims), {s}, kMlaTolerance);
}

TEST_P(MlaTest, BlockSizesDoNotMatter) {
  Random random(57);
  const MlaDims dims{2, 16, 8, 24, 32};
  const StoredWeights kv_b = RandomKvB(random, dims);
  const MlaWeights weights = MlaWeights::Pack(dims, kv_b.matrix());
  const std::vector<MlaSequence> batch = RandomBatch(random, dims);
  const auto expected = RunMla(GetParam().run, dims, weights, batch);
  for (int64_t block_tokens : {128, 192, 1024}) {
    const auto results = RunMla(GetParam().run, dims, weights, batch, 2, block_tokens);
    for (size_t i = 0; i < batch.size(); ++i) EXPECT_TRUE(SameBits(results[i], expected[i]));
  }
}

TEST_P(MlaTest, EarlierTokensMayChangePlaces) {
  // No positions: the last row's result is the same when the keys before it are permuted.
  Random random(58);
  const MlaDims dims{2, 16, 8, 24, 32};
  const StoredWeights kv_b = RandomKvB(random, dims);
  const MlaSequence s = RandomMlaSequence(random, dims, 1, 150);
  MlaSequence turned = s;
  for (int64_t t = 0; t < 149; ++t) {
    std::copy_n(s.latent.begin() + t * dims.rank, dims.rank, turned.latent.begin() + (148 - t) * dims.rank);
    std::copy_n(s.shared_key.begin() + t * dims.rope, dims.rope,
                turned.shared_key.begin() + (148 - t) * dims.rope);
  }
  const auto r = RunMla(GetParam().run, dims, MlaWeights::Pack(dims, kv_b.matrix()), {s, turned});
  EXPECT_TRUE(Near(r[1], ToDouble(r[0]), kMlaTolerance));
}

INSTANTIATE_TEST_SUITE_P(Forms, MlaTest,
                         ::testing::Values(Kernel{"Prefill", MlaPrefill}, Kernel{"Decode", MlaDecode}),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

}  // namespace
}  // namespace perigee::kernels
