#pragma once

#include "engine/memory_plan.h"
#include "server/http.h"
#include "server/json_writer.h"
#include "server/serving_context.h"

namespace perigee::server {

// GET /server_info: what the server was started with and what it takes, the memory plan included.
HttpResponse ServerInfo(const ServingContext& context, const HttpRequest& request);

// One object; the form that `perigee plan --json` has too.
void WriteMemoryPlan(JsonWriter& w, const engine::MemoryPlan& plan);

}  // namespace perigee::server
