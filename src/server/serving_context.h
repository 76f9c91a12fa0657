#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/generation_set.h"
#include "server/metrics.h"
#include "server/task_pool.h"
#include "server/tool_calls.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace perigee::server {

class HealthProbes;

// What the endpoints answer with once the model is there. Immutable; shared between threads.
struct ServingContext {
  engine::Engine* engine = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  text::ChatTemplate chat_template;
  ToolMarkers tool_markers;
  std::string served_model_name;
  int64_t created = 0;  // Unix time of start
  // One thread on which the answers of all requests are put together, in the order in which the engine
  // delivers.
  std::shared_ptr<TaskQueue> deliveries;
  std::shared_ptr<GenerationSet> generations;  // on that thread
  std::shared_ptr<Metrics> metrics;
  std::shared_ptr<HealthProbes> probes;
};

}  // namespace perigee::server
