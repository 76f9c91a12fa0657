#include "kernels/mla/mla_cpu.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/math.h"

namespace perigee::kernels::cpu {
namespace {

// Divides the accumulated values of a segment's rows by their sums of exponentials.
void Normalise(const KernelContext& context, const MlaDims& dims, const MlaSegment& s, const float* sum,
               MatrixF out) {
  context.pool->ParallelRanges(s.q_len, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = s.q_begin + begin; r < s.q_begin + end; ++r) {
      for (int64_t h = 0; h < dims.num_heads; ++h) {
        const float factor = 1.0f / sum[r * dims.num_heads + h];
        float* row = out.Row(r) + h * dims.value;
        for (int64_t c = 0; c < dims.value; ++c) row[c] *= factor;
      }
    }
  });
}

// Expands the keys of one piece: latents through kv_b_proj, keys turned so that they are vector lanes.
ExpandedKeys Expand(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights,
                    const MlaSegment& s, const PagedKvView& cache, int64_t first_key, int64_t count) {
  const int64_t stride = dims.num_heads * (dims.nope + dims.value);
  const int64_t panels = CeilDiv<int64_t>(count, 16);
  // A value panel may reach up to 15 floats beyond the last row.
  float* expanded = context.workspace->Floats(count * stride + 16);
  float* keys = context.workspace->Floats(dims.num_heads * panels * dims.qk() * 16);
  float* latents = context.workspace->Floats(count * dims.rank);
  context.pool->ParallelRanges(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      std::copy_n(cache.Record(s.block_table, first_key + j), dims.rank, latents + j * dims.rank);
    }
  });
  Gemm(context, {latents, count, dims.rank}, weights.expand, {expanded, count, stride});
  context.pool->ParallelRanges(panels * dims.num_heads, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      MlaPackKeys(dims, expanded, stride, s, cache, first_key, count, t / dims.num_heads, t % dims.num_heads,
                  keys);
    }
  });
  return {first_key, count, keys, expanded, stride};
}

// Some query rows of a segment.
struct QueryBlock {
  const MlaSegment* segment;
  int64_t row;  // relative to the segment's first
};

// All query rows of one sequence, those that see the most keys first (they take longest), and the keys they
// see.
struct SequenceBlocks {
  const int32_t* block_table;
  int64_t kv_len = 0;
  std::vector<QueryBlock> blocks;
};

// Segments of one sequence share its expanded keys.
std::vector<SequenceBlocks> BySequence(std::span<const MlaSegment> segments) {
  std::vector<SequenceBlocks> sequences;
  for (const MlaSegment& s : segments) {
    if (s.q_len == 0) continue;
    const auto same = [&](const SequenceBlocks& x) { return x.block_table == s.block_table.data(); };
    auto found = std::find_if(sequences.begin(), sequences.end(), same);
    if (found == sequences.end()) found = sequences.insert(found, {s.block_table.data(), 0, {}});
    found->kv_len = std::max(found->kv_len, s.kv_len);
    for (int64_t row = 0; row < s.q_len; row += kMlaQueryBlock) found->blocks.push_back({&s, row});
  }
  const auto keys = [](const QueryBlock& b) { return b.segment->kv_len - b.segment->q_len + b.row; };
  for (SequenceBlocks& x : sequences) {
    std::stable_sort(x.blocks.begin(), x.blocks.end(),
                     [&](const QueryBlock& a, const QueryBlock& b) { return keys(a) > keys(b); });
  }
  return sequences;
}

// Partial results held at a time in decode: rows beyond that wait, so that the scratch is bounded.
constexpr int64_t kMaxSplits = 512;

// One query row and the keys that it sees.
struct DecodeRow {
  const MlaSegment* segment;
  int64_t row;
  int64_t visible;
};

