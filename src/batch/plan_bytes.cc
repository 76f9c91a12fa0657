#include "batch/plan_bytes.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/math.h"
#include "base/strings.h"

namespace perigee::batch {
namespace {

// Changes with every change of the form.
constexpr uint32_t kVersion = 2;

// The structured bindings name every member in its order: a member that is added does not compile before it
// travels too.
void EncodeSpan(const PlannedSpan& span, ByteWriter& out) {
  const auto& [request, tokens, prefix, state_slot, fresh_state, restore_from, save_to, block_table, sample,
               prompt_logprobs, targets] = span;
  out.Put(request);
  out.PutArray(std::span<const int32_t>(tokens));
  out.Put(prefix);
  out.Put(state_slot);
  out.Put(static_cast<uint8_t>(fresh_state));
  out.Put(restore_from);
  out.Put(save_to);
  out.PutArray(std::span<const int32_t>(block_table));
  out.Put(static_cast<uint8_t>(sample));
  out.Put(static_cast<uint8_t>(prompt_logprobs));
  out.PutArray(std::span<const int32_t>(targets));
}

PlannedSpan DecodeSpan(ByteReader& in) {
  PlannedSpan span;
  auto& [request, tokens, prefix, state_slot, fresh_state, restore_from, save_to, block_table, sample,
         prompt_logprobs, targets] = span;
  request = in.Get<uint64_t>();
  tokens = in.GetArray<int32_t>();
  prefix = in.Get<int64_t>();
  state_slot = in.Get<int32_t>();
  fresh_state = in.Get<uint8_t>() != 0;
  restore_from = in.Get<int32_t>();
  save_to = in.Get<int32_t>();
  block_table = in.GetArray<int32_t>();
  sample = in.Get<uint8_t>() != 0;
  prompt_logprobs = in.Get<uint8_t>() != 0;
  targets = in.GetArray<int32_t>();
  return span;
}

Status OutOfRange(std::string_view what, int64_t value, int64_t limit) {
  return InternalError(StrCat(what, " ", value, ", which is not from 0 to ", limit - 1));
}

Status CheckIds(std::string_view what, std::span<const int32_t> ids, int64_t limit) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= limit) return OutOfRange(what, id, limit);
  }
  return Status::Ok();
}

// A slot to copy to or from, -1 for none; another one than the span's own.
Status CheckCopy(std::string_view what, int32_t slot, const PlannedSpan& span, const PlanLimits& limits) {
  if (slot == -1) return Status::Ok();
  if (slot == span.state_slot) return InternalError(StrCat(what, " ", slot, ", its own slot"));
  return CheckIds(what, std::span(&slot, 1), limits.num_slots);
}

Status CheckSpan(const PlannedSpan& span, Phase phase, const PlanLimits& limits) {
  const auto rows = static_cast<int64_t>(span.tokens.size());
  if (rows == 0 || rows > limits.max_rows || (phase == Phase::kDecode && rows != 1)) {
    return InternalError(StrCat(rows, " rows"));
  }
  PERIGEE_RETURN_IF_ERROR(CheckIds("token", span.tokens, limits.vocab_size));
  PERIGEE_RETURN_IF_ERROR(CheckIds("target", span.targets, limits.vocab_size));
  PERIGEE_RETURN_IF_ERROR(CheckIds("block", span.block_table, limits.num_blocks));
  PERIGEE_RETURN_IF_ERROR(CheckIds("state slot", std::span(&span.state_slot, 1), limits.num_slots));
  PERIGEE_RETURN_IF_ERROR(CheckCopy("restored from slot", span.restore_from, span, limits));
  PERIGEE_RETURN_IF_ERROR(CheckCopy("saved to slot", span.save_to, span, limits));
  const int64_t capacity = limits.num_blocks * limits.block_tokens;
  if (span.prefix < 0 || span.prefix > capacity) return OutOfRange("prefix", span.prefix, capacity + 1);
  if (span.fresh_state != (span.prefix == 0)) {
    return InternalError(StrCat("fresh state ", span.fresh_state, " at prefix ", span.prefix));
  }
  if (span.restore_from >= 0 && span.fresh_state) {
    return InternalError(StrCat("restored from slot ", span.restore_from, " and fresh"));
  }
  if (static_cast<int64_t>(span.block_table.size()) < CeilDiv(span.prefix + rows, limits.block_tokens)) {
    return InternalError(StrCat(span.block_table.size(), " blocks for ", span.prefix + rows, " tokens"));
  }
  const auto targets = static_cast<int64_t>(span.targets.size());
  if (span.prompt_logprobs ? targets != rows && targets + 1 != rows : targets != 0) {
    return InternalError(StrCat(targets, " targets for ", rows, " rows"));
  }
  return Status::Ok();
}

}  // namespace

std::vector<std::byte> EncodePlan(const BatchPlan& plan) {
  const auto& [phase, mode, spans, freed_blocks, freed_slots] = plan;
  ByteWriter out;
  out.Put(kVersion);
  out.Put(static_cast<uint8_t>(phase));
  out.Put(static_cast<uint8_t>(mode));
  out.Put(static_cast<uint32_t>(spans.size()));
  for (const PlannedSpan& span : spans) EncodeSpan(span, out);
  out.PutArray(std::span<const int32_t>(freed_blocks));
  out.PutArray(std::span<const int32_t>(freed_slots));
  return out.Take();
}

StatusOr<BatchPlan> DecodePlan(std::span<const std::byte> bytes, const PlanLimits& limits) {
  ByteReader in(bytes);
  if (const auto version = in.Get<uint32_t>(); version != kVersion) {
    return InternalError(StrCat("a step's plan has the form ", version, ", this program knows ", kVersion,
                                ": the ranks are different builds"));
  }
  BatchPlan plan;
  auto& [phase, mode, spans, freed_blocks, freed_slots] = plan;
  phase = static_cast<Phase>(in.Get<uint8_t>());
  mode = static_cast<StepMode>(in.Get<uint8_t>());
  if (phase > Phase::kDecode || StepModeName(mode) == "?" ||
      (phase == Phase::kDecode) != (mode == StepMode::kDecode)) {
    return InternalError(
        StrCat("a step's plan has phase ", static_cast<int>(phase), " and mode ", static_cast<int>(mode)));
  }
  int64_t rows = 0;
  const auto count = in.Get<uint32_t>();
  for (uint32_t s = 0; s < count && in.ok(); ++s) {
    PlannedSpan span = DecodeSpan(in);
    if (!in.ok()) break;
    if (const Status checked = CheckSpan(span, phase, limits); !checked.ok()) {
      return InternalError(StrCat("a step's plan, span ", s, ": ", checked.message()));
    }
    rows += static_cast<int64_t>(span.tokens.size());
    if (rows > limits.max_rows)
      return InternalError(StrCat("a step's plan has more than ", limits.max_rows, " rows"));
    spans.push_back(std::move(span));
  }
  freed_blocks = in.GetArray<int32_t>();
  freed_slots = in.GetArray<int32_t>();
  PERIGEE_RETURN_IF_ERROR(CheckIds("a step's plan, freed block", freed_blocks, limits.num_blocks));
  PERIGEE_RETURN_IF_ERROR(CheckIds("a step's plan, freed slot", freed_slots, limits.num_slots));
  if (!in.ok() || in.remaining() != 0 || spans.empty()) {
    return InternalError(StrCat("a step's plan of ", bytes.size(), " bytes is cut off or has no spans"));
  }
  return plan;
}

}  // namespace perigee::batch
