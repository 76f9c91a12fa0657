#include "server/routes.h"

#include <string_view>
#include <utility>

#include "base/strings.h"
#include "server/api_error.h"
#include "server/health_probes.h"
#include "server/metrics.h"
#include "server/native/flush_cache.h"
#include "server/native/generate.h"
#include "server/native/model_info.h"
#include "server/native/server_info.h"
#include "server/openai/chat.h"
#include "server/openai/completions.h"
#include "server/openai/models.h"
#include "server/response_channel.h"

namespace perigee::server {

using ContextPtr = std::shared_ptr<const ServingContext>;

namespace {

using PageHandler = HttpResponse (*)(const ServingContext&, const HttpRequest&);
using CallHandler = void (*)(const ContextPtr&, const HttpRequest&, std::shared_ptr<ResponseWriter>);
using GenerateHandler = void (*)(const ContextPtr&, const HttpRequest&, ResponseChannel);

HttpResponse GetMetrics(const ServingContext& context, const HttpRequest&) {
  return {.status = 200,
          .body = MetricsText(*context.metrics, context.engine->stats()),
          .content_type = std::string(kPrometheusContentType)};
}

void HealthGenerate(const ContextPtr& context, const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  context->probes->Start(*context, std::move(writer), HealthProbes::Clock::now());
}

// One row an endpoint, with exactly one handler. A path that ends in "/" stands for everything below it.
struct Route {
  std::string_view path;
  PageHandler get = nullptr;           // GET, answered at once
  CallHandler get_later = nullptr;     // GET, answered by the engine
  CallHandler post = nullptr;          // POST, the same
  GenerateHandler generate = nullptr;  // POST with JSON, on an intake thread

  bool reads() const { return get != nullptr || get_later != nullptr; }
};

constexpr Route kRoutes[] = {
    {.path = "/v1/chat/completions", .generate = HandleChat},
    {.path = "/v1/completions", .generate = HandleCompletions},
    {.path = "/v1/models", .get = ListModels},
    {.path = "/v1/models/", .get = GetModel},
    {.path = "/generate", .generate = HandleGenerate},
    {.path = "/get_model_info", .get = ModelInfo},
    {.path = "/metrics", .get = GetMetrics},
    {.path = "/health_generate", .get_later = HealthGenerate},
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

// For the log: a path may be anything.
std::string NameOf(const HttpRequest& request) {
  return StrCat(Quoted(request.method, 20), " ", Quoted(request.path, 100));
}

HttpResponse Refuse(const HttpRequest& request, const ApiError& error) {
  LogApiError(NameOf(request), error);
  return ErrorResponse(error);
}

HttpResponse MethodNotAllowed(const HttpRequest& request, std::string_view allow) {
  HttpResponse response = Refuse(
      request,
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

ApiError Loading() {
  return {.status = 503, .message = "the model is still loading"};
}

// Hands a request that generates to the intake threads.
void Generate(const Route& route, const ContextPtr& context, HttpRequest request, ResponseChannel channel,
              TaskQueue& intake) {
  if (!context) return channel.Fail(Loading());
  // Also keeps other sites' pages from posting here: a browser sends only this type after asking.
  if (!IsJson(request.Header("Content-Type")))
    return channel.Fail({.message = StrCat("Content-Type must be application/json, not ",
                                           Quoted(request.Header("Content-Type"))),
                         .param = "Content-Type"});
  intake.Push([&route, context, request = std::move(request), channel = std::move(channel)]() mutable {
    // A client that left while its request waited costs nothing.
    if (!channel.writer().disconnected()) route.generate(context, request, std::move(channel));
  });
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

HttpResponse Router::Health(const ServingContext* context) {
  if (context == nullptr) return ErrorResponse(Loading());
  const HealthMonitor::Clock::time_point now = HealthMonitor::Clock::now();
  health_->Observe(context->engine->stats(), now);
  if (const Status status = health_->Check(now); !status.ok()) return ErrorResponse(FromStatus(status));
  return {.status = 200, .body = R"({"status":"ok"})"};
}

void Router::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const ContextPtr context = this->context();
  if (request.path == kHealthPath)
    return writer->Send(reads ? Health(context.get()) : MethodNotAllowed(request, "GET"));

  const Route* route = FindRoute(request.path);
  if (!route)
    return writer->Send(
        Refuse(request, {.status = 404, .message = StrCat("no such path: ", Quoted(request.path))}));
  if (route->reads() ? !reads : request.method != "POST")
    return writer->Send(MethodNotAllowed(request, route->reads() ? "GET" : "POST"));
  if (route->generate != nullptr) {
    auto record = std::make_shared<RequestRecord>(metrics_, StrCat("POST ", route->path), request.arrived);
    ResponseChannel channel(std::move(writer), std::move(record));
    return Generate(*route, context, std::move(request), std::move(channel), *intake_);
  }
  if (!context) return writer->Send(Refuse(request, Loading()));
  if (route->get != nullptr) return writer->Send(route->get(*context, request));
  (route->get_later != nullptr ? route->get_later : route->post)(context, request, std::move(writer));
}

HttpResponse Router::ProtocolError(int status, const std::string& message) {
  const ApiError error{.status = status, .message = message};
  LogApiError("a connection", error);
  return ErrorResponse(error);
}

}  // namespace perigee::server