// Attention of some rows over the latents: absorbed queries [rows, heads * record] in, contexts
// [rows, heads * rank] out.
void ReadLatents(const KernelContext& context, const MlaDims& dims, std::span<const DecodeRow> rows,
                 const PagedKvView& cache, ConstMatrixF absorbed, MatrixF merged) {
  const Workspace::Scope scope(*context.workspace);
  std::vector<size_t> first_split;
  std::vector<std::pair<size_t, int64_t>> splits;  // place in rows, split
  for (size_t i = 0; i < rows.size(); ++i) {
    first_split.push_back(splits.size());
    for (int64_t s = 0; s < CeilDiv(rows[i].visible, kMlaSplit); ++s) splits.emplace_back(i, s);
  }
  first_split.push_back(splits.size());
  std::vector<MlaPartial> partials(splits.size());
  for (MlaPartial& p : partials) {
    p = {context.workspace->Floats(dims.num_heads), context.workspace->Floats(dims.num_heads),
         context.workspace->Floats(dims.num_heads * dims.rank)};
  }
  ForTasks(context, static_cast<int64_t>(splits.size()), MlaDecodeScratchFloats(dims),
           [&](int64_t t, float* scratch) {
             const auto& [place, split] = splits[static_cast<size_t>(t)];
             const DecodeRow& x = rows[place];
             MlaDecodeSplit(dims, absorbed.Row(x.row), *x.segment, cache, x.visible, split,
                            partials[static_cast<size_t>(t)], scratch);
           });
  const std::span<const MlaPartial> all(partials);
  context.pool->ParallelRanges(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      MlaMerge(dims, all.subspan(first_split[i], first_split[i + 1] - first_split[i]),
               merged.Row(rows[i].row));
    }
  });
}

}  // namespace

void MlaAppend(const KernelContext& context, ConstMatrixF latent, ConstMatrixF shared_key,
               std::span<const MlaSegment> segments, const PagedKvView& cache) {
  for (const MlaSegment& s : segments) {
    context.pool->ParallelRanges(s.q_len, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* record = cache.Record(s.block_table, s.kv_len - s.q_len + r);
        std::copy_n(latent.Row(s.q_begin + r), latent.cols, record);
        std::copy_n(shared_key.Row(s.q_begin + r), shared_key.cols, record + latent.cols);
      }
    });
  }
}

void MlaPrefill(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrixF q,
                std::span<const MlaSegment> segments, const PagedKvView& cache, MatrixF out) {
  const Workspace::Scope scope(*context.workspace);
  const int64_t states = q.rows * dims.num_heads;
  const MlaRunning running{context.workspace->Floats(states), context.workspace->Floats(states)};
  for (const MlaSegment& s : segments) {
    for (int64_t r = s.q_begin; r < s.q_begin + s.q_len; ++r) {
      std::fill_n(out.Row(r), dims.num_heads * dims.value, 0.0f);
      std::fill_n(running.max + r * dims.num_heads, dims.num_heads, -std::numeric_limits<float>::infinity());
      std::fill_n(running.sum + r * dims.num_heads, dims.num_heads, 0.0f);
    }
  }
  for (const SequenceBlocks& sequence : BySequence(segments)) {
    const auto blocks = static_cast<int64_t>(sequence.blocks.size());
    for (int64_t key = 0; key < sequence.kv_len; key += kMlaKeyPiece) {
      const Workspace::Scope piece_scope(*context.workspace);
      const ExpandedKeys piece = Expand(context, dims, weights, *sequence.blocks[0].segment, cache, key,
                                        std::min(kMlaKeyPiece, sequence.kv_len - key));
      ForTasks(context, blocks * dims.num_heads, MlaPrefillScratchFloats(),
               [&](int64_t task, float* scratch) {
                 const QueryBlock& b = sequence.blocks[static_cast<size_t>(task / dims.num_heads)];
                 MlaPrefillBlock(dims, q, *b.segment, piece, task % dims.num_heads, b.row,
                                 std::min(kMlaQueryBlock, b.segment->q_len - b.row), running, out, scratch);
               });
    }
  }
  for (const MlaSegment& s : segments) Normalise(context, dims, s, running.sum, out);
}

