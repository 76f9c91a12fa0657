#include "server/native/flush_cache.h"

#include <utility>

namespace perigee::server {

void HandleFlushCache(const std::shared_ptr<const ServingContext>& context, const HttpRequest&,
                      std::shared_ptr<ResponseWriter> writer) {
  context->engine->FlushCache(
      [writer = std::move(writer)] { writer->Send({.status = 200, .body = R"({"status":"ok"})"}); });
}

}  // namespace perigee::server
