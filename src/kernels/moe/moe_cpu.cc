#include "kernels/moe/moe_cpu.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/math.h"

namespace perigee::kernels::cpu {
namespace {

constexpr int64_t kRowBlock = 1024;  // rows whose partial sums are held at a time
constexpr int64_t kGemmRows = 96;

// Chosen experts of one row into ascending order; weights from the unbiased scores.
void RouteRow(const float* scores, std::span<const float> bias, const RouterOptions& options,
              int32_t* experts, float* weights) {
  const auto count = static_cast<int64_t>(bias.size());
  std::vector<bool> taken(bias.size());
  for (int64_t k = 0; k < options.top_k; ++k) {
    int64_t best = -1;
    float best_score = 0;
    for (int64_t e = 0; e < count; ++e) {
      const float biased = scores[e] + bias[static_cast<size_t>(e)];
      if (!taken[static_cast<size_t>(e)] && (best < 0 || biased > best_score)) {
        best = e;
        best_score = biased;
      }
    }
    taken[static_cast<size_t>(best)] = true;
    experts[k] = static_cast<int32_t>(best);
  }
  std::sort(experts, experts + options.top_k);
  float sum = 0;
  for (int64_t k = 0; k < options.top_k; ++k) sum += weights[k] = scores[experts[k]];
  const float scale = options.renormalize ? options.scaling_factor / (sum + 1e-20f) : options.scaling_factor;
  for (int64_t k = 0; k < options.top_k; ++k) weights[k] *= scale;
}

// The rows of a block grouped by expert: group e is entries [begin[e], begin[e + 1]) of row and weight.
struct Groups {
  std::vector<int64_t> begin;
  std::vector<int32_t> row;  // ascending within a group
  std::vector<float> weight;
};

// Rows [first_row, first_row + rows) of the routing by the experts that `weights` holds.
Groups GroupByExpert(const Routing& routing, int64_t first_row, int64_t rows, const MoeWeights& weights) {
  const auto experts = static_cast<int64_t>(weights.experts.size());
  const auto from = static_cast<size_t>(first_row * routing.top_k);
  const auto count = static_cast<size_t>(rows * routing.top_k);
  const auto local = [&](size_t i) { return routing.experts[from + i] - weights.first_expert; };
  const auto held = [&](size_t i) { return local(i) >= 0 && local(i) < experts; };
  Groups g;
  g.begin.assign(weights.experts.size() + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    if (held(i)) ++g.begin[static_cast<size_t>(local(i)) + 1];
  }
  std::partial_sum(g.begin.begin(), g.begin.end(), g.begin.begin());
  g.row.resize(static_cast<size_t>(g.begin.back()));
  g.weight.resize(g.row.size());
  std::vector<int64_t> next(g.begin.begin(), g.begin.end() - 1);
  for (size_t i = 0; i < count; ++i) {
    if (!held(i)) continue;
    const auto at = static_cast<size_t>(next[static_cast<size_t>(local(i))]++);
    g.row[at] = static_cast<int32_t>(i / static_cast<size_t>(routing.top_k));
    g.weight[at] = routing.weights[from + i];
  }
  return g;
}

// One piece of the grouped up-projection: some rows of one group.
struct UpTask {
  const MlpWeights* mlp;
  int64_t begin;  // first entry
  int64_t count;
  const float* weight;  // of the entries, or null
};

// Scratch of one up task: its rows of gate and up, and a widened weight.
int64_t UpScratch(int64_t panels, int64_t hidden) {
  return panels * 16 * (kGemmRows + hidden);
}

// Panels of the down product that one task sums.
int64_t DownGroup(int64_t panels, int threads) {
  return panels >= 16 * threads ? 4 : 2;
}

// Gated activations of all entries (rows of `gathered`), expert by expert.
void UpProjections(const KernelContext& context, const std::vector<UpTask>& tasks, ConstMatrixF gathered,
                   MatrixF act) {
  int64_t panels = 0;
  for (const UpTask& t : tasks) panels = std::max(panels, t.mlp->gate_up.panels());
  const int64_t scratch = UpScratch(panels, gathered.cols);
  ForTasks(context, static_cast<int64_t>(tasks.size()), scratch, [&](int64_t i, float* room) {
    const UpTask& t = tasks[static_cast<size_t>(i)];
    const PackedWeight& w = t.mlp->gate_up;
    MatrixF gate_up(room, t.count, w.out());
    MoePanels(gathered.Rows(t.begin, t.count), w, 0, w.panels(), gate_up, room + kGemmRows * panels * 16);
    MoeActivation(gate_up, t.weight, act.Rows(t.begin, t.count));
  });
}

void AddUpTasks(const MlpWeights& mlp, int64_t begin, int64_t end, const float* weight,
                std::vector<UpTask>& tasks) {
  for (int64_t at = begin; at < end; at += kGemmRows) {
    tasks.push_back({&mlp, at, std::min(kGemmRows, end - at), weight == nullptr ? nullptr : weight + at});
  }
}

void ForwardBlock(const KernelContext& context, const MoeWeights& weights, const Groups& groups,
                  ConstMatrixF x, MatrixF y) {
  const Workspace::Scope scope(*context.workspace);
  const auto experts = static_cast<int64_t>(weights.experts.size());
  const auto entries = static_cast<int64_t>(groups.row.size());
  const int64_t width = weights.experts[0].down.in();
  const int64_t shared_width = weights.shared.down.in();

  MatrixF gathered(context.workspace->Floats(entries * x.cols), entries, x.cols);
  context.pool->ParallelRanges(entries, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(x.Row(groups.row[static_cast<size_t>(i)]), x.cols, gathered.Row(i));
    }
  });
  MatrixF act(context.workspace->Floats(entries * width), entries, width);
  std::vector<UpTask> tasks;
  for (int64_t e = 0; e < experts; ++e) {
    const auto i = static_cast<size_t>(e);
    AddUpTasks(weights.experts[i], groups.begin[i], groups.begin[i + 1], groups.weight.data(), tasks);
  }
  UpProjections(context, tasks, gathered, act);
  MatrixF shared_act(context.workspace->Floats(x.rows * shared_width), x.rows, shared_width);
  if (shared_width > 0) {
    tasks.clear();
    AddUpTasks(weights.shared, 0, x.rows, nullptr, tasks);
    UpProjections(context, tasks, x, shared_act);
  }

