#include "server/routes.h"

#include <string_view>
#include <utility>

#include "base/strings.h"
#include "server/api_error.h"
#include "server/native/flush_cache.h"
#include "server/native/generate.h"
#include "server/native/model_info.h"
#include "server/native/server_info.h"
#include "server/openai/chat.h"
#include "server/openai/completions.h"
#include "server/openai/models.h"

namespace perigee::server {
namespace {

using ContextPtr = std::shared_ptr<const ServingContext>;
using GetHandler = HttpResponse (*)(const ServingContext&, const HttpRequest&);
using PostHandler = void (*)(const ContextPtr&, const HttpRequest&, std::shared_ptr<ResponseWriter>);

// One row an endpoint. A path that ends in "/" stands for everything below it.
struct Route {
  std::string_view path;
  GetHandler get = nullptr;
  PostHandler post = nullptr;
};

constexpr Route kRoutes[] = {
    {.path = "/v1/chat/completions", .post = HandleChat},
    {.path = "/v1/completions", .post = HandleCompletions},
    {.path = "/v1/models", .get = ListModels},
    {.path = "/v1/models/", .get = GetModel},
    {.path = "/generate", .post = HandleGenerate},
    {.path = "/get_model_info", .get = ModelInfo},
    {.path = "/flush_cache", .post = HandleFlushCache},
    {.path = "/server_info", .get = ServerInfo},
    {.path = "/get_server_info", .get = ServerInfo},
};
constexpr std::string_view kHealthPath = "/health";

const Route* FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    bool below = route.path.back() == '/' && path.substr(0, route.path.size()) == route.path &&
                 path.size() > route.path.size();
    if (route.path == path || below) return &route;
  }
  return nullptr;
}

HttpResponse MethodNotAllowed(const HttpRequest& request, std::string_view allow) {
  HttpResponse response = ErrorResponse(
      {.status = 405, .message = StrCat(request.path, " takes ", allow, ", not ", Quoted(request.method))});
  response.allow = std::string(allow);
  return response;
}

bool IsJson(std::string_view content_type) {
  std::string type;
  for (char c : content_type.substr(0, content_type.find(';'))) {
    if (c != ' ' && c != '\t') type += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  }
  return type.empty() || type == "application/json";
}

HttpResponse Loading() {
  return ErrorResponse({.status = 503, .message = "the model is still loading"});
}

}  // namespace

void Router::SetContext(std::shared_ptr<const ServingContext> context) {
  std::lock_guard lock(mutex_);
  context_ = std::move(context);
}

std::shared_ptr<const ServingContext> Router::context() const {
  std::lock_guard lock(mutex_);
  return context_;
}

void Router::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  ContextPtr context = this->context();
  if (request.path == kHealthPath) {
    if (!reads) return writer->Send(MethodNotAllowed(request, "GET"));
    if (!context) return writer->Send(Loading());
    if (!health_->Healthy(HealthMonitor::Clock::now()))
      return writer->Send(ErrorResponse({.status = 503, .message = "the engine is stuck in a step"}));
    return writer->Send({.status = 200, .body = R"({"status":"ok"})"});
  }

  const Route* route = FindRoute(request.path);
  if (!route)
    return writer->Send(
        ErrorResponse({.status = 404, .message = StrCat("no such path: ", Quoted(request.path))}));
  if (route->get ? !reads : request.method != "POST")
    return writer->Send(MethodNotAllowed(request, route->get ? "GET" : "POST"));
  if (!context) return writer->Send(Loading());
  if (route->get) return writer->Send(route->get(*context, request));

  // Also keeps other sites' pages from posting here: a browser sends only this type after asking.
  if (!IsJson(request.Header("Content-Type")))
    return writer->Send(ErrorResponse({.message = StrCat("Content-Type must be application/json, not ",
                                                         Quoted(request.Header("Content-Type"))),
                                       .param = "Content-Type"}));
  intake_->Push([route, context, request = std::move(request), writer = std::move(writer)]() mutable {
    // A client that left while its request waited costs nothing.
    if (!writer->disconnected()) route->post(context, request, std::move(writer));
  });
}

HttpResponse Router::ProtocolError(int status, const std::string& message) {
  return ErrorResponse({.status = status, .message = message});
}

}  // namespace perigee::server
