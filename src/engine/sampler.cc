#include "engine/sampler.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "base/check.h"

namespace perigee::engine {
namespace {

// The finaliser of SplitMix64: neighbouring request numbers give unrelated seeds.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

float LogProb(float logit, float lse) {
  return std::max(logit - lse, std::numeric_limits<float>::lowest());
}

void Sampler::Add(RequestId id, const Request& request) {
  const SamplingParams& params = request.sampling;
  const Entry entry{
      .choice = {.temperature = params.temperature, .top_k = params.top_k, .top_p = params.top_p},
      .seed = params.seed ? *params.seed : Mix(engine_seed_ ^ Mix(id)),
      .choice_number = static_cast<uint32_t>(params.choice),
      .prompt_size = static_cast<int64_t>(request.prompt.size()),
      .logprobs = params.logprobs,
      .top_logprobs = params.top_logprobs};
  const std::unique_lock lock(mutex_);
  PERIGEE_CHECK(entries_.emplace(id, entry).second);
}

void Sampler::Remove(RequestId id) {
  const std::unique_lock lock(mutex_);
  entries_.erase(id);
}

TokenOutput Sampler::Choose(RequestId id, int64_t length, std::span<const float> logits, float lse) const {
  Entry entry;
  {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return {};
    entry = found->second;
  }
  PERIGEE_CHECK(length >= entry.prompt_size);
  const auto index = static_cast<uint64_t>(length - entry.prompt_size);

  TokenOutput output;
  const double u = kernels::UniformFromKey(entry.seed, entry.choice_number, index);
  output.id = kernels::SampleToken(logits, entry.choice, u);
  if (entry.logprobs) output.logprob = LogProb(logits[static_cast<size_t>(output.id)], lse);
  if (entry.top_logprobs > 0) {
    for (const kernels::TopLogit& top : kernels::TopK(logits, entry.top_logprobs)) {
      output.top.push_back({.id = top.id, .logprob = LogProb(top.logit, lse)});
    }
  }
  return output;
}

}  // namespace perigee::engine
