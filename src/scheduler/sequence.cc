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

batch::PlannedSpan Sequence::PlanRows(int64_t rows) const {
  const int64_t end = num_computed_ + rows;
  PERIGEE_CHECK(rows > 0 && end <= num_tokens());
  const auto token = [&](int64_t position) { return tokens_.begin() + position; };
  batch::PlannedSpan span;
  span.request = id_;
  span.tokens.assign(token(num_computed_), token(end));
  span.prefix = num_computed_;
  span.state_slot = slot;
  span.fresh_state = num_computed_ == 0;
  span.block_table = blocks;
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
  was_preempted_ = true;
}

}  // namespace perigee::scheduler
