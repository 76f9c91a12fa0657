#include "engine/plan_costs.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/math.h"
#include "batch/seq_span.h"
#include "kernels/kda/kda.h"
#include "model/kimi_linear/model.h"
#include "parallel/cp/cp_plan.h"
#include "parallel/layout_plan.h"
#include "parallel/planner.h"
#include "parallel/shard.h"

namespace perigee::engine {
namespace {

using model::KimiLinearConfig;
using parallel::AttentionForm;
using parallel::Range;
using parallel::Segment;
using parallel::Shard;

// Rows, pairs and expanded keys of MLA on one CP rank, summed over chunks.
struct MlaRows {
  double rows = 0;      // that pass the query projection
  double absorbed = 0;  // those of them that read latents directly
  double absorbed_pairs = 0;
  double materialised_pairs = 0;
  double expanded_keys = 0;

  void Add(bool reads_latents, int64_t new_rows, int64_t pairs, int64_t keys) {
    rows += static_cast<double>(new_rows);
    if (reads_latents) {
      absorbed += static_cast<double>(new_rows);
      absorbed_pairs += static_cast<double>(pairs);
    } else {
      materialised_pairs += static_cast<double>(pairs);
      expanded_keys += static_cast<double>(keys);
    }
  }
};

// What a CP rank has of the prompt.
struct PromptRows {
  double local = 0;       // rows whose latents it makes
  double summarised = 0;  // rows whose effect on KDA's state it works out (the state mode)
  double folds = 0;       // of such effects
  MlaRows all;            // in a layer where every row is computed
  MlaRows last_only;      // in the last layer, for the prompt's last row
};

// As MlaAttention decides.
bool ReadsLatents(const KimiLinearConfig& c, AttentionForm form, int64_t rows) {
  if (form != AttentionForm::kByCost) return form == AttentionForm::kAbsorbed;
  const int64_t expanded = c.qk_nope_head_dim + c.v_head_dim;
  return rows * (2 * c.kv_lora_rank - expanded) < c.kv_lora_rank * expanded;
}

// Cuts the prompt into chunks and each chunk as the mode does. One entry a CP rank.
std::vector<PromptRows> CutPrompt(const KimiLinearConfig& c, const ParallelOptions& o,
                                  const ParallelPlan& plan, int64_t prompt, int64_t chunk) {
  std::vector<PromptRows> ranks(static_cast<size_t>(o.attn_cp));
  const bool sharded = o.attn_cp > 1 && plan.prefill_mode != batch::StepMode::kTp;
  for (int64_t begin = 0; begin < prompt; begin += chunk) {
    const int64_t rows = std::min(chunk, prompt - begin);
    const batch::SeqSpan span{.q_len = rows, .kv_len = begin + rows};
    parallel::CpPlan cut;
    if (sharded) {
      cut = plan.policy.strategy({&span, 1}, o.attn_cp);
    } else {
      cut.ranks.assign(ranks.size(), {Segment{.len = rows}});
    }
    const bool absorbed = ReadsLatents(c, plan.policy.attention_form, sharded ? rows / o.attn_cp : rows);
    double segments = 0;
    for (const auto& own : cut.ranks) segments += static_cast<double>(own.size());
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].folds += segments - 1;
      int64_t local = 0, pairs = 0, keys = 0;
      for (const Segment& s : cut.ranks[r]) {
        local += s.len;
        if (s.begin > 0) ranks[r].summarised += static_cast<double>(s.len);
        pairs += parallel::VisiblePairs(span, s);
        keys = std::max(keys, span.prefix() + s.begin + s.len);
        if (begin + s.begin + s.len == prompt) ranks[r].last_only.Add(absorbed, 1, prompt, prompt);
      }
      ranks[r].local += static_cast<double>(local);
      ranks[r].all.Add(absorbed, local, pairs, keys);
    }
  }
  return ranks;
}

// Operations of one rank, layer by layer.
class FlopCounter {
 public:
  FlopCounter(const KimiLinearConfig& config, const Shard& shard, batch::StepMode mode,
              const PromptRows& prompt, int64_t rows)
      : c_(config),
        shard_(shard),
        prompt_(prompt),
        rows_(static_cast<double>(rows)),
        kda_keeps_rows_(KeepsRows(parallel::BlockKind::kKda, mode, shard)),
        mla_heads_(HeadsOf(c_.num_attention_heads, KeepsRows(parallel::BlockKind::kMla, mode, shard))) {}

  RankFlops Count() {
    for (int64_t l = 0; l < c_.num_hidden_layers; ++l) {
      const auto layer = static_cast<size_t>(l);
      const bool last = l + 1 == c_.num_hidden_layers;
      const double leaving = last ? 1 : rows_;
      if (c_.is_kda[layer]) {
        Kda(last);
      } else {
        Mla(last ? prompt_.last_only : prompt_.all);
      }
      if (c_.is_moe[layer]) {
        Moe(leaving);
      } else {
        Mlp(leaving, shard_.Of(c_.intermediate_size).size());
      }
    }
    Gemm(1, shard_.Of(c_.vocab_size).size(), c_.hidden_size);
    sum_.pairs = prompt_.all.absorbed_pairs + prompt_.all.materialised_pairs;
    return sum_;
  }

