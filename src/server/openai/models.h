#pragma once

#include "server/http.h"
#include "server/serving_context.h"

namespace perigee::server {

// GET /v1/models
HttpResponse ListModels(const ServingContext& context, const HttpRequest& request);
// GET /v1/models/{id}
HttpResponse GetModel(const ServingContext& context, const HttpRequest& request);

}  // namespace perigee::server
