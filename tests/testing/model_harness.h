#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/context.h"
#include "model/registry.h"

namespace perigee::testing {

// Feeds whole token sequences through a model's prefill and decode forms, in any pieces and any company, and
// keeps the logits of every row.
class ModelHarness {
 public:
  // Fails the test when the folder does not load. Up to `max_seqs` sequences of up to `max_tokens` tokens at
  // a time.
  ModelHarness(const std::string& folder, int threads, int64_t max_seqs = 8, int64_t max_tokens = 1024);
  ~ModelHarness();

  int64_t vocab_size() const { return loaded_.vocab_size; }

  // One sequence fed in pieces: prefill pieces of `piece` rows (0: whole), the last `decode_rows` rows one by
  // one in the decode form.
  struct Sequence {
    std::vector<int32_t> ids;
    int64_t piece = 0;
    int64_t decode_rows = 0;
  };

  // Logits [rows of the sequence][vocab] of each sequence. Sequences run side by side: every step takes the
  // next piece of each that still has one of that phase. Blocks and slots are handed out in a scrambled order
  // and hold stale data.
  std::vector<std::vector<float>> Run(const std::vector<Sequence>& sequences);

 private:
  struct Pools;
  model::LoadedModel loaded_;
  ThreadPool pool_;
  kernels::Workspace workspace_;
  std::unique_ptr<Pools> pools_;
};

// log softmax(row)[id] in double.
double LogProbability(const float* row, int64_t vocab, int32_t id);

}  // namespace perigee::testing