 private:
  void Gemm(double rows, int64_t out, int64_t in) {
    sum_.gemms += 2 * rows * static_cast<double>(out) * static_cast<double>(in);
  }

  static bool KeepsRows(parallel::BlockKind kind, batch::StepMode mode, const Shard& shard) {
    return shard.num_held > 1 && parallel::LayoutsOf(kind, mode).input == parallel::Sharding::kCp;
  }
  int64_t HeadsOf(int64_t all, bool keeps_rows) const {
    return keeps_rows ? shard_.Held(all).size() : shard_.Of(all).size();
  }

  // Of the last layer's result one row is wanted; the states need them all.
  void Kda(bool last) {
    const double rows = kda_keeps_rows_ ? prompt_.local : rows_;
    double leaving = rows;
    if (last) leaving = kda_keeps_rows_ ? prompt_.last_only.rows : 1;
    const int64_t heads = HeadsOf(c_.kda_num_heads, kda_keeps_rows_);
    const int64_t width = heads * c_.kda_head_dim;
    Gemm(rows, 3 * width + heads + 2 * c_.kda_gate_rank(), c_.hidden_size);
    Gemm(rows, width, c_.kda_gate_rank());
    Gemm(leaving, width, c_.kda_gate_rank());
    Gemm(leaving, c_.hidden_size, width);
    const parallel::KdaFlops flops = parallel::FlopsOfKda(c_.kda_head_dim, c_.kda_head_dim);
    const double conv =
        2 * 3 * static_cast<double>(c_.kda_head_dim) * static_cast<double>(c_.short_conv_kernel_size);
    sum_.kda += rows * static_cast<double>(heads) * (flops.forward + conv);
    if (!kda_keeps_rows_) return;
    sum_.kda +=
        static_cast<double>(heads) * (prompt_.summarised * flops.summary + prompt_.folds * flops.fold);
  }

  void Mla(const MlaRows& mla) {
    const int64_t qk = c_.qk_head_dim(), value = c_.v_head_dim, rank = c_.kv_lora_rank;
    Gemm(prompt_.local, rank + c_.qk_rope_head_dim, c_.hidden_size);
    Gemm(mla.rows, mla_heads_ * qk, c_.hidden_size);
    Gemm(mla.rows, c_.hidden_size, mla_heads_ * value);
    // Keys are expanded once a chunk; a row that reads latents passes the same weights itself.
    Gemm(mla.expanded_keys + mla.absorbed, mla_heads_ * (c_.qk_nope_head_dim + value), rank);
    const auto heads = static_cast<double>(mla_heads_);
    sum_.attention += 2 * heads * mla.materialised_pairs * static_cast<double>(qk + value);
    sum_.attention += 2 * heads * mla.absorbed_pairs * static_cast<double>(2 * rank + c_.qk_rope_head_dim);
  }

  void Mlp(double rows, int64_t width) { Gemm(rows, 3 * width, c_.hidden_size); }

  // Every expert is chosen equally often.
  void Moe(double rows) {
    Gemm(rows, c_.num_experts, c_.hidden_size);
    const int64_t per_group = shard_.total / shard_.expert_groups;
    const int64_t place = shard_.share % per_group;
    const int64_t width = PartBegin(place + 1, c_.moe_intermediate_size, per_group) -
                          PartBegin(place, c_.moe_intermediate_size, per_group);
    const double chosen =
        static_cast<double>(c_.num_experts_per_token) / static_cast<double>(shard_.expert_groups);
    Mlp(rows * chosen, width);
    Mlp(rows, shard_.Of(c_.num_shared_experts * c_.moe_intermediate_size).size());
  }

  const KimiLinearConfig& c_;
  const Shard& shard_;
  const PromptRows& prompt_;
  const double rows_;
  const bool kda_keeps_rows_;
  const int64_t mla_heads_;
  RankFlops sum_;
};

}  // namespace

std::vector<RankFlops> CountFlops(const KimiLinearConfig& config, const ParallelOptions& options,
                                  const ParallelPlan& plan, int64_t prompt, int64_t chunk) {
  const std::vector<PromptRows> rows = CutPrompt(config, options, plan, prompt, chunk);
  std::vector<RankFlops> flops;
  for (int rank = 0; rank < options.tp; ++rank) {
    const Shard shard = ShardOfRank(options, rank);
    const int64_t cp_rank = shard.share - shard.first_held;
    flops.push_back(
        FlopCounter(config, shard, plan.prefill_mode, rows[static_cast<size_t>(cp_rank)], prompt).Count());
  }
  return flops;
}

double Balance(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (sum == 0) return 1;
  return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) / sum;
}

}  // namespace perigee::engine
