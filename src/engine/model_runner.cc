#include "engine/model_runner.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "base/trace.h"
#include "kernels/sampling/sampling.h"

namespace perigee::engine {
namespace {

// Rows whose logits are held at one time: a prompt's log-probabilities would take rows x vocabulary floats.
constexpr int64_t kLogitRows = 64;

}  // namespace

std::vector<SpanResult> ModelRunner::Run(const batch::BatchPlan& plan, const Sampler& sampler) {
  const TraceScope trace(plan.phase == batch::Phase::kPrefill ? "prefill" : "decode");
  for (const batch::PlannedSpan& span : plan.spans) {
    if (span.fresh_state) caches_.states->Zero(span.state_slot);
  }
  const batch::ForwardBatch batch = batch::MakeForwardBatch(plan);
  const std::vector<RowSource> rows = LocateWantedRows(batch);
  const auto num_rows = static_cast<int64_t>(rows.size());

  const kernels::Workspace::Scope scope(*context_.workspace);
  const MatrixF hidden(context_.workspace->Floats(num_rows * model_.hidden_size()), num_rows,
                       model_.hidden_size());
  model_.Forward(context_, batch, caches_, hidden);

  std::vector<SpanResult> results(plan.spans.size());
  for (size_t s = 0; s < results.size(); ++s) {
    if (plan.spans[s].prompt_logprobs) results[s].target_logprobs.resize(plan.spans[s].targets.size());
  }
  for (int64_t begin = 0; begin < num_rows; begin += kLogitRows) {
    const int64_t count = std::min(kLogitRows, num_rows - begin);
    ReadRows(plan, std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
             hidden.Rows(begin, count), sampler, results);
  }
  return results;
}

std::vector<ModelRunner::RowSource> ModelRunner::LocateWantedRows(const batch::ForwardBatch& batch) {
  std::vector<RowSource> sources;
  sources.reserve(batch.wanted_rows.size());
  size_t span = 0;
  for (const int64_t row : batch.wanted_rows) {
    while (row >= batch.spans[span].q_begin + batch.spans[span].q_len) ++span;
    sources.push_back({span, static_cast<size_t>(row - batch.spans[span].q_begin)});
  }
  return sources;
}

void ModelRunner::ReadRows(const batch::BatchPlan& plan, std::span<const RowSource> rows, ConstMatrixF hidden,
                           const Sampler& sampler, std::vector<SpanResult>& results) {
  const kernels::Workspace::Scope scope(*context_.workspace);
  const int64_t vocab = model_.vocab_size();
  const MatrixF logits(context_.workspace->Floats(hidden.rows * vocab), hidden.rows, vocab);
  model_.Logits(context_, hidden, logits);
  std::vector<float> lse(rows.size());
  kernels::LogSumExp(context_, logits, lse);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!std::isfinite(lse[r])) results[rows[r].span].failed = true;
  }
  // A row writes its own element of the results only.
  context_.pool->ParallelFor(hidden.rows, [&](int64_t r) {
    const RowSource& source = rows[static_cast<size_t>(r)];
    const batch::PlannedSpan& span = plan.spans[source.span];
    SpanResult& result = results[source.span];
    if (result.failed) return;
    const std::span<const float> row(logits.Row(r), static_cast<size_t>(vocab));
    const float row_lse = lse[static_cast<size_t>(r)];
    if (source.row < result.target_logprobs.size()) {
      const auto target = static_cast<size_t>(span.targets[source.row]);
      result.target_logprobs[source.row] = LogProb(row[target], row_lse);
    }
    if (span.sample && source.row + 1 == span.tokens.size()) {
      const int64_t length = span.prefix + static_cast<int64_t>(span.tokens.size());
      result.token = sampler.Choose(span.request, length, row, row_lse);
    }
  });
}

}  // namespace perigee::engine
