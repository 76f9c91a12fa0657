#include "kernels/mla/mla_sm90.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/mla/mla_flash_cudnn.h"
#include "testing/compare.h"
#include "testing/device_array.h"
#include "testing/random.h"

namespace perigee::test {
namespace {

namespace cuda = kernels::cuda;
using Bf16 = __nv_bfloat16;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Outputs are rounded to bf16 once and weights once before their product.
constexpr Tolerance kBf16{1e-3, 0.02, 0, 6e-3};
constexpr Tolerance kLse{5e-3, 0, 0, kInfinity};

void Synchronise() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
}

struct Attention {
  std::vector<double> out;
  double lse = -kInfinity;
};

// softmax(scale q k) v over `keys` keys in double; row(j) points at key j, value(j) at its value.
template <typename Key, typename Value>
Attention Attend(const double* q, int64_t qk, int64_t width, int64_t keys, double scale, Key key,
                 Value value) {
  Attention a;
  a.out.assign(static_cast<size_t>(width), 0.0);
  std::vector<double> score;
  double max = -kInfinity, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    double s = 0;
    for (int64_t c = 0; c < qk; ++c) s += q[c] * key(j)[c];
    score.push_back(s * scale);
    max = std::fmax(max, score.back());
  }
  for (int64_t j = 0; j < keys; ++j) {
    const double p = std::exp(score[static_cast<size_t>(j)] - max);
    sum += p;
    for (int64_t c = 0; c < width; ++c) a.out[static_cast<size_t>(c)] += p * value(j)[c];
  }
  for (double& x : a.out) x /= keys > 0 ? sum : 1;
  if (keys > 0) a.lse = max + std::log(sum);
  return a;
}

// Paged records of several sequences, blocks in random order, NaN wherever nothing was written.
struct Pages {
  int rank, rope, block_tokens;
  std::vector<Segment> runs;
  std::vector<int32_t> tables;
  std::vector<std::vector<double>> records;  // of each run's sequence [kv_len, rank + rope]
  DeviceArray<Bf16> memory{1};
  DeviceArray<Segment> device_runs{1};
  DeviceArray<int32_t> device_tables{1};
  int64_t blocks = 0;

  int width() const { return rank + rope; }
  cuda::MlaPool Pool() const { return {memory.data(), blocks, block_tokens, rank, rope}; }
  cuda::MlaRuns Runs() const {
    return {device_runs.data(), static_cast<int>(runs.size()), device_tables.data()};
  }

  // lengths: (q_len, kv_len) of each sequence.
  Pages(int rank_, int rope_, int block, const std::vector<std::pair<int64_t, int64_t>>& lengths,
        Random& random)
      : rank(rank_), rope(rope_), block_tokens(block) {
    for (const auto& [q_len, kv_len] : lengths) blocks += (kv_len + block - 1) / block;
    blocks += 3;
    std::vector<int32_t> order;
    for (int32_t i = 0; i < static_cast<int32_t>(blocks); ++i) order.push_back(i);
    random.Shuffle(order);
    std::vector<Bf16> host(static_cast<size_t>(blocks * block * width()),
                           ToBf16(std::numeric_limits<double>::quiet_NaN()));
    int64_t row = 0;
    size_t next = 0;
    for (const auto& [q_len, kv_len] : lengths) {
      runs.push_back({row, q_len, kv_len, 0, static_cast<int32_t>(tables.size())});
      row += q_len;
      const auto values = AllToBf16(random.Normals(kv_len * width()));
      records.push_back(AllFromBf16(values));
      for (int64_t p = 0; p < kv_len; ++p) {
        if (p % block == 0) tables.push_back(order[next++]);
        std::copy_n(values.begin() + p * width(), width(),
                    host.begin() + (tables.back() * int64_t{block} + p % block) * width());
      }
    }
    Replace(memory, host);
    Replace(device_runs, runs);
    tables.push_back(0);
    Replace(device_tables, tables);
  }

  template <typename T>
  static void Replace(DeviceArray<T>& array, const std::vector<T>& host) {
    array.~DeviceArray<T>();
    new (&array) DeviceArray<T>(host);
  }
};

