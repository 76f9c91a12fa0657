#include "engine/model_runner.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/trace.h"
#include "engine/logit_gather.h"
#include "parallel/step_layout.h"

namespace perigee::engine {
namespace {

// The states that spans are to leave in slots of their own.
void AddSnapshots(const batch::BatchPlan& plan, batch::ForwardBatch& batch) {
  for (const batch::SeqSpan& span : batch.spans) {
    const int32_t slot = plan.spans[static_cast<size_t>(span.seq)].save_to;
    if (slot >= 0) batch.snapshots.push_back({span.seq, span.kv_len, slot});
  }
}

}  // namespace

StatusOr<std::vector<SpanResult>> ModelRunner::Run(const batch::BatchPlan& plan, const Sampler* sampler) {
  const TraceScope trace(plan.phase == batch::Phase::kPrefill ? "prefill" : "decode");
  device_.BeginStep();
  PrepareCaches(plan);
  batch::ForwardBatch batch = batch::MakeForwardBatch(plan);
  // In the state mode snapshots are boundaries of the fold, which writes them itself.
  const bool folded = plan.mode == batch::StepMode::kState && parallel_.attn_cp > 1;
  if (folded) AddSnapshots(plan, batch);
  parallel::StepLayout layout = parallel::MakeStepLayout(plan.mode, batch, policy_.strategy, parallel_);
  layout.attention_form = policy_.attention_form;
  const std::vector<RowSource> rows = LocateWantedRows(batch);
  const auto num_rows = static_cast<int64_t>(rows.size());

  const kernels::Workspace::Scope scope(*context_.workspace);
  const Matrix hidden = context_.Room(num_rows, model_.hidden_size());
  PERIGEE_RETURN_IF_ERROR(model_.Forward(context_, batch, layout, parallel_, caches_, hidden));
  for (const batch::PlannedSpan& span : plan.spans) {
    if (span.save_to >= 0 && !folded) caches_.states->Copy(span.state_slot, span.save_to, context_.stream);
  }

  std::vector<SpanResult> results(plan.spans.size());
  for (size_t s = 0; s < results.size(); ++s) {
    if (plan.spans[s].prompt_logprobs) results[s].target_logprobs.resize(plan.spans[s].targets.size());
  }
  for (int64_t begin = 0; begin < num_rows; begin += kLogitRows) {
    const int64_t count = std::min(kLogitRows, num_rows - begin);
    PERIGEE_RETURN_IF_ERROR(
        ReadRows(plan, std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                 hidden.Rows(begin, count), sampler, results));
  }
  return results;
}

void ModelRunner::PrepareCaches(const batch::BatchPlan& plan) const {
  const Stream stream = context_.stream;
  for (const int32_t block : plan.freed_blocks) caches_.kv->Poison(block, stream);
  for (const int32_t slot : plan.freed_slots) caches_.states->Poison(slot, stream);
  for (const batch::PlannedSpan& span : plan.spans) {
    if (span.fresh_state) caches_.states->Zero(span.state_slot, stream);
    if (span.restore_from >= 0) caches_.states->Copy(span.restore_from, span.state_slot, stream);
  }
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

Status ModelRunner::ReadRows(const batch::BatchPlan& plan, std::span<const RowSource> rows,
                             ConstMatrix hidden, const Sampler* sampler, std::vector<SpanResult>& results) {
  const kernels::Workspace::Scope scope(*context_.workspace);
  const kernels::Workspace::Scope host_scope(host_workspace_);
  const kernels::KernelContext host{
      .pool = context_.pool,
      .workspace = context_.device == Device::kCpu ? context_.workspace : &host_workspace_};
  std::vector<LogitWish> wishes(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const batch::PlannedSpan& span = plan.spans[rows[r].span];
    if (rows[r].row < results[rows[r].span].target_logprobs.size())
      wishes[r].target = span.targets[rows[r].row];
    wishes[r].all = span.sample && rows[r].row + 1 == span.tokens.size();
  }
  const model::VocabularyShare share = model_.vocabulary();
  const Matrix logits = context_.Room(hidden.rows, share.size(), DType::kF32);
  model_.Logits(context_, hidden, logits);
  PERIGEE_ASSIGN_OR_RETURN(
      const std::vector<RowLogits> gathered,
      GatherLogits(host, parallel_.tp_group, share, model_.vocab_size(), OnHost(context_, logits), wishes));
  if (sampler == nullptr) return Status::Ok();
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!std::isfinite(gathered[r].lse)) results[rows[r].span].failed = true;
  }
  // A row writes its own element of the results only.
  context_.pool->ParallelFor(hidden.rows, [&](int64_t i) {
    const auto r = static_cast<size_t>(i);
    const RowSource& source = rows[r];
    const batch::PlannedSpan& span = plan.spans[source.span];
    SpanResult& result = results[source.span];
    if (result.failed) return;
    if (wishes[r].target) result.target_logprobs[source.row] = LogProb(gathered[r].target, gathered[r].lse);
    if (wishes[r].all) {
      const int64_t length = span.prefix + static_cast<int64_t>(span.tokens.size());
      result.token = sampler->Choose(span.request, length, gathered[r].logits, gathered[r].lse);
    }
  });
  return Status::Ok();
}

}  // namespace perigee::engine
