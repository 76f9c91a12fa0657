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

TEST_F(CudaKernelTest, LatentAttention) {
  for (const MlaDims& dims : {MlaDims{4, 128, 64, 128, 512}, MlaDims{32, 128, 64, 128, 512},
                              MlaDims{3, 12, 9, 5, 21}, MlaDims{8, 16, 16, 8, 32}}) {
    SCOPED_TRACE(::testing::Message() << dims.num_heads << " heads, rank " << dims.rank);
    const StoredWeights kv_b(random_, DType::kBF16, dims.num_heads * (dims.nope + dims.value), dims.rank,
                             1 / std::sqrt(static_cast<double>(dims.rank)));
    const MlaWeights host = MlaWeights::Pack(dims, kv_b.matrix());
    const MlaWeights device = MlaWeights::Pack(dims, kv_b.matrix(), Device::kCuda);
    const int64_t blocks = 20, block_tokens = 64;
    std::vector<int32_t> tables(18);
    std::iota(tables.begin(), tables.end(), 1);
    random_.Shuffle(tables);
    Twin q = Rows(kRowsOfSegments, dims.num_heads * dims.qk()), latent = Rows(kRowsOfSegments, dims.rank),
         shared_key = Rows(kRowsOfSegments, dims.rope);
    const std::vector<float> records = Rounded(random_.Normals(blocks * block_tokens * dims.record()));
    std::vector<float> host_cache = records;
    std::vector<uint16_t> narrow;
    for (const float r : records) narrow.push_back(FloatToBFloat16(r));
    const Buffer device_cache = Buffer::Of(narrow.data(), narrow.size() * 2, Device::kCuda);
    const PagedKvView host_view{host_cache.data(), block_tokens, dims.record()};
    const PagedKvView device_view{device_cache.data(), block_tokens, dims.record(), DType::kBF16};
    const std::vector<Segment> segments = SomeSegments();
    MlaAppend(cpu(), latent.host(), shared_key.host(), {segments, tables}, host_view);
    MlaAppend(gpu(), latent.device(), shared_key.device(), {segments, tables}, device_view);
    for (const bool decode : {false, true}) {
      const auto attend = decode ? MlaDecode : MlaPrefill;
      const std::vector<Segment> asked = decode ? std::vector<Segment>{segments[0], segments[3]} : segments;
      const std::vector<float> nothing(static_cast<size_t>(kRowsOfSegments * dims.num_heads * dims.value),
                                       0.0f);
      Twin out(kRowsOfSegments, dims.num_heads * dims.value, nothing);
      attend(cpu(), dims, host, q.host(), {asked, tables}, host_view, out.host());
      attend(gpu(), dims, device, q.device(), {asked, tables}, device_view, out.device());
      // Rows of no segment are nobody's.
      std::vector<float> actual, expected;
      device_memory::Wait(gpu().stream);
      const std::vector<float> all = out.actual();
      for (const Segment& s : asked) {
        const auto width = static_cast<std::ptrdiff_t>(dims.num_heads * dims.value);
        actual.insert(actual.end(), all.begin() + s.q_begin * width,
                      all.begin() + (s.q_begin + s.q_len) * width);
        expected.insert(expected.end(), out.expected().begin() + s.q_begin * width,
                        out.expected().begin() + (s.q_begin + s.q_len) * width);
      }
      EXPECT_TRUE(Near(actual, expected, kRoundedOften));
    }
    std::vector<uint16_t> after(narrow.size());
    device_memory::CopyToHost(after.data(), device_cache.data(), after.size() * 2, {});
    device_memory::Wait({});
    for (size_t i = 0; i < after.size(); ++i) ASSERT_EQ(BFloat16ToFloat(after[i]), host_cache[i]) << i;
  }
}

}  // namespace
}  // namespace perigee::kernels