// Absorbed attention of every row and head against double; rows beyond the runs are padding.
void RunDecode(const Pages& pages, int heads, int padding, bool hopper, Random& random) {
  int64_t used = 0;
  for (const Segment& r : pages.runs) used += r.q_len;
  const int rows = static_cast<int>(used) + padding;
  const int width = pages.width();
  const auto q = AllToBf16(random.Normals(int64_t{rows} * heads * width));
  const std::vector<double> wide_q = AllFromBf16(q);
  const DeviceArray<Bf16> device_q(q), out(int64_t{rows} * heads * pages.rank);
  const DeviceArray<float> lse(int64_t{rows} * heads);
  const DeviceArray<std::byte> workspace(static_cast<int64_t>(cuda::MlaDecodeWorkspaceBytes(rows, heads)));
  const double scale = 1 / std::sqrt(width);
  const cuda::MlaDecodeArgs args{pages.Pool(), pages.Runs(), device_q.data(),
                                 rows,         heads,        static_cast<float>(scale),
                                 out.data(),   lse.data(),   workspace.data()};
  ASSERT_EQ(hopper ? cuda::MlaDecodeHopper(args, nullptr) : cuda::MlaDecodePlain(args, nullptr), cudaSuccess);
  Synchronise();
  std::vector<double> expected, expected_lse;
  for (size_t s = 0; s < pages.runs.size(); ++s) {
    const Segment& run = pages.runs[s];
    const double* records = pages.records[s].data();
    const auto record = [&](int64_t j) { return records + j * width; };
    for (int64_t i = 0; i < run.q_len; ++i) {
      for (int h = 0; h < heads; ++h) {
        const Attention a = Attend(wide_q.data() + ((run.q_begin + i) * heads + h) * width, width, pages.rank,
                                   run.kv_len - run.q_len + i + 1, scale, record, record);
        expected.insert(expected.end(), a.out.begin(), a.out.end());
        expected_lse.push_back(a.lse);
      }
    }
  }
  expected.resize(static_cast<size_t>(rows * heads * pages.rank), 0.0);
  expected_lse.resize(static_cast<size_t>(rows * heads), -kInfinity);
  EXPECT_TRUE(Near(AllFromBf16(out.Get()), expected, kBf16)) << rows << " rows, " << heads << " heads";
  EXPECT_TRUE(Near(lse.Get(), expected_lse, kLse)) << rows << " rows, " << heads << " heads";
}

TEST(MlaDecodeSm90, EveryLengthAroundATile) {
  Random random(1);
  const Pages pages(512, 64, 64, {{1, 1}, {1, 2}, {1, 63}, {1, 64}, {1, 65}, {0, 5}, {1, 128}, {1, 200}},
                    random);
  for (const int heads : {1, 4, 8, 16, 32}) RunDecode(pages, heads, 0, true, random);
}

TEST(MlaDecodeSm90, HeadsBeyondOneBlock) {
  Random random(2);
  const Pages pages(512, 64, 64, {{1, 100}, {1, 300}}, random);
  for (const int heads : {20, 40, 64}) RunDecode(pages, heads, 0, true, random);
}

TEST(MlaDecodeSm90, SeveralRowsOfASequencePaddingAndLargerPages) {
  Random random(3);
  const Pages pages(512, 64, 256, {{3, 65}, {1, 700}, {5, 5}, {2, 257}}, random);
  RunDecode(pages, 8, 0, true, random);
  RunDecode(pages, 8, 5, true, random);
}

TEST(MlaDecodeSm90, LongSequenceOverAllBlocks) {
  Random random(4);
  const Pages pages(512, 64, 64, {{1, 20001}, {1, 10}}, random);
  RunDecode(pages, 16, 0, true, random);
}

TEST(MlaDecodeSm90, OnlyPadding) {
  Random random(5);
  const Pages pages(512, 64, 64, {{0, 0}}, random);
  RunDecode(pages, 32, 4, true, random);
}

TEST(MlaDecodeSm90, PlainFormTakesOtherWidths) {
  Random random(6);
  for (const auto& [rank, rope] : {std::pair{40, 24}, {512, 64}, {16, 8}}) {
    const Pages pages(rank, rope, 32, {{1, 1}, {1, 33}, {2, 100}}, random);
    RunDecode(pages, 3, 1, false, random);
  }
}

