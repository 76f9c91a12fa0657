#pragma once

#include "server/http.h"
#include "server/serving_context.h"

namespace perigee::server {

// GET /get_model_info
HttpResponse ModelInfo(const ServingContext& context, const HttpRequest& request);

}  // namespace perigee::server
