#include "scheduler/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace perigee::scheduler {

Sequence::Sequence(NewSequence request)
    : id_(request.id),
      tokens_(std::move(request.prompt)),
      prompt_size_(static_cast<int64_t>(tokens_.size())),
      max_new_tokens_(request.max_new_tokens),
      stop_ids_(std::move(request.stop_ids)),
      prompt_logprobs_(request.prompt_logprobs) {
  PERIGEE_CHECK(prompt_size_ > 0 && max_new_tokens_ >= 0);
  std::sort(stop_ids_.begin(), stop_ids_.end());
}

int64_t Sequence::ReuseLimit() const {
  if (prompt_logprobs_ && prompt_reached_ < prompt_size_) return prompt_reached_;
  return num_tokens() - 1;
}

void Sequence::Begin(int64_t reused, bool mixed) {
  PERIGEE_CHECK(!begun_ && num_computed_ == 0 && reused < num_tokens());
  const int64_t beyond = std::max<int64_t>(std::min(reused, prompt_size_) - prompt_reached_, 0);
  // Settled, and told, when the prompt has been through.
  if (prompt_reached_ < prompt_size_) cached_tokens_ = std::min(cached_tokens_, reused) + beyond;
  skipped_tokens_ += beyond;
  num_computed_ = reused;
  prompt_reached_ += beyond;
  begun_ = true;
  mixed_ = mixed;
  reused_answer_ = reused_answer_ || mixed;
}

cache::Origin Sequence::OriginAt(int64_t end) const {
  if (mixed_) return cache::kMixed;
  return end <= prompt_size_ ? cache::kPromptForm : prompt_size_;
}

batch::PlannedSpan Sequence::PlanRows(int64_t rows) const {
  const int64_t end = num_computed_ + rows;
  PERIGEE_CHECK(rows > 0 && end <= num_tokens());
  const auto token = [&](int64_t position) { return tokens_.begin() + position; };
  batch::PlannedSpan span;
  span.request = id_;
  span.tokens.assign(token(num_computed_), token(end));
  span.prefix = num_computed_;
  span.state_slot = memory.slot;
  span.fresh_state = num_computed_ == 0;
  span.restore_from = memory.restore_from;
  span.save_to = memory.save_to;
  span.block_table = memory.blocks;
  span.sample = end == num_tokens() && max_new_tokens_ > 0;
  // Once the prompt has been through, its log-probabilities are delivered; a replay does not repeat them.
  span.prompt_logprobs = prompt_logprobs_ && in_prefill() && prompt_reached_ < prompt_size_;
  if (span.prompt_logprobs) {
    span.targets.assign(token(num_computed_ + 1), token(std::min(end + 1, prompt_size_)));
  }
  return span;
}

void Sequence::Advance(int64_t rows) {
  num_computed_ += rows;
  PERIGEE_CHECK(num_computed_ <= num_tokens());
  prompt_reached_ = std::max(prompt_reached_, std::min(num_computed_, prompt_size_));
}

Finish Sequence::Append(int32_t token) {
  tokens_.push_back(token);
  PERIGEE_CHECK(num_generated() <= max_new_tokens_);
  if (std::binary_search(stop_ids_.begin(), stop_ids_.end(), token)) return Finish::kStop;
  return num_generated() == max_new_tokens_ ? Finish::kLength : Finish::kNone;
}

void Sequence::Restart() {
  num_computed_ = 0;
  branch_point = 0;
  was_preempted_ = was_preempted_ || begun_;
  begun_ = false;
}

}  // namespace perigee::scheduler
