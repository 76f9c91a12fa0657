#pragma once

#include <memory>

#include "server/http.h"
#include "server/response_channel.h"
#include "server/serving_context.h"

namespace perigee::server {

// POST /generate. Tokenises, so not for a network thread.
void HandleGenerate(const std::shared_ptr<const ServingContext>& context, const HttpRequest& request,
                    ResponseChannel channel);

}  // namespace perigee::server
