#pragma once

#include <cstdint>
#include <shared_mutex>
#include <span>
#include <unordered_map>

#include "engine/engine.h"
#include "kernels/sampling/sampling.h"

namespace perigee::engine {

// ln p of a token from its logit and the row's log-sum-exp; never -inf, which JSON cannot say.
float LogProb(float logit, float lse);

// Chooses tokens by each request's own parameters. The random number of a token depends on the request's
// seed, its choice number and the token's index alone, so neither batch nor preemption changes it. Any
// thread: a step that was given up may still be choosing when its requests are removed.
class Sampler {
 public:
  // `engine_seed` gives unseeded requests a seed of their own each.
  explicit Sampler(uint64_t engine_seed) : engine_seed_(engine_seed) {}

  void Add(RequestId id, const Request& request);
  void Remove(RequestId id);

  // The token that follows the first `length` tokens of a request. logits [vocab_size] are finite, lse is
  // their log-sum-exp. A request that has been removed gets token 0.
  TokenOutput Choose(RequestId id, int64_t length, std::span<const float> logits, float lse) const;

 private:
  struct Entry {
    kernels::SamplingChoice choice;
    uint64_t seed = 0;
    uint32_t choice_number = 0;
    int64_t prompt_size = 0;
    bool logprobs = false;
    int32_t top_logprobs = 0;
  };

  const uint64_t engine_seed_;
  mutable std::shared_mutex mutex_;  // guards entries_
  std::unordered_map<RequestId, Entry> entries_;
};

}  // namespace perigee::engine
