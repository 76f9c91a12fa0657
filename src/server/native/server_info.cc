#include "server/native/server_info.h"

#include <vector>

namespace perigee::server {
namespace {

void WriteRank(JsonWriter& w, const engine::RankMemory& m) {
  w.Field("weights", m.weights).Field("latents", m.latents).Field("states", m.states);
  w.Field("snapshots", m.snapshots).Field("workspace", m.workspace).Field("total", m.Total());
}

}  // namespace

void WriteMemoryPlan(JsonWriter& w, const engine::MemoryPlan& plan) {
  w.BeginObject().Key("per_rank").BeginArray();
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    w.BeginObject();
    WriteRank(w, plan.ranks[r]);
    w.Field("latents_per_token", plan.bytes_per_token[r]);
    w.Field("states_per_request", plan.bytes_per_sequence[r]).EndObject();
  }
  w.EndArray().Field("device", DeviceName(plan.device)).Field("processes", plan.processes);
  w.Field("embedding_per_process", plan.embedding_bytes).Field("total", plan.Total());
  w.Field("budget", plan.budget_bytes).Field("mem_fraction_static", plan.fraction);
  w.Field("memory", plan.memory_bytes).Field("available", plan.available_bytes).Field("fits", plan.Fits());
  w.Field("tokens", plan.tokens).Field("requests", plan.sequences).Field("snapshots", plan.snapshots);
  w.Field("context_length", plan.context_length).Field("longest_request", plan.LongestRequest());
  w.EndObject();
}

HttpResponse ServerInfo(const ServingContext& context, const HttpRequest&) {
  const engine::ModelInfo& info = context.engine->model_info();
  JsonWriter w;
  w.BeginObject().Field("model_path", info.model_path);
  w.Field("served_model_name", context.served_model_name).Field("started", context.created);
  w.Field("context_length", info.context_length).Field("max_total_tokens", info.max_total_tokens);
  w.Field("max_running_requests", info.memory.sequences).Key("memory_plan");
  WriteMemoryPlan(w, info.memory);
  w.Key("memory_peak").BeginArray();
  for (const engine::RankMemory& m : context.engine->memory_peak()) {
    w.BeginObject();
    WriteRank(w, m);
    w.EndObject();
  }
  w.EndArray().EndObject();
  return {.status = 200, .body = w.Take()};
}

}  // namespace perigee::server
