#include "testing/model_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/check.h"
#include "base/math.h"
#include "batch/forward_batch.h"
#include "cache/cache_budget.h"
#include "comm/factory.h"
#include "comm/process_grid.h"
#include "kernels/device_context.h"
#include "model/registry.h"
#include "parallel/step_layout.h"
#ifdef PERIGEE_TEST_UNDER_MPIRUN
#include "testing/mpi_ranks.h"
#endif

namespace perigee::testing {

struct ModelHarness::Rank {
  Rank(std::unique_ptr<model::CausalLm> loaded, int threads, int64_t blocks, int64_t seqs, Device device)
      : model(std::move(loaded)),
        kv(model->cache_shape().kv_layers, blocks, model->cache_shape().kv_width, cache::CachedType(device),
           device),
        states(model->cache_shape().state_layers, seqs, model->cache_shape().recurrent_floats,
               model->cache_shape().conv_floats, cache::CachedType(device), device),
        pool(threads),
        kernels(device, pool) {}

  std::unique_ptr<model::CausalLm> model;
  cache::PagedKvCache kv;
  cache::RecurrentStatePool states;
  ThreadPool pool;
  kernels::DeviceContext kernels;
  comm::ProcessGrid grid;
  parallel::ParallelContext parallel;
};

namespace {

// Runs body(rank) for every rank, each on a thread of its own.
void OnRanks(size_t ranks, const std::function<void(size_t)>& body) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& t : threads) t.join();
}

using World = std::vector<std::unique_ptr<comm::Communicator>>;

#ifdef PERIGEE_TEST_UNDER_MPIRUN
// The ranks of this process with their world; collective over all processes.
World WorldHere(int tp) {
  comm::ProcessRanks& processes = test::ProcessRanksOfTest();
  auto world = processes.world().Split(processes.rank() < tp ? 0 : 1, processes.rank());
  PERIGEE_CHECK(world.ok());
  World here;
  if (processes.rank() < tp) here.push_back(std::move(world).value());
  return here;
}

// Fills in the columns [rows, vocab] that other processes have computed.
void GatherColumns(comm::Communicator& shares, int64_t rows, int64_t vocab, std::vector<float>& logits) {
  std::vector<int64_t> counts;
  std::vector<float> own, all(logits.size());
  for (int s = 0; s < shares.size(); ++s) {
    const int64_t begin = PartBegin(s, vocab, shares.size()), end = PartBegin(s + 1, vocab, shares.size());
    counts.push_back(rows * (end - begin));
    if (s != shares.rank()) continue;
    for (int64_t r = 0; r < rows; ++r) {
      own.insert(own.end(), logits.begin() + r * vocab + begin, logits.begin() + r * vocab + end);
    }
  }
  EXPECT_TRUE(shares.AllGather(own, all, counts).ok());
  auto from = all.begin();
  for (int s = 0; s < shares.size(); ++s) {
    const int64_t begin = PartBegin(s, vocab, shares.size());
    const int64_t width = PartBegin(s + 1, vocab, shares.size()) - begin;
    for (int64_t r = 0; r < rows; ++r, from += width)
      std::copy_n(from, width, logits.begin() + r * vocab + begin);
  }
}
#else
World WorldHere(int tp) {
  auto world = comm::MakeInProcessWorld("thread", tp);
  PERIGEE_CHECK(world.ok());
  return std::move(world).value();
}

void GatherColumns(comm::Communicator&, int64_t, int64_t, std::vector<float>&) {}
#endif

}  // namespace

ModelHarness::ModelHarness(const std::string& folder, int threads, int64_t max_seqs, int64_t max_tokens)
    : ModelHarness(folder, threads, Ranks(), max_seqs, max_tokens) {}

