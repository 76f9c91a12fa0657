#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "server/health.h"
#include "server/http.h"
#include "server/serving_context.h"
#include "server/task_pool.h"

namespace perigee::server {

// Finds a request's endpoint in the table of routes.cc and runs it: the cheap ones on the network thread,
// those that parse and tokenise on the intake threads. What is refused is logged.
class Router : public HttpHandler {
 public:
  // `health` must outlive the router; `intake` is where the generating endpoints run.
  Router(std::shared_ptr<TaskQueue> intake, std::shared_ptr<Metrics> metrics, HealthMonitor* health)
      : intake_(std::move(intake)), metrics_(std::move(metrics)), health_(health) {}

  // From now on there is a model.
  void SetContext(std::shared_ptr<const ServingContext> context);

  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;
  HttpResponse ProtocolError(int status, const std::string& message) override;

 private:
  std::shared_ptr<const ServingContext> context() const;
  HttpResponse Health(const ServingContext* context);

  std::shared_ptr<TaskQueue> intake_;
  std::shared_ptr<Metrics> metrics_;
  HealthMonitor* health_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ServingContext> context_;
};

}  // namespace perigee::server
