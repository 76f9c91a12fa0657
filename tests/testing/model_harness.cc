#include "testing/model_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "batch/forward_batch.h"

namespace perigee::testing {

struct ModelHarness::Pools {
  cache::PagedKvCache kv;
  cache::RecurrentStatePool states;
  int64_t blocks_per_seq;
  int64_t max_seqs;

  // Block tables of different sequences interleave, and neither starts at block 0 or runs upwards.
  std::vector<int32_t> BlockTable(int64_t seq) const {
    std::vector<int32_t> table;
    for (int64_t b = blocks_per_seq - 1; b >= 0; --b)
      table.push_back(static_cast<int32_t>(b * max_seqs + seq));
    return table;
  }
};

ModelHarness::ModelHarness(const std::string& folder, int threads, int64_t max_seqs, int64_t max_tokens)
    : pool_(threads) {
  StatusOr<model::LoadedModel> loaded = model::LoadModel(folder, {});
  if (!loaded.ok()) {
    ADD_FAILURE() << loaded.status().message();
    return;
  }
  loaded_ = std::move(loaded).value();
  const model::CacheShape shape = loaded_.model->cache_shape();
  const int64_t blocks = CeilDiv(max_tokens, cache::kBlockTokens);
  pools_ = std::make_unique<Pools>(Pools{
      cache::PagedKvCache(shape.kv_layers, blocks * max_seqs, shape.kv_width),
      cache::RecurrentStatePool(shape.state_layers, max_seqs, shape.recurrent_floats, shape.conv_floats),
      blocks, max_seqs});
}

ModelHarness::~ModelHarness() = default;

std::vector<std::vector<float>> ModelHarness::Run(const std::vector<Sequence>& sequences) {
  std::vector<std::vector<float>> logits(sequences.size());
  if (pools_ == nullptr) return logits;
  std::vector<int64_t> done(sequences.size(), 0);
  const kernels::KernelContext context{&pool_, &workspace_};
  while (true) {
    batch::BatchPlan plan;
    std::vector<size_t> members;
    for (const batch::Phase phase : {batch::Phase::kPrefill, batch::Phase::kDecode}) {
      plan.phase = phase;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const Sequence& q = sequences[s];
        const auto length = static_cast<int64_t>(q.ids.size());
        const int64_t prompt = length - q.decode_rows;
        const bool prefill = done[s] < prompt;
        if (done[s] == length || prefill != (phase == batch::Phase::kPrefill)) continue;
        const int64_t rows = prefill ? std::min(q.piece == 0 ? prompt : q.piece, prompt - done[s]) : 1;
        batch::PlannedSpan span;
        span.tokens.assign(q.ids.begin() + done[s], q.ids.begin() + done[s] + rows);
        span.prefix = done[s];
        span.state_slot = static_cast<int32_t>(sequences.size() - 1 - s);
        span.fresh_state = done[s] == 0;
        span.block_table = pools_->BlockTable(static_cast<int64_t>(s));
        span.prompt_logprobs = true;  // makes every row a wanted one
        span.targets.resize(static_cast<size_t>(rows) - 1);
        if (span.fresh_state) pools_->states.Zero(span.state_slot);
        plan.spans.push_back(std::move(span));
        members.push_back(s);
        done[s] += rows;
      }
      if (!plan.spans.empty()) break;
    }
    if (plan.spans.empty()) return logits;
    const batch::ForwardBatch batch = batch::MakeForwardBatch(plan);
    const int64_t rows = batch.NumRows();
    EXPECT_EQ(static_cast<int64_t>(batch.wanted_rows.size()), rows);
    const kernels::Workspace::Scope scope(workspace_);
    const int64_t hidden_size = loaded_.model->hidden_size();
    const MatrixF hidden(workspace_.Floats(rows * hidden_size), rows, hidden_size);
    const MatrixF out(workspace_.Floats(rows * vocab_size()), rows, vocab_size());
    loaded_.model->Forward(context, batch, {&pools_->kv, &pools_->states}, hidden);
    loaded_.model->Logits(context, hidden, out);
    for (size_t m = 0; m < members.size(); ++m) {
      const batch::SeqSpan& span = batch.spans[m];
      std::vector<float>& to = logits[members[m]];
      to.insert(to.end(), out.Row(span.q_begin), out.Row(span.q_begin) + span.q_len * vocab_size());
    }
  }
}

double LogProbability(const float* row, int64_t vocab, int32_t id) {
  const double max = *std::max_element(row, row + vocab);
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]) - max);
  return static_cast<double>(row[id]) - max - std::log(sum);
}

}  // namespace perigee::testing