TEST(MlaDecodeSm90, HopperFormRefusesOtherWidths) {
  Random random(7);
  const Pages pages(40, 24, 64, {{1, 1}}, random);
  const DeviceArray<Bf16> q(64);
  const DeviceArray<std::byte> workspace(static_cast<int64_t>(cuda::MlaDecodeWorkspaceBytes(1, 1)));
  const cuda::MlaDecodeArgs args{pages.Pool(), pages.Runs(), q.data(),        1, 1, 1,
                                 q.data(),     nullptr,      workspace.data()};
  EXPECT_EQ(cuda::MlaDecodeHopper(args, nullptr), cudaErrorInvalidValue);
}

TEST(MlaRowsSm90, AppendThenGather) {
  Random random(8);
  // Two sequences append 70 and 1 rows after a prefix; one run is padding.
  Pages pages(512, 64, 64, {{70, 200}, {0, 0}, {1, 65}}, random);
  const int64_t rows = 71, stride = 520;
  const auto latent = AllToBf16(random.Normals(rows * stride));
  const auto shared = AllToBf16(random.Normals(rows * 64));
  const DeviceArray<Bf16> device_latent(latent), device_shared(shared);
  ASSERT_EQ(
      cuda::MlaAppendRecords(
          {pages.Pool(), pages.Runs(), device_latent.data(), stride, device_shared.data(), 64}, nullptr),
      cudaSuccess);
  for (const size_t s : {size_t{0}, size_t{2}}) {
    const Segment& run = pages.runs[s];
    std::vector<double> expected = pages.records[s];
    for (int64_t i = 0; i < run.q_len; ++i) {
      double* to = expected.data() + (run.kv_len - run.q_len + i) * 576;
      for (int64_t c = 0; c < 512; ++c)
        to[c] = FromBf16(latent[static_cast<size_t>((run.q_begin + i) * stride + c)]);
      for (int64_t c = 0; c < 64; ++c)
        to[512 + c] = FromBf16(shared[static_cast<size_t>((run.q_begin + i) * 64 + c)]);
    }
    const int64_t first = 3, count = run.kv_len - first;
    const DeviceArray<Bf16> got(count * 576);
    ASSERT_EQ(cuda::MlaGatherRecords(pages.Pool(), pages.device_tables.data() + run.first_block, first, count,
                                     got.data(), nullptr),
              cudaSuccess);
    Synchronise();
    expected.erase(expected.begin(), expected.begin() + first * 576);
    EXPECT_EQ(AllFromBf16(got.Get()), expected);
  }
}

TEST(MlaRowsSm90, KeysOfExpandedLatents) {
  Random random(9);
  const int heads = 3, nope = 128, value = 64, rank = 512, rope = 64;
  const int64_t count = 65;
  const auto expanded = AllToBf16(random.Normals(count * heads * (nope + value)));
  const auto records = AllToBf16(random.Normals(count * (rank + rope)));
  const DeviceArray<Bf16> device_expanded(expanded), device_records(records),
      keys(count * heads * (nope + rope));
  ASSERT_EQ(cuda::MlaAssembleKeys({device_expanded.data(), device_records.data(), count, heads, nope, value,
                                   rank, rope, keys.data()},
                                  nullptr),
            cudaSuccess);
  Synchronise();
  const std::vector<double> got = AllFromBf16(keys.Get());
  for (int64_t i = 0; i < count * heads; ++i) {
    for (int c = 0; c < nope + rope; ++c) {
      const double expected =
          c < nope ? FromBf16(expanded[static_cast<size_t>(i * (nope + value) + c)])
                   : FromBf16(records[static_cast<size_t>(i / heads * (rank + rope) + rank + c - nope)]);
      ASSERT_EQ(got[static_cast<size_t>(i * (nope + rope) + c)], expected) << i << " " << c;
    }
  }
}

// Rows and expanded keys, the values lying inside expanded rows.
struct Expanded {
  int heads, qk, value;
  int64_t rows, keys;
  std::vector<double> q, k, v;  // v [keys, heads, qk + value], the value last
  DeviceArray<Bf16> device_q{1}, device_k{1}, device_v{1};

