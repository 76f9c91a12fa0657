#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "batch/batch_plan.h"
#include "batch/step_mode.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/step_layout.h"
#include "tensor/device.h"

namespace perigee::testing {

// Feeds whole token sequences through a model's prefill and decode forms, in any pieces and any company, and
// keeps the logits of every row.
class ModelHarness {
 public:
  // How the model is spread: ranks are threads of this process, or, in tests that run under mpirun, processes
  // that all do the same with their harness.
  struct Ranks {
    int tp = 1;
    int attn_cp = 1;
    int ep = 1;
    batch::StepMode prefill_mode = batch::StepMode::kTp;
    parallel::CpStrategy strategy = parallel::Zigzag;
    parallel::AttentionForm form = parallel::AttentionForm::kMaterialised;
    Device device = Device::kCpu;
  };

  // Fails the test when the folder does not load. Up to `max_seqs` sequences of up to `max_tokens` tokens at
  // a time. threads: of each rank.
  ModelHarness(const std::string& folder, int threads, int64_t max_seqs = 8, int64_t max_tokens = 1024);
  ModelHarness(const std::string& folder, int threads, const Ranks& ranks, int64_t max_seqs = 8,
               int64_t max_tokens = 1024);
  ~ModelHarness();

  int64_t vocab_size() const { return vocab_size_; }
  // False in a process that is none of the ranks, which has no logits.
  bool takes_part() const { return !ranks_.empty(); }
  // Most bytes of scratch that a rank ever had in use.
  size_t WorkspacePeak(size_t rank) const;

  // One sequence fed in pieces: prefill pieces of `piece` rows (0: whole), the last `decode_rows` rows one by
  // one in the decode form.
  struct Sequence {
    std::vector<int32_t> ids;
    int64_t piece = 0;
    int64_t decode_rows = 0;
    std::vector<int64_t> snapshots{};  // tokens after which the state is kept too; see LastSnapshots
  };

  // Logits [rows of the sequence][vocab] of each sequence. Sequences run side by side: every step takes the
  // next piece of each that still has one of that phase. Blocks and slots are handed out in a scrambled order
  // and hold stale data.
  std::vector<std::vector<float>> Run(const std::vector<Sequence>& sequences);
  // The same, asking only for what serving asks for: the last row of each prompt and the decoded rows. Other
  // rows are cut short in the last layer.
  std::vector<std::vector<float>> RunSampled(const std::vector<Sequence>& sequences);

  // What the last run left of a sequence: on each rank, for each KDA layer, its share of the recurrent state
  // or of the conv tail.
  struct States {
    std::vector<float> recurrent;
    std::vector<float> conv;
  };
  std::vector<States> LastStates() const;
  // The same of the snapshots of all sequences, one after another; each has a slot of its own.
  std::vector<States> LastSnapshots() const;

 private:
  struct Rank;
  std::vector<int32_t> BlockTable(int64_t seq) const;
  std::vector<std::vector<float>> Run(const std::vector<Sequence>& sequences, bool all_rows);
  // Logits of a step's wanted rows, [wanted rows, vocab_size].
  std::vector<float> Step(const batch::BatchPlan& plan, const std::vector<batch::StateSnapshot>& snapshots);
  States SlotStates(int64_t slot) const;

  Ranks config_;
  int64_t vocab_size_ = 0;
  int64_t max_seqs_;
  int64_t blocks_per_seq_;
  size_t last_count_ = 0;      // sequences of the last run
  size_t last_snapshots_ = 0;  // and their snapshots
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// log softmax(row)[id] in double.
double LogProbability(const float* row, int64_t vocab, int32_t id);
// Largest difference of a log-probability between two arrays of logits [rows, vocab].
double WorstLogProbDifference(const std::vector<float>& a, const std::vector<float>& b, int64_t vocab);

}  // namespace perigee::testing
