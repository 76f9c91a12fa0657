#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/mla/mla.h"
#include "ref/mla_ref.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/stored_weights.h"

namespace perigee::test {

using MlaKernel = void (*)(const kernels::KernelContext&, const kernels::MlaDims&, const kernels::MlaWeights&,
                           ConstMatrix, const PagedSegments&, const PagedKvView&, Matrix);

// One sequence: queries of its last q_len positions, records of all of them.
struct MlaSequence {
  int64_t q_len = 0;
  int64_t kv_len = 0;
  std::vector<float> q, latent, shared_key;
};

// Latents and shared keys of unit size and kv_b of size rank^-0.5: scores have about the spread of q.
inline MlaSequence RandomMlaSequence(Random& random, const kernels::MlaDims& dims, int64_t q_len,
                                     int64_t kv_len, double score_spread = 1) {
  return {.q_len = q_len,
          .kv_len = kv_len,
          .q = random.Normals(q_len * dims.num_heads * dims.qk(), score_spread),
          .latent = random.Normals(kv_len * dims.rank),
          .shared_key = random.Normals(kv_len * dims.rope)};
}

inline StoredWeights RandomKvB(Random& random, const kernels::MlaDims& dims, DType dtype = DType::kBF16) {
  return {random, dtype, dims.num_heads * (dims.nope + dims.value), dims.rank,
          1 / std::sqrt(static_cast<double>(dims.rank))};
}

// A paged pool that holds the records of several sequences in blocks handed out in random order. Records that
// belong to nobody are NaN: reading them shows.
class MlaCache {
 public:
  MlaCache(const kernels::MlaDims& dims, const std::vector<int64_t>& lengths, int64_t block_tokens = 64)
      : dims_(dims), block_tokens_(block_tokens) {
    int64_t blocks = 2;
    for (int64_t n : lengths) blocks += (n + block_tokens - 1) / block_tokens;
    std::vector<int32_t> free(static_cast<size_t>(blocks));
    std::iota(free.begin(), free.end(), 0);
    Random random(static_cast<uint64_t>(blocks));
    random.Shuffle(free);
    for (int64_t n : lengths) {
      const auto count = static_cast<std::ptrdiff_t>((n + block_tokens - 1) / block_tokens);
      tables_.emplace_back(free.end() - count, free.end());
      free.resize(free.size() - static_cast<size_t>(count));
    }
    for (const std::vector<int32_t>& t : tables_) {
      first_blocks_.push_back(static_cast<int32_t>(all_tables_.size()));
      all_tables_.insert(all_tables_.end(), t.begin(), t.end());
    }
    data_.assign(static_cast<size_t>(blocks * block_tokens * dims.record()),
                 std::numeric_limits<float>::quiet_NaN());
  }

  PagedKvView view() {
    return {.data = data_.data(), .block_tokens = block_tokens_, .width = dims_.record()};
  }
  const std::vector<int32_t>& table(size_t sequence) const { return tables_[sequence]; }
  // All sequences' tables one after another, and where a sequence's begins.
  const std::vector<int32_t>& tables() const { return all_tables_; }
  int32_t first_block(size_t sequence) const { return first_blocks_[sequence]; }
  const std::vector<float>& data() const { return data_; }

  // Writes records [0, count) of a sequence.
  void Fill(size_t sequence, const MlaSequence& s, int64_t count) {
    for (int64_t t = 0; t < count; ++t) {
      float* record = view().Record(tables_[sequence], t);
      for (int64_t i = 0; i < dims_.rank; ++i) record[i] = s.latent[t * dims_.rank + i];
      for (int64_t i = 0; i < dims_.rope; ++i) record[dims_.rank + i] = s.shared_key[t * dims_.rope + i];
    }
  }

 private:
  kernels::MlaDims dims_;
  int64_t block_tokens_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> all_tables_, first_blocks_;
  std::vector<float> data_;
};

// Runs the sequences as one packed batch over a filled cache; one output a sequence.
inline std::vector<std::vector<float>> RunMla(MlaKernel kernel, const kernels::MlaDims& dims,
                                              const kernels::MlaWeights& weights,
                                              const std::vector<MlaSequence>& sequences, int threads = 2,
                                              int64_t block_tokens = 64) {
  std::vector<int64_t> lengths;
  for (const MlaSequence& s : sequences) lengths.push_back(s.kv_len);
  MlaCache cache(dims, lengths, block_tokens);
  std::vector<Segment> segments;
  std::vector<float> q;
  int64_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const MlaSequence& s = sequences[i];
    cache.Fill(i, s, s.kv_len);
    q.insert(q.end(), s.q.begin(), s.q.end());
    segments.push_back(
        {.q_begin = rows, .q_len = s.q_len, .kv_len = s.kv_len, .first_block = cache.first_block(i)});
    rows += s.q_len;
  }
  const PaddedMatrix qm(rows, dims.num_heads * dims.qk(), q);
  PaddedMatrix out(rows, dims.num_heads * dims.value);
  KernelRunner runner(threads);
  kernel(runner.context(), dims, weights, qm.view(), {segments, cache.tables()}, cache.view(), out.view());
  EXPECT_TRUE(out.GapsUntouched());
  std::vector<std::vector<float>> results;
  for (const Segment& segment : segments) {
    std::vector<float>& result = results.emplace_back();
    for (int64_t t = 0; t < segment.q_len; ++t) {
      const std::vector<float> row = out.row(segment.q_begin + t);
      result.insert(result.end(), row.begin(), row.end());
    }
  }
  return results;
}

inline std::vector<double> MlaReference(const kernels::MlaDims& dims, const MlaSequence& s,
                                        const StoredWeights& kv_b) {
  return ref::Mla({dims.num_heads, dims.nope, dims.rope, dims.value, dims.rank}, ToDouble(s.q),
                  ToDouble(s.latent), ToDouble(s.shared_key), ToDouble(kv_b.values()));
}

// The sequence cut down to rows [begin, begin + count) of its queries, with the keys they see.
inline MlaSequence MlaPiece(const kernels::MlaDims& dims, const MlaSequence& s, int64_t begin,
                            int64_t count) {
  const int64_t width = dims.num_heads * dims.qk(), kv_len = s.kv_len - s.q_len + begin + count;
  return {.q_len = count,
          .kv_len = kv_len,
          .q = {s.q.begin() + begin * width, s.q.begin() + (begin + count) * width},
          .latent = {s.latent.begin(), s.latent.begin() + kv_len * dims.rank},
          .shared_key = {s.shared_key.begin(), s.shared_key.begin() + kv_len * dims.rope}};
}

}  // namespace perigee::test
