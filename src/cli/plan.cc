#include "cli/plan.h"

#include <cstdio>
#include <string_view>
#include <vector>

#include "server/json_writer.h"
#include "server/native/server_info.h"

namespace perigee::cli {
namespace {

using server::JsonWriter;

void WriteTransitions(const std::vector<engine::PlanTransition>& table, JsonWriter& out) {
  out.BeginArray();
  for (const engine::PlanTransition& t : table) {
    out.BeginObject()
        .Field("kind", t.kind)
        .Field("blocks", t.blocks)
        .Field("stream", t.stream)
        .Field("input", t.input)
        .Field("rows", t.rows)
        .Field("latents", t.latents)
        .Field("states", t.states)
        .Field("output", t.output)
        .EndObject();
  }
  out.EndArray();
}

void WriteElements(const engine::PlanElements& e, int64_t prompt, double unit, JsonWriter& out) {
  out.BeginObject()
      .Field("entry", e.entry / unit)
      .Field("kda", e.kda / unit)
      .Field("mla", e.mla / unit)
      .Field("feed_forward", e.feed_forward / unit)
      .Field("exit", e.exit / unit)
      .Field("total", e.total / unit)
      .Field("served_prompt", e.Served(prompt) / unit)
      .Field("logits_per_wanted_row", e.logits / unit)
      .Field("first_chunk", e.first_chunk / unit)
      .Field("later_chunk", e.later_chunk / unit)
      .EndObject();
}

void WriteFlops(const engine::PlanReport& r, JsonWriter& out) {
  out.BeginObject().Key("ranks").BeginArray();
  for (const engine::RankFlops& f : r.flops) {
    out.BeginObject()
        .Field("products", f.gemms)
        .Field("kda", f.kda)
        .Field("attention", f.attention)
        .Field("total", f.total())
        .Field("pairs", f.pairs)
        .EndObject();
  }
  out.EndArray().Field("balance", r.balance).Field("pairs_balance", r.pairs_balance).EndObject();
}

void WriteRate(std::string_view name, const engine::GivenRate& rate, JsonWriter& out) {
  out.Key(name)
      .BeginObject()
      .Field("value", rate.value)
      .Field("from", engine::RateSourceName(rate.source))
      .EndObject();
}

void WriteLink(std::string_view name, const engine::GivenLink& link, JsonWriter& out) {
  out.Key(name).BeginObject();
  WriteRate("link_gbps", link.link_gbps, out);
  WriteRate("latency_us", link.latency_us, out);
  out.EndObject();
}

void WriteRates(const engine::GivenRates& rates, JsonWriter& out) {
  out.BeginObject();
  WriteLink("tp", rates.tp, out);
  WriteLink("cp", rates.cp, out);
  WriteLink("attn_tp", rates.attn_tp, out);
  WriteRate("tflops", rates.tflops, out);
  WriteRate("row_bytes", rates.row_bytes, out);
  out.EndObject();
}

void WriteChoice(const engine::PlanReport& r, JsonWriter& out) {
  const engine::PlanChoice& c = r.choice;
  out.BeginObject()
      .Field("mode", c.mode)
      .Field("decode_mode", "decode")
      .Field("strategy", c.strategy)
      .Field("attention_form", c.attention_form)
      .Field("chunk", c.chunk)
      .Field("deterministic", c.deterministic)
      .Field("why", c.why)
      .Key("alternatives")
      .BeginArray();
  for (const engine::PlanAlternative& a : c.alternatives) {
    out.BeginObject()
        .Field("mode", a.mode)
        .Field("flags", a.flags)
        .Field("elements_per_token", a.elements.total)
        .EndObject();
  }
  out.EndArray().Key("rates");
  WriteRates(c.rates, out);
  out.Key("cheapest").BeginArray();
  for (const engine::PlanRange& range : c.cheapest) {
    out.BeginObject().Field("from_rows", range.rows).Field("mode", range.mode).EndObject();
  }
  out.EndArray().Key("state_break_even").BeginArray();
  for (const engine::PlanBreakEven& b : c.break_even) {
    out.BeginObject().Field("strategy", b.strategy).Field("rows", b.rows).EndObject();
  }
  out.EndArray().Key("notices").BeginArray();
  for (const std::string& notice : r.notices) out.Value(notice);
  out.EndArray().EndObject();
}

}  // namespace

std::string PlanJson(const engine::PlanReport& r) {
  JsonWriter out;
  out.BeginObject()
      .Field("model", r.model)
      .Field("prompt", r.prompt)
      .Field("tp", r.tp)
      .Field("attn_cp", r.attn_cp)
      .Field("ep", r.ep)
      .Key("transitions")
      .BeginObject()
      .Key("prefill");
  WriteTransitions(r.prefill, out);
  out.Key("decode");
  WriteTransitions(r.decode, out);
  out.EndObject().Key("elements_per_token").BeginObject().Field("unit", r.unit).Key("elements");
  WriteElements(r.elements, r.prompt, 1, out);
  out.Key("u");
  WriteElements(r.elements, r.prompt, static_cast<double>(r.unit), out);
  out.EndObject().Key("flops_per_rank");
  WriteFlops(r, out);
  out.Key("choice");
  WriteChoice(r, out);
  out.Key("memory");
  server::WriteMemoryPlan(out, r.memory);
  out.Field("memory_fit", r.memory_fit);
  out.EndObject();
  return out.Take();
}

Status RunPlan(const engine::PlanRequest& request, bool json) {
  PERIGEE_ASSIGN_OR_RETURN(const engine::PlanReport report, engine::MakePlan(request));
  const std::string text = json ? PlanJson(report) + "\n" : engine::PlanText(report);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    return InternalError("cannot write to standard output");
  return Status::Ok();
}

}  // namespace perigee::cli
