// MLA on CUDA against the CPU's kernels on the same inputs, rounded to BF16 beforehand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/mla/mla.h"
#include "kernels/twin.h"
#include "testing/stored_weights.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

constexpr int64_t kBlockTokens = 64;

// One sequence's rows of a step. With `of` >= 0 they are further rows of that sequence, which must be longer.
struct Lengths {
  int64_t q_len, kv_len;
  int of = -1;
};

// Segments with a row of nobody after each, their blocks in mixed order.
struct Step {
  explicit Step(const std::vector<Lengths>& lengths, Random& random) {
    int64_t blocks_needed = 0;
    for (const Lengths& r : lengths) {
      const int64_t blocks = (r.kv_len + kBlockTokens - 1) / kBlockTokens;
      const bool own = r.of < 0;
      segments.push_back({.q_begin = rows,
                          .q_len = r.q_len,
                          .kv_len = r.kv_len,
                          .slot = r.q_len == 0 ? -1 : 0,
                          .first_block = own ? static_cast<int32_t>(blocks_needed)
                                             : segments[static_cast<size_t>(r.of)].first_block});
      rows += r.q_len + 1;
      if (own) blocks_needed += blocks;
    }
    num_blocks = blocks_needed + 2;
    std::vector<int32_t> order(static_cast<size_t>(num_blocks));
    std::iota(order.begin(), order.end(), 0);
    random.Shuffle(order);
    tables.assign(order.begin(), order.begin() + blocks_needed);
  }

  // Records of positions that the step does not write itself; the rest of the pool is NaN.
  std::vector<float> Pool(int64_t width, Random& random) const {
    std::vector<float> pool(static_cast<size_t>(num_blocks * kBlockTokens * width), NAN);
    for (const Segment& s : segments) {
      for (int64_t p = 0; p < s.kv_len - s.q_len; ++p) {
        const int64_t block = tables[static_cast<size_t>(s.first_block + p / kBlockTokens)];
        float* record = pool.data() + (block * kBlockTokens + p % kBlockTokens) * width;
        if (!std::isnan(record[0])) continue;
        const std::vector<float> values = Rounded(random.Normals(width));
        std::copy(values.begin(), values.end(), record);
      }
    }
    return pool;
  }

  std::vector<Segment> segments;
  std::vector<int32_t> tables;
  int64_t rows = 0;
  int64_t num_blocks = 0;
};

class CudaMlaTest : public CudaKernelTest {
 protected:
  // Appends the step's rows on both devices and compares pools, then what the kernel makes of them.
  void Compare(const MlaDims& dims, const std::vector<Lengths>& lengths, decltype(&MlaPrefill) attend) {
    SCOPED_TRACE(::testing::Message()
                 << dims.num_heads << " heads, rank " << dims.rank << ", " << lengths.size()
                 << " segments, the first " << lengths[0].q_len << " of " << lengths[0].kv_len);
    const Step step(lengths, random_);
    const StoredWeights kv_b(random_, DType::kBF16, dims.num_heads * (dims.nope + dims.value), dims.rank,
                             1 / std::sqrt(static_cast<double>(dims.rank)));
    const MlaWeights host = MlaWeights::Pack(dims, kv_b.matrix());
    const MlaWeights device = MlaWeights::Pack(dims, kv_b.matrix(), Device::kCuda);
    std::vector<float> pool = step.Pool(dims.record(), random_);
    std::vector<uint16_t> narrow;
    for (const float r : pool) narrow.push_back(FloatToBFloat16(r));
    const Buffer device_pool = Buffer::Of(narrow.data(), narrow.size() * 2, Device::kCuda);
    const PagedKvView host_view{pool.data(), kBlockTokens, dims.record()};
    const PagedKvView device_view{device_pool.data(), kBlockTokens, dims.record(), DType::kBF16,
                                  step.num_blocks};
    const PagedSegments segments{step.segments, step.tables};
    Twin latent = Rows(step.rows, dims.rank), shared_key = Rows(step.rows, dims.rope);
    MlaAppend(cpu(), latent.host(), shared_key.host(), segments, host_view);
    MlaAppend(gpu(), latent.device(), shared_key.device(), segments, device_view);
    ExpectSamePool(device_pool, pool);

    Twin q = Rows(step.rows, dims.num_heads * dims.qk());
    Twin out(step.rows, dims.num_heads * dims.value);
    attend(cpu(), dims, host, q.host(), segments, host_view, out.host());
    attend(gpu(), dims, device, q.device(), segments, device_view, out.device());
    device_memory::Wait(gpu().stream);
    EXPECT_TRUE(Near(OfSegments(step, out.actual()), OfSegments(step, out.expected()), kRoundedOften));
  }