void MlaDecode(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrixF q,
               std::span<const MlaSegment> segments, const PagedKvView& cache, MatrixF out) {
  const Workspace::Scope scope(*context.workspace);
  const int64_t heads = dims.num_heads;
  // Queries in latent space, [rows, heads, record].
  MatrixF absorbed(context.workspace->Floats(q.rows * heads * dims.record()), q.rows, heads * dims.record());
  for (int64_t h = 0; h < heads; ++h) {
    Gemm(context, q.Cols(h * dims.qk(), dims.nope), weights.absorb_q[static_cast<size_t>(h)],
         absorbed.Cols(h * dims.record(), dims.rank));
    for (int64_t r = 0; r < q.rows; ++r) {
      std::copy_n(q.Row(r) + h * dims.qk() + dims.nope, dims.rope,
                  absorbed.Row(r) + h * dims.record() + dims.rank);
    }
  }
  const MatrixF merged(context.workspace->Floats(q.rows * heads * dims.rank), q.rows, heads * dims.rank);
  std::fill_n(merged.data, q.rows * merged.cols, 0.0f);
  std::vector<DecodeRow> rows;
  int64_t splits = 0;
  const auto run = [&] {
    ReadLatents(context, dims, rows, cache, absorbed, merged);
    rows.clear();
    splits = 0;
  };
  for (const MlaSegment& s : segments) {
    for (int64_t r = 0; r < s.q_len; ++r) {
      rows.push_back({&s, s.q_begin + r, s.kv_len - s.q_len + r + 1});
      splits += CeilDiv(rows.back().visible, kMlaSplit);
      if (splits >= kMaxSplits) run();
    }
  }
  run();
  for (int64_t h = 0; h < heads; ++h) {
    Gemm(context, merged.Cols(h * dims.rank, dims.rank), weights.absorb_o[static_cast<size_t>(h)],
         out.Cols(h * dims.value, dims.value));
  }
}

}  // namespace perigee::kernels::cpu

namespace perigee::kernels {

void TallyMlaPrefill(WorkspaceTally& tally, const MlaDims& dims, int64_t rows, int64_t keys) {
  const WorkspaceTally::Scope scope(tally);
  for (int i = 0; i < 2; ++i) tally.Floats(rows * dims.num_heads);
  const int64_t count = std::min(keys, cpu::kMlaKeyPiece);
  const int64_t stride = dims.num_heads * (dims.nope + dims.value);
  tally.Floats(count * stride + 16);
  tally.Floats(dims.num_heads * CeilDiv<int64_t>(count, 16) * dims.qk() * 16);
  tally.Floats(count * dims.rank);
  TallyGemm(tally, count, stride, dims.rank);
  // Short segments have a block each.
  tally.Tasks(rows * dims.num_heads, cpu::MlaPrefillScratchFloats());
}

void TallyMlaDecode(WorkspaceTally& tally, const MlaDims& dims, int64_t rows, int64_t keys) {
  const WorkspaceTally::Scope scope(tally);
  tally.Floats(rows * dims.num_heads * dims.record());
  TallyGemm(tally, rows, dims.rank, dims.nope);
  tally.Floats(rows * dims.num_heads * dims.rank);
  {
    const WorkspaceTally::Scope reading(tally);
    const int64_t of_row = CeilDiv(keys, cpu::kMlaSplit);
    const int64_t splits = std::min(rows * of_row, cpu::kMaxSplits - 1 + of_row);
    for (int64_t s = 0; s < splits; ++s) {
      for (int i = 0; i < 2; ++i) tally.Floats(dims.num_heads);
      tally.Floats(dims.num_heads * dims.rank);
    }
    tally.Tasks(splits, cpu::MlaDecodeScratchFloats(dims));
  }
  TallyGemm(tally, rows, dims.value, dims.rank);
}

}  // namespace perigee::kernels