  const int64_t parts = weights.parts;
  const int64_t panels = weights.experts[0].down.panels();
  const int64_t group = DownGroup(panels, context.pool->size());
  const int64_t sum_floats = x.rows * parts * group * 16;
  const int64_t wide_floats = std::max(width, shared_width) * group * 16;
  ForTasks(context, CeilDiv(panels, group), sum_floats + wide_floats, [&](int64_t task, float* room) {
    const int64_t begin = task * group;
    const int64_t end = std::min(begin + group, panels);
    float* wide = room + sum_floats;
    std::fill_n(room, x.rows * parts * (end - begin) * 16, 0.0f);
    for (size_t e = 0; e < weights.experts.size(); ++e) {
      const int64_t first = groups.begin[e];
      const int64_t count = groups.begin[e + 1] - first;
      if (count == 0) continue;
      MoeAddDown(act.Rows(first, count), weights.experts[e], begin, end, groups.row.data() + first, parts,
                 room, wide);
    }
    if (shared_width > 0) MoeAddDown(shared_act, weights.shared, begin, end, nullptr, parts, room, wide);
    const int64_t cols = std::min(end * 16, y.cols) - begin * 16;
    MoeTree(room, x.rows, parts, (end - begin) * 16, cols, y.Cols(begin * 16, cols));
  });
}

}  // namespace

void RouteTopK(const KernelContext& context, ConstMatrixF logits, std::span<const float> bias,
               const RouterOptions& options, const Routing& routing) {
  context.pool->ParallelRanges(logits.rows, 32, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(bias.size());
    for (int64_t r = begin; r < end; ++r) {
      MoeScores(logits.Row(r), logits.cols, scores.data());
      const int64_t at = r * options.top_k;
      RouteRow(scores.data(), bias, options, routing.experts.data() + at, routing.weights.data() + at);
    }
  });
}

void MoeForward(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                ConstMatrixF x, MatrixF y) {
  for (int64_t row = 0; row < x.rows; row += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, x.rows - row);
    ForwardBlock(context, weights, GroupByExpert(routing, row, rows, weights), x.Rows(row, rows),
                 y.Rows(row, rows));
  }
}

}  // namespace perigee::kernels::cpu

namespace perigee::kernels {

void TallyMoe(WorkspaceTally& tally, const MoeSizes& sizes, int64_t all_rows) {
  const WorkspaceTally::Scope scope(tally);
  const int64_t rows = std::min(all_rows, cpu::kRowBlock);
  // A row's chosen experts may all be here.
  const int64_t entries = rows * std::min(sizes.top_k, sizes.experts);
  tally.Floats(entries * sizes.hidden);
  tally.Floats(entries * sizes.width);
  const auto tally_up = [&](int64_t tasks, int64_t width) {
    tally.Tasks(tasks, cpu::UpScratch(CeilDiv<int64_t>(2 * width, PackedWeight::kPanel), sizes.hidden));
  };
  tally_up(entries, sizes.width);
  tally.Floats(rows * sizes.shared_width);
  if (sizes.shared_width > 0) tally_up(rows, sizes.shared_width);
  const int64_t panels = CeilDiv<int64_t>(sizes.hidden, PackedWeight::kPanel);
  const int64_t group = cpu::DownGroup(panels, tally.threads());
  tally.Tasks(CeilDiv(panels, group),
              (rows * sizes.parts + std::max(sizes.width, sizes.shared_width)) * group * 16);
}

}  // namespace perigee::kernels