  // Rows of no segment are nobody's.
  static std::vector<float> OfSegments(const Step& step, const std::vector<float>& all) {
    std::vector<float> rows;
    const auto width = static_cast<int64_t>(all.size()) / step.rows;
    for (const Segment& s : step.segments) {
      rows.insert(rows.end(), all.begin() + s.q_begin * width, all.begin() + (s.q_begin + s.q_len) * width);
    }
    return rows;
  }

  void ExpectSamePool(const Buffer& device_pool, const std::vector<float>& pool) {
    std::vector<uint16_t> actual(pool.size());
    device_memory::CopyToHost(actual.data(), device_pool.data(), actual.size() * 2, gpu().stream);
    device_memory::Wait(gpu().stream);
    for (size_t i = 0; i < pool.size(); ++i) {
      const float value = BFloat16ToFloat(actual[i]);
      ASSERT_TRUE(value == pool[i] || (std::isnan(value) && std::isnan(pool[i]))) << i;
    }
  }
};

// The widths that tensor cores take, of few and of many heads, and others.
const MlaDims kFew{4, 128, 64, 128, 512}, kMany{32, 128, 64, 128, 512}, kOne{1, 128, 64, 128, 512};
const MlaDims kOthers[] = {{3, 12, 9, 5, 21}, {8, 16, 16, 8, 32}, {2, 32, 32, 64, 64}, {5, 64, 64, 128, 72}};

// A padding segment among them.
const std::vector<Lengths> kPrompts = {{1, 1},   {63, 63}, {64, 64}, {65, 65},  {0, 0},
                                       {3, 200}, {1, 65},  {33, 97}, {130, 700}};
const std::vector<Lengths> kLastRows = {{1, 200}, {1, 1}, {0, 0}, {1, 64}, {1, 65}, {1, 1000}};

TEST_F(CudaMlaTest, Prompts) {
  Compare(kFew, kPrompts, MlaPrefill);
  Compare(kMany, kPrompts, MlaPrefill);
  for (const MlaDims& dims : kOthers) Compare(dims, kPrompts, MlaPrefill);
}

TEST_F(CudaMlaTest, LastRows) {
  Compare(kFew, kLastRows, MlaDecode);
  Compare(kMany, kLastRows, MlaDecode);
  for (const MlaDims& dims : kOthers) Compare(dims, kLastRows, MlaDecode);
  // Of a prompt, where the last layer works for the rows that were asked for.
  Compare(kFew, kLastRows, MlaPrefill);
}

TEST_F(CudaMlaTest, PromptsReadAbsorbed) {
  Compare(kFew, kPrompts, MlaDecode);
  // More rows than a launch takes, segments cut by its end.
  Compare(kOne, std::vector<Lengths>(9, {150, 180}), MlaDecode);
}

// What a rank has of a prompt that is cut in zigzag.
TEST_F(CudaMlaTest, SegmentsOfOneSequence) {
  for (const auto attend : {MlaPrefill, MlaDecode}) {
    Compare(kFew, {{60, 300}, {50, 150, 0}, {10, 40}}, attend);
  }
}

TEST_F(CudaMlaTest, MoreSegmentsThanALaunch) {
  Compare(kOne, std::vector<Lengths>(150, {35, 39}), MlaPrefill);
}

// Keys in several rounds, rows that see the border of one, and a short sequence that shares a round.
TEST_F(CudaMlaTest, MoreKeysThanARound) {
  Compare(kOne, {{70, 40000}, {100, 32800}, {40, 40}, {3, 32768}}, MlaPrefill);
}

// Lengths that have plans of their own: whole prompts, and the last chunk of one in two rounds.
TEST_F(CudaMlaTest, LengthsThatRecur) {
  Compare(kOne, {{4096, 4096}}, MlaPrefill);
  Compare(kOne, {{4096, 36864}}, MlaPrefill);
}

}  // namespace
}  // namespace perigee::kernels