ModelHarness::ModelHarness(const std::string& folder, int threads, const Ranks& ranks, int64_t max_seqs,
                           int64_t max_tokens)
    : config_(ranks), max_seqs_(max_seqs), blocks_per_seq_(CeilDiv(max_tokens, cache::kBlockTokens)) {
  const auto files = model::OpenModel(folder);
  if (!files.ok()) {
    ADD_FAILURE() << files.status().message();
    return;
  }
  vocab_size_ = (*files)->footprint().sizes().vocab_size;
  World world;
  if (ranks.tp > 1) world = WorldHere(ranks.tp);
  for (size_t i = 0; i < (ranks.tp > 1 ? world.size() : 1); ++i) {
    const int r = ranks.tp > 1 ? world[i]->rank() : 0;
    const comm::GridPosition p{.tp = ranks.tp, .attn_cp = ranks.attn_cp, .ep = ranks.ep, .rank = r};
    parallel::Shard shard = parallel::ShardOf(p);
    shard.holds_kda = ranks.prefill_mode == batch::StepMode::kState;
    ranks_.push_back(std::make_unique<Rank>((*files)->Build(shard, {}, ranks.device), threads,
                                            blocks_per_seq_ * max_seqs, max_seqs, ranks.device));
  }
  if (ranks.tp == 1) return;
  OnRanks(ranks_.size(), [&](size_t r) {
    auto grid = comm::MakeProcessGrid(*world[r], ranks.attn_cp, ranks.ep);
    EXPECT_TRUE(grid.ok());
    ranks_[r]->grid = std::move(grid).value();
    ranks_[r]->parallel = parallel::ContextOf(ranks_[r]->grid);
  });
}

ModelHarness::~ModelHarness() = default;

size_t ModelHarness::WorkspacePeak(size_t rank) const {
  return ranks_[rank]->kernels.context().workspace->peak_taken();
}

// Block tables of different sequences interleave, and neither starts at block 0 or runs upwards.
std::vector<int32_t> ModelHarness::BlockTable(int64_t seq) const {
  std::vector<int32_t> table;
  for (int64_t b = blocks_per_seq_ - 1; b >= 0; --b)
    table.push_back(static_cast<int32_t>(b * max_seqs_ + seq));
  return table;
}

std::vector<float> ModelHarness::Step(const batch::BatchPlan& plan,
                                      const std::vector<batch::StateSnapshot>& snapshots) {
  batch::ForwardBatch batch = batch::MakeForwardBatch(plan);
  batch.snapshots = snapshots;
  const auto rows = static_cast<int64_t>(batch.wanted_rows.size());
  std::vector<float> logits(static_cast<size_t>(rows * vocab_size_));
  const auto run = [&](size_t r) {
    Rank& rank = *ranks_[r];
    rank.kernels.BeginStep();
    const kernels::KernelContext& context = rank.kernels.context();
    for (const batch::PlannedSpan& span : plan.spans) {
      if (span.fresh_state) rank.states.Zero(span.state_slot, context.stream);
    }
    const kernels::Workspace::Scope scope(*context.workspace);
    parallel::StepLayout layout = parallel::MakeStepLayout(plan.mode, batch, config_.strategy, rank.parallel);
    layout.attention_form = config_.form;
    const model::VocabularyShare share = rank.model->vocabulary();
    const int64_t hidden_size = rank.model->hidden_size();
    const Matrix hidden = context.Room(rows, hidden_size);
    const Status status =
        rank.model->Forward(context, batch, layout, rank.parallel, {&rank.kv, &rank.states}, hidden);
    EXPECT_TRUE(status.ok()) << status.message();
    // Every rank fills its own columns.
    const MatrixF all(logits.data(), rows, vocab_size_);
    if (config_.device == Device::kCpu) {
      rank.model->Logits(context, hidden, all.Cols(share.begin, share.size()));
      return;
    }
    const Matrix own = context.Room(rows, share.size(), DType::kF32);
    rank.model->Logits(context, hidden, own);
    const ConstMatrixF on_host = OnHost(context, own);
    std::copy_n(on_host.data, rows * share.size(), all.data);
  };
  if (ranks_.size() == 1) {
    run(0);
  } else {
    OnRanks(ranks_.size(), run);
  }
  if (config_.tp > 1) GatherColumns(*ranks_[0]->grid.tp, rows, vocab_size_, logits);
  return logits;
}

std::vector<std::vector<float>> ModelHarness::Run(const std::vector<Sequence>& sequences) {
  return Run(sequences, true);
}

std::vector<std::vector<float>> ModelHarness::RunSampled(const std::vector<Sequence>& sequences) {
  return Run(sequences, false);
}

