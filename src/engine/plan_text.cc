#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/plan_report.h"

namespace perigee::engine {
namespace {

using Cells = std::vector<std::string>;

// Columns as wide as their widest cell; the first row is the heading.
std::string Table(const std::vector<Cells>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Cells& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (const Cells& row : rows) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c) {
      line += StrCat(" ", row[c], std::string(widths[c] - row[c].size() + 1, ' '));
    }
    out += StrCat(line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  }
  return out;
}

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string Transitions(const std::vector<PlanTransition>& table) {
  std::vector<Cells> rows = {{"block", "count", "stream", "input", "rows", "latents", "states", "output"}};
  const auto shown = [](const std::string& name) { return name == "none" ? "-" : name; };
  for (const PlanTransition& t : table) {
    rows.push_back({t.kind, StrCat(t.blocks), shown(t.stream), shown(t.input), t.rows, shown(t.latents),
                    shown(t.states), shown(t.output)});
  }
  return Table(rows);
}

std::string Elements(const PlanReport& r) {
  const auto u = [&](double elements) { return Fixed(elements / static_cast<double>(r.unit), 4); };
  const auto row = [&](std::string_view label, double elements) {
    return Cells{std::string(label), Fixed(elements, 1), u(elements)};
  };
  const PlanElements& e = r.elements;
  std::vector<Cells> rows = {{"block", "elements", "u"},
                             row("entry", e.entry),
                             row("kda", e.kda),
                             row("mla", e.mla),
                             row("feed_forward", e.feed_forward),
                             row("exit", e.exit),
                             row("total, every row wanted", e.total),
                             row("total, only the prompt's last row wanted", e.Served(r.prompt)),
                             row("a wanted row on its way to the head", e.logits)};
  if (e.first_chunk > 0) {
    rows.push_back(row("besides, a prompt's first chunk", e.first_chunk));
    rows.push_back(row("besides, each later chunk", e.later_chunk));
  }
  return Table(rows);
}

std::string Flops(const PlanReport& r) {
  constexpr double kGiga = 1e9;
  std::vector<Cells> rows = {{"rank", "products", "kda", "attention", "total", "pairs"}};
  for (size_t rank = 0; rank < r.flops.size(); ++rank) {
    const RankFlops& f = r.flops[rank];
    rows.push_back({StrCat(rank), Fixed(f.gemms / kGiga, 3), Fixed(f.kda / kGiga, 3),
                    Fixed(f.attention / kGiga, 3), Fixed(f.total() / kGiga, 3),
                    WithThousands(static_cast<uint64_t>(f.pairs))});
  }
  return Table(rows);
}

std::string Memory(const PlanReport& r) {
  std::vector<Cells> rows = {{"rank", "weights", "latents", "states", "snapshots", "workspace",
                              "latents a token", "states a request"}};
  for (size_t rank = 0; rank < r.memory.ranks.size(); ++rank) {
    const RankMemory& m = r.memory.ranks[rank];
    rows.push_back({StrCat(rank), WithThousands(m.weights), WithThousands(m.latents), WithThousands(m.states),
                    WithThousands(m.snapshots), WithThousands(m.workspace),
                    WithThousands(r.memory.bytes_per_token[rank]),
                    WithThousands(r.memory.bytes_per_sequence[rank])});
  }
  return StrCat(Table(rows), MemoryText(r.memory), r.memory_fit.empty() ? "" : StrCat(r.memory_fit, "\n"));
}

// One line a link, and one of what is the same for all.
std::string RatesText(const GivenRates& r) {
  const auto said = [](const GivenRate& rate) {
    return StrCat(rate.value, " (", RateSourceName(rate.source), ")");
  };
  std::vector<Cells> rows = {{"link", "link_gbps", "latency_us"}};
  for (const auto& [name, link] :
       {std::pair("tp", r.tp), std::pair("cp", r.cp), std::pair("attn_tp", r.attn_tp)}) {
    rows.push_back({name, said(link.link_gbps), said(link.latency_us)});
  }
  return StrCat(Table(rows), "  tflops ", said(r.tflops), ", row_bytes ", said(r.row_bytes), "\n");
}

std::string Choice(const PlanReport& r) {
  const PlanChoice& c = r.choice;
  const auto unit = static_cast<double>(r.unit);
  std::string out = StrCat("prompts: mode ", c.mode, ", strategy ", c.strategy, ", attention ",
                           c.attention_form, ", chunks of ", c.chunk, " rows, deterministic ",
                           c.deterministic ? "on" : "off", "\n  ", c.why, "\n");
  for (const PlanAlternative& a : c.alternatives) {
    out += StrCat("  instead ", a.mode, " (", a.flags, "): ", Fixed(a.elements.total / unit, 4),
                  " u a token, here ", Fixed(r.elements.total / unit, 4), "\n");
  }
  if (c.cheapest.empty()) return out;
  const auto from = [](std::string_view name, int64_t rows) {
    return StrCat(name, " from ", WithThousands(static_cast<uint64_t>(rows)), " rows");
  };
  std::vector<std::string> ranges, break_even;
  for (const PlanRange& range : c.cheapest) ranges.push_back(from(range.mode, range.rows));
  for (const PlanBreakEven& b : c.break_even) break_even.push_back(from(b.strategy, b.rows));
  return out + StrCat("  cheapest at the rates below: ", StrJoin(ranges, ", "),
                      "\n  state sends less than head, every link equal and rows of 2 bytes: ",
                      StrJoin(break_even, ", "), "\n\nrates that modes are compared by\n",
                      RatesText(c.rates));
}

}  // namespace

std::string PlanText(const PlanReport& r) {
  std::string out =
      StrCat(r.model, " on ", r.tp, r.tp == 1 ? " rank" : " ranks", ", attn_cp ", r.attn_cp, ", ep ", r.ep,
             ", a prompt of ", WithThousands(static_cast<uint64_t>(r.prompt)), " tokens\n");
  for (const std::string& notice : r.notices) out += StrCat(notice, "\n");
  out += Choice(r);
  out += StrCat("\ntransitions of prompts (", r.choice.mode, ")\n", Transitions(r.prefill));
  out += StrCat("\ntransitions of answers (decode)\n", Transitions(r.decode));
  out += StrCat("\nelements sent for each token and rank (u = ", r.unit, ")\n", Elements(r));
  out += StrCat("\nGFLOP of each rank for the prompt\n", Flops(r),
                "  largest over mean: ", Fixed(r.balance, 4), "; pairs ", Fixed(r.pairs_balance, 4), "\n");
  out += StrCat("\nbytes of each rank when served here\n", Memory(r));
  return out;
}

}  // namespace perigee::engine
