#include "server/metrics.h"

#include <algorithm>

namespace perigee::server {
namespace {

using engine::EngineStats;

constexpr std::array<std::string_view, kNumRequestEnds> kEndNames = {"finished", "refused", "failed",
                                                                     "cancelled"};

struct Counter {
  const char* name;
  const char* help;
  uint64_t EngineStats::*value;
};
constexpr Counter kCounters[] = {
    {"perigee_cached_tokens_total", "Prompt tokens that the prefix cache spared.",
     &EngineStats::cached_tokens},
    {"perigee_generation_tokens_total", "Tokens generated.", &EngineStats::generated_tokens},
    {"perigee_prefix_cache_queries_total", "Prompts that could have found something in the prefix cache.",
     &EngineStats::prefix_lookups},
    {"perigee_prefix_cache_hits_total", "Prompts that found something in the prefix cache.",
     &EngineStats::prefix_hits},
    {"perigee_prefix_cache_evicted_pages_total", "Pages that the prefix cache gave up for others.",
     &EngineStats::evicted_blocks},
    {"perigee_prefix_cache_evicted_snapshots_total",
     "State snapshots that the prefix cache gave up for others.", &EngineStats::evicted_snapshots},
    {"perigee_preemptions_total", "Running sequences that gave way and start over.",
     &EngineStats::preemptions},
    {"perigee_cancellations_total", "Sequences that were cancelled before their end.",
     &EngineStats::cancellations},
};

void WriteBuild(PrometheusText& text) {
  text.Family("perigee_build_info", "gauge", "What runs here; always 1.");
  text.Sample({{"version", PERIGEE_VERSION}, {"compiler", "gcc " __VERSION__}}, 1);
}

void WriteGauges(PrometheusText& text, const EngineStats& s) {
  text.Family("perigee_num_requests_running", "gauge", "Sequences that have begun.");
  text.Sample({}, s.running);
  text.Family("perigee_num_requests_waiting", "gauge", "Sequences in the queue.");
  text.Sample({}, s.waiting);
  text.Family("perigee_kv_pages", "gauge",
              "Pages of 64 latents: used by running sequences, held by the prefix cache alone, or free.");
  text.Sample({{"state", "used"}}, s.total_blocks - s.free_blocks - s.cached_blocks);
  text.Sample({{"state", "cached"}}, s.cached_blocks);
  text.Sample({{"state", "free"}}, s.free_blocks);
  text.Family("perigee_state_slots", "gauge", "Slots for the recurrent states of running sequences.");
  text.Sample({{"state", "used"}}, s.total_slots - s.free_slots);
  text.Sample({{"state", "free"}}, s.free_slots);
  text.Family("perigee_state_snapshots", "gauge", "Slots for the states that the prefix cache keeps.");
  text.Sample({{"state", "used"}}, s.used_snapshots);
  text.Sample({{"state", "free"}}, s.total_snapshots - s.used_snapshots);
}

void WriteCounters(PrometheusText& text, const EngineStats& s) {
  text.Family("perigee_prompt_tokens_total", "counter", "Tokens of prompts, computed or spared.");
  text.Sample({}, s.prompt_tokens + s.cached_tokens);
  for (const Counter& c : kCounters) {
    text.Family(c.name, "counter", c.help);
    text.Sample({}, s.*c.value);
  }
}

void WriteSteps(PrometheusText& text, const EngineStats& s) {
  text.Family("perigee_steps_total", "counter", "Steps of the engine by how they ran over the ranks.");
  const engine::ModeSteps& modes = s.steps_by_mode;
  text.Sample({{"mode", "decode"}}, modes.decode);
  text.Sample({{"mode", "tp"}}, modes.tp);
  text.Sample({{"mode", "head"}}, modes.head);
  text.Sample({{"mode", "state"}}, modes.state);
  text.Sample({{"mode", "replicated"}}, modes.replicated);
  text.Family("perigee_planner_choices_total", "counter",
              "Prefill steps for which the planner chose the mode, being the cheapest by its estimate.");
  text.Sample({{"mode", "head"}}, s.planner.head.chosen);
  text.Sample({{"mode", "tp"}}, s.planner.tp.chosen);
  text.Sample({{"mode", "state"}}, s.planner.state.chosen);
  text.Family(
      "perigee_planner_estimated_seconds_total", "counter",
      "Estimates of all steps that the planner weighed, had each run in this mode (differences only).");
  text.Sample({{"mode", "head"}}, s.planner.head.estimated_seconds);
  text.Sample({{"mode", "tp"}}, s.planner.tp.estimated_seconds);
  text.Sample({{"mode", "state"}}, s.planner.state.estimated_seconds);
  text.Family("perigee_collective_elements_total", "counter",
              "Elements that a rank has sent to other ranks.");
  const engine::CollectiveElements& sent = s.collectives;
  text.Sample({{"collective", "all_gather"}, {"rank", "0"}}, sent.all_gather);
  text.Sample({{"collective", "reduce_scatter"}, {"rank", "0"}}, sent.reduce_scatter);
  text.Sample({{"collective", "all_reduce"}, {"rank", "0"}}, sent.all_reduce);
  text.Sample({{"collective", "all_to_all"}, {"rank", "0"}}, sent.all_to_all);
  text.Sample({{"collective", "broadcast"}, {"rank", "0"}}, sent.broadcast);
}

void WriteRequests(PrometheusText& text, const Metrics& metrics) {
  text.Family("perigee_requests_total", "counter", "Requests of the generating endpoints by how they ended.");
  const auto ends = metrics.ends();
  for (size_t e = 0; e < kNumRequestEnds; ++e) text.Sample({{"outcome", kEndNames[e]}}, ends[e]);
  text.Family("perigee_time_to_first_token_seconds", "histogram",
              "From the arrival of a request to the first token of an answer.");
  metrics.time_to_first_token.Write(text);
  text.Family("perigee_inter_token_latency_seconds", "histogram", "Between two tokens of an answer.");
  metrics.inter_token.Write(text);
  text.Family("perigee_e2e_request_latency_seconds", "histogram",
              "From the arrival of a request to the end of its last answer, of those that finished.");
  metrics.end_to_end.Write(text);
}

}  // namespace

void LatencyHistogram::Observe(std::chrono::duration<double> value, uint64_t count) {
  const double seconds = std::max(value.count(), 0.0);
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  const std::lock_guard lock(mutex_);
  buckets_[static_cast<size_t>(bucket)] += count;
  sum_ += seconds * static_cast<double>(count);
}

void LatencyHistogram::Write(PrometheusText& text) const {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    count += buckets_[i];
    text.Sample({{"le", StrCat(kBounds[i])}}, count, "_bucket");
  }
  count += buckets_.back();
  text.Sample({{"le", "+Inf"}}, count, "_bucket");
  text.Sample({}, sum_, "_sum");
  text.Sample({}, count, "_count");
}

void Metrics::CountEnd(RequestEnd end) {
  const std::lock_guard lock(mutex_);
  ++ends_[static_cast<size_t>(end)];
}

std::array<uint64_t, kNumRequestEnds> Metrics::ends() const {
  const std::lock_guard lock(mutex_);
  return ends_;
}

std::string MetricsText(const Metrics& metrics, const EngineStats& stats) {
  PrometheusText text;
  WriteBuild(text);
  WriteGauges(text, stats);
  WriteCounters(text, stats);
  WriteSteps(text, stats);
  WriteRequests(text, metrics);
  return text.Take();
}

}  // namespace perigee::server