  Expanded(int heads_, int qk_, int value_, int64_t rows_, int64_t keys_, Random& random)
      : heads(heads_), qk(qk_), value(value_), rows(rows_), keys(keys_) {
    Fill(rows * heads * qk, random, q, device_q);
    Fill(keys * heads * qk, random, k, device_k);
    Fill(keys * heads * (qk + value), random, v, device_v);
  }
  static void Fill(int64_t count, Random& random, std::vector<double>& host, DeviceArray<Bf16>& device) {
    const auto values = AllToBf16(random.Normals(count));
    host = AllFromBf16(values);
    Pages::Replace(device, values);
  }
  const Bf16* DeviceValues() const { return device_v.data() + qk; }

  Attention Expected(int64_t row, int head, int64_t first_key, int64_t count) const {
    const auto key = [&](int64_t j) { return k.data() + ((first_key + j) * heads + head) * qk; };
    const auto val = [&](int64_t j) {
      return v.data() + ((first_key + j) * heads + head) * (qk + value) + qk;
    };
    return Attend(q.data() + (row * heads + head) * qk, qk, value, count, 1 / std::sqrt(qk), key, val);
  }
  cuda::MlaFlashShape Shape(bool causal) const {
    return {heads, qk,         value, int64_t{heads} * qk, int64_t{heads} * qk, int64_t{heads} * (qk + value),
            qk,    qk + value, causal};
  }
};

void RunFlash(const Expanded& x, const std::vector<cuda::MlaFlashRun>& runs, bool causal, bool exact) {
  auto flash = cuda::MlaFlash::Create(x.Shape(causal));
  ASSERT_TRUE(flash.ok()) << flash.status().message();
  int64_t q_len = 1, k_len = 1;
  for (const auto& r : runs) {
    q_len = std::max(q_len, r.q_len);
    k_len = std::max(k_len, r.k_len);
  }
  const auto bytes = exact ? flash.value()->PrepareExact(q_len, k_len)
                           : flash.value()->Prepare(static_cast<int64_t>(runs.size()), q_len, k_len);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const DeviceArray<std::byte> workspace(static_cast<int64_t>(bytes.value()));
  const DeviceArray<Bf16> out(x.rows * x.heads * x.value);
  const DeviceArray<float> lse(x.rows * x.heads);
  cuda::MlaFlashArgs args;
  args.q = x.device_q.data();
  args.k = x.device_k.data();
  args.v = x.DeviceValues();
  args.runs = runs;
  args.scale = static_cast<float>(1 / std::sqrt(x.qk));
  args.out = out.data();
  args.lse = lse.data();
  const Status status = flash.value()->Run(args, workspace.data(), bytes.value(), nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  Synchronise();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> expected(static_cast<size_t>(x.rows * x.heads * x.value), nan);
  std::vector<double> expected_lse(static_cast<size_t>(x.rows * x.heads), nan);
  for (const cuda::MlaFlashRun& run : runs) {
    for (int64_t i = 0; i < run.q_len; ++i) {
      for (int h = 0; h < x.heads; ++h) {
        const int64_t at = (run.q_begin + i) * x.heads + h;
        const Attention a =
            x.Expected(run.q_begin + i, h, run.k_begin, causal ? run.k_len - run.q_len + i + 1 : run.k_len);
        std::copy(a.out.begin(), a.out.end(), expected.begin() + at * x.value);
        expected_lse[static_cast<size_t>(at)] = a.lse;
      }
    }
  }
  EXPECT_TRUE(Near(AllFromBf16(out.Get()), expected, kBf16));
  EXPECT_TRUE(Near(lse.Get(), expected_lse, kLse));
}

TEST(MlaFlashCudnn, OneRunOfEveryLength) {
  Random random(10);
  const Expanded x(2, 192, 128, 300, 300, random);
  for (const bool exact : {false, true}) {
    for (const int64_t n : {1, 63, 64, 65, 128, 129, 290}) RunFlash(x, {{3, n, 5, n}}, true, exact);
    for (const bool causal : {false, true}) {
      RunFlash(x, {{0, 1, 0, 64}}, causal, exact);
      RunFlash(x, {{7, 65, 9, 200}}, causal, exact);
    }
  }
}

TEST(MlaFlashCudnn, RaggedRunsWithPrefixes) {
  Random random(11);
  const Expanded x(2, 192, 128, 400, 900, random);
  // The last two are runs of one sequence: their keys begin at the same place. Rows 329.. belong to no run.
  const std::vector<cuda::MlaFlashRun> runs = {{0, 1, 0, 1},        {1, 63, 1, 63}, {64, 64, 64, 200},
                                               {128, 1, 264, 65},   {129, 0, 0, 0}, {129, 100, 330, 170},
                                               {229, 100, 330, 500}};
  RunFlash(x, runs, true, false);
  RunFlash(x, runs, false, false);
}

TEST(MlaMergeSm90, PiecesOfTheKeysGiveTheWhole) {
  Random random(12);
  const int heads = 3, qk = 192, value = 128;
  const int64_t rows = 37, keys = 500;
  const Expanded x(heads, qk, value, rows, keys, random);
  const DeviceArray<float> out(rows * heads * value), lse(rows * heads);
  const DeviceArray<Bf16> part(rows * heads * value), result(rows * heads * value);
  const DeviceArray<float> part_lse(rows * heads);
  const std::vector<int64_t> cuts = {0, 0, 1, 300, 500};  // the first piece is empty
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    part.Get();
    cuda::MlaPlainArgs plain;
    plain.q = x.device_q.data();
    plain.k = x.device_k.data() + cuts[i] * heads * qk;
    plain.v = x.DeviceValues() + cuts[i] * heads * (qk + value);
    plain.v_stride = heads * (qk + value);
    plain.v_head_stride = qk + value;
    plain.q_len = rows;
    plain.k_len = cuts[i + 1] - cuts[i];
    plain.num_heads = heads;
    plain.qk = qk;
    plain.value = value;
    plain.causal = false;
    plain.scale = static_cast<float>(1 / std::sqrt(qk));
    plain.out = part.data();
    plain.lse = part_lse.data();
    ASSERT_EQ(cuda::MlaAttentionPlain(plain, nullptr), cudaSuccess);
    cuda::MlaMergeArgs merge{out.data(), lse.data(), part.data(), part_lse.data(), rows, heads, value};
    merge.first = i == 0;
    merge.result = i + 2 == cuts.size() ? result.data() : nullptr;
    ASSERT_EQ(cuda::MlaMergePartial(merge, nullptr), cudaSuccess);
    Synchronise();
    if (i == 0) {
      EXPECT_EQ(out.Get(), std::vector<float>(static_cast<size_t>(out.size()), 0.0f));
      EXPECT_TRUE(std::isinf(lse.Get()[0]));
    }
  }
  std::vector<double> expected, expected_lse;
  for (int64_t r = 0; r < rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const Attention a = x.Expected(r, h, 0, keys);
      expected.insert(expected.end(), a.out.begin(), a.out.end());
      expected_lse.push_back(a.lse);
    }
  }
  EXPECT_TRUE(Near(out.Get(), expected, kBf16));
  EXPECT_TRUE(Near(AllFromBf16(result.Get()), expected, kBf16));
  EXPECT_TRUE(Near(lse.Get(), expected_lse, kLse));
}