std::vector<std::vector<float>> ModelHarness::Run(const std::vector<Sequence>& sequences, bool all_rows) {
  std::vector<std::vector<float>> logits(sequences.size());
  if (ranks_.empty()) return logits;
  last_count_ = sequences.size();
  last_snapshots_ = 0;
  for (const Sequence& q : sequences) last_snapshots_ += q.snapshots.size();
  PERIGEE_CHECK(static_cast<int64_t>(last_count_ + last_snapshots_) <= max_seqs_);
  std::vector<int64_t> done(sequences.size(), 0);
  while (true) {
    batch::BatchPlan plan;
    std::vector<size_t> members;
    std::vector<batch::StateSnapshot> snapshots;
    for (const batch::Phase phase : {batch::Phase::kPrefill, batch::Phase::kDecode}) {
      plan.phase = phase;
      plan.mode = phase == batch::Phase::kPrefill ? config_.prefill_mode : batch::StepMode::kDecode;
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
        span.block_table = BlockTable(static_cast<int64_t>(s));
        span.prompt_logprobs = all_rows;  // makes every row a wanted one
        if (all_rows) span.targets.resize(static_cast<size_t>(rows) - 1);
        span.sample = done[s] + rows >= prompt;
        for (size_t i = 0; i < q.snapshots.size(); ++i) {
          const int64_t tokens = q.snapshots[i];
          if (tokens <= done[s] || tokens > done[s] + rows) continue;
          auto slot = static_cast<int32_t>(last_count_ + i);
          for (size_t before = 0; before < s; ++before) {
            slot += static_cast<int32_t>(sequences[before].snapshots.size());
          }
          snapshots.push_back({static_cast<int32_t>(plan.spans.size()), tokens, slot});
        }
        plan.spans.push_back(std::move(span));
        members.push_back(s);
        done[s] += rows;
      }
      if (!plan.spans.empty()) break;
    }
    if (plan.spans.empty()) return logits;
    const std::vector<float> step = Step(plan, snapshots);
    size_t row = 0;
    for (size_t m = 0; m < members.size(); ++m) {
      const size_t sampled = plan.spans[m].sample ? 1 : 0;
      const size_t count = all_rows ? plan.spans[m].tokens.size() : sampled;
      const auto vocab = static_cast<size_t>(vocab_size_);
      std::vector<float>& to = logits[members[m]];
      to.insert(to.end(), step.begin() + static_cast<int64_t>(row * vocab),
                step.begin() + static_cast<int64_t>((row + count) * vocab));
      row += count;
    }
  }
}

ModelHarness::States ModelHarness::SlotStates(int64_t slot) const {
  States states;
  for (const auto& rank : ranks_) {
    const model::CacheShape shape = rank->model->cache_shape();
    for (int64_t layer = 0; layer < shape.state_layers; ++layer) {
      const StateView view = rank->states.View(layer);
      const float* recurrent = view.Recurrent(slot);
      const float* conv = view.Conv(slot);
      states.recurrent.insert(states.recurrent.end(), recurrent, recurrent + shape.recurrent_floats);
      states.conv.insert(states.conv.end(), conv, conv + shape.conv_floats);
    }
  }
  return states;
}

std::vector<ModelHarness::States> ModelHarness::LastStates() const {
  std::vector<States> states;
  for (size_t s = 0; s < last_count_; ++s) {
    states.push_back(SlotStates(static_cast<int64_t>(last_count_ - 1 - s)));
  }
  return states;
}

std::vector<ModelHarness::States> ModelHarness::LastSnapshots() const {
  std::vector<States> states;
  for (size_t i = 0; i < last_snapshots_; ++i) {
    states.push_back(SlotStates(static_cast<int64_t>(last_count_ + i)));
  }
  return states;
}

double LogProbability(const float* row, int64_t vocab, int32_t id) {
  const double max = *std::max_element(row, row + vocab);
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]) - max);
  return static_cast<double>(row[id]) - max - std::log(sum);
}

double WorstLogProbDifference(const std::vector<float>& a, const std::vector<float>& b, int64_t vocab) {
  double worst = 0;
  for (size_t row = 0; row * static_cast<size_t>(vocab) < a.size(); ++row) {
    const float* x = a.data() + row * static_cast<size_t>(vocab);
    const float* y = b.data() + row * static_cast<size_t>(vocab);
    const double shift_x = x[0] - LogProbability(x, vocab, 0);
    const double shift_y = y[0] - LogProbability(y, vocab, 0);
    for (int64_t v = 0; v < vocab; ++v)
      worst = std::max(worst, std::abs((x[v] - shift_x) - (y[v] - shift_y)));
  }
  return worst;
}

}  // namespace perigee::testing
