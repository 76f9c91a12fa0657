#pragma once

#include <memory>

#include "server/http.h"
#include "server/serving_context.h"

namespace perigee::server {

// POST /flush_cache: forgets the prefixes that no running request holds. Answers when it is done; the body is
// not read.
void HandleFlushCache(const std::shared_ptr<const ServingContext>& context, const HttpRequest& request,
                      std::shared_ptr<ResponseWriter> writer);

}  // namespace perigee::server