TEST(MlaPlainSm90, ValuesOfAnotherWidth) {
  Random random(13);
  const int heads = 2;
  for (const auto& [qk, value] : {std::pair{24, 40}, {192, 128}, {40, 8}}) {
    const Expanded x(heads, qk, value, 65, 130, random);
    const DeviceArray<Bf16> out(x.rows * heads * value);
    const DeviceArray<float> lse(x.rows * heads);
    cuda::MlaPlainArgs plain{x.device_q.data(),
                             x.device_k.data(),
                             x.DeviceValues(),
                             heads * (qk + value),
                             qk + value,
                             x.rows,
                             x.keys,
                             heads,
                             qk,
                             value,
                             true,
                             static_cast<float>(1 / std::sqrt(qk)),
                             out.data(),
                             lse.data()};
    ASSERT_EQ(cuda::MlaAttentionPlain(plain, nullptr), cudaSuccess);
    Synchronise();
    std::vector<double> expected;
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        const Attention a = x.Expected(r, h, 0, x.keys - x.rows + r + 1);
        expected.insert(expected.end(), a.out.begin(), a.out.end());
      }
    }
    EXPECT_TRUE(Near(AllFromBf16(out.Get()), expected, kBf16));
  }
}

}  // namespace
}  // namespace perigee::test
