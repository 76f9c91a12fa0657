#include "server/server.h"

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>

#include "server/health.h"
#include "server/routes.h"
#include "server/serving_context.h"
#include "server/task_pool.h"

namespace perigee::server {
namespace {

constexpr std::chrono::seconds kHealthSampling{1};

std::string LastPart(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        health_(options_.stall_limit),
        deliveries_(std::make_unique<TaskPool>(1)),
        intake_(std::make_unique<TaskPool>(options_.intake_threads)),
        router_(intake_->queue(), &health_) {}

  ~Impl() { Stop(std::chrono::milliseconds(0)); }

  Status Listen() {
    HttpServerOptions http = options_.http;
    http.host = options_.host;
    http.port = options_.port;
    PERIGEE_ASSIGN_OR_RETURN(http_, HttpServer::Start(http, &router_));
    return Status::Ok();
  }

  Status SetReady(engine::Engine* engine, const text::Tokenizer* tokenizer) {
    PERIGEE_ASSIGN_OR_RETURN(auto chat_template, text::ChatTemplate::Create(*tokenizer));
    std::string name = options_.served_model_name;
    if (name.empty()) name = LastPart(engine->model_info().model_path);
    auto context =
        std::make_shared<ServingContext>(ServingContext{.engine = engine,
                                                        .tokenizer = tokenizer,
                                                        .chat_template = std::move(chat_template),
                                                        .tool_markers = ToolMarkers::Find(*tokenizer),
                                                        .served_model_name = std::move(name),
                                                        .created = std::time(nullptr),
                                                        .deliveries = deliveries_->queue()});
    router_.SetContext(std::move(context));
    health_sampler_ = std::thread([this, engine] { SampleHealth(engine); });
    return Status::Ok();
  }

  int port() const { return http_->port(); }

  void Wait() {
    std::unique_lock lock(mutex_);
    stop_called_.wait(lock, [&] { return stopping_; });
  }

  void Stop(std::chrono::milliseconds grace) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(stopping_, true)) return;
    }
    stop_called_.notify_all();
    // In this order: no new requests; those taken in get to the engine or are dropped; then what was
    // cancelled is told to the engine.
    if (http_) http_->Stop(grace);
    intake_.reset();
    deliveries_.reset();
    if (health_sampler_.joinable()) health_sampler_.join();
  }

 private:
  void SampleHealth(engine::Engine* engine) {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      health_.Observe(engine->stats(), HealthMonitor::Clock::now());
      lock.lock();
      stop_called_.wait_for(lock, kHealthSampling, [&] { return stopping_; });
    }
  }

  ServerOptions options_;
  HealthMonitor health_;
  std::unique_ptr<TaskPool> deliveries_;
  std::unique_ptr<TaskPool> intake_;
  Router router_;
  std::unique_ptr<HttpServer> http_;

  std::mutex mutex_;
  std::condition_variable stop_called_;
  bool stopping_ = false;
  std::thread health_sampler_;
};

StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  PERIGEE_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Status Server::SetReady(engine::Engine* engine, const text::Tokenizer* tokenizer) {
  return impl_->SetReady(engine, tokenizer);
}

int Server::port() const {
  return impl_->port();
}

void Server::Wait() {
  impl_->Wait();
}

void Server::Stop(std::chrono::milliseconds grace) {
  impl_->Stop(grace);
}

}  // namespace perigee::server
