#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "server/health.h"
#include "server/health_probes.h"
#include "server/routes.h"
#include "server/serving_context.h"
#include "server/task_pool.h"

namespace perigee::server {
namespace {

// How often the engine is looked at: a stall is noticed that much later than its limit.
std::chrono::milliseconds SamplingInterval(std::chrono::milliseconds stall_limit) {
  constexpr std::chrono::milliseconds kShortest{1}, kLongest{1000};
  return std::clamp(stall_limit / 8, kShortest, kLongest);
}

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
        probes_(std::make_shared<HealthProbes>(options_.stall_limit)),
        deliveries_(std::make_unique<TaskPool>(1)),
        intake_(std::make_unique<TaskPool>(options_.intake_threads)),
        router_(intake_->queue(), metrics_, &health_) {}

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
                                                        .deliveries = deliveries_->queue(),
                                                        .generations = generations_,
                                                        .metrics = metrics_,
                                                        .probes = probes_});
    router_.SetContext(std::move(context));
    health_sampler_ = std::thread([this, engine] { SampleHealth(engine); });
    return Status::Ok();
  }

  int port() const { return http_->port(); }

  void Wait() {
    std::unique_lock lock(mutex_);
    stop_called_.wait(lock, [&] { return stopping_; });
  }

  size_t Stop(std::chrono::milliseconds grace) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(stopping_, true)) return 0;
    }
    stop_called_.notify_all();
    size_t cut = 0;
    if (http_ && !http_->Drain(grace)) {
      cut = CutOff(grace);
      http_->Drain(options_.farewell);
    }
    // In this order: no connections; those taken in get to the engine or are dropped; then what was cancelled
    // is told to the engine.
    if (http_) http_->Stop();
    intake_.reset();
    deliveries_.reset();
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    stop_called_.notify_all();
    if (health_sampler_.joinable()) health_sampler_.join();
    return cut;
  }

 private:
  // Ends all that is under way, and what still waits to begin, with an error.
  size_t CutOff(std::chrono::milliseconds grace) {
    const double seconds = std::chrono::duration<double>(grace).count();
    const ApiError error{
        .status = 503,
        .message =
            StrCat("the server is shutting down and the answer was not finished within ", seconds, " s")};
    std::promise<size_t> count;
    deliveries_->Post([&] { count.set_value(generations_->Close(error)); });
    return count.get_future().get();
  }

  // The sampler's thread.
  void LogChange(const Status& health) {
    if (health.ok() == healthy_) return;
    healthy_ = health.ok();
    if (healthy_) {
      LogInfo("the engine gets on again: /health is 200");
    } else {
      LogError(StrCat("/health is 503: ", health.message()));
    }
  }

  void SampleHealth(engine::Engine* engine) {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      lock.unlock();
      const HealthMonitor::Clock::time_point now = HealthMonitor::Clock::now();
      health_.Observe(engine->stats(), now);
      probes_->Expire(*engine, now);
      LogChange(health_.Check(now));
      lock.lock();
      stop_called_.wait_for(lock, SamplingInterval(options_.stall_limit), [&] { return stopped_; });
    }
  }

  ServerOptions options_;
  HealthMonitor health_;
  const std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();
  const std::shared_ptr<GenerationSet> generations_ = std::make_shared<GenerationSet>();
  const std::shared_ptr<HealthProbes> probes_;
  std::unique_ptr<TaskPool> deliveries_;
  std::unique_ptr<TaskPool> intake_;
  Router router_;
  std::unique_ptr<HttpServer> http_;

  std::mutex mutex_;
  std::condition_variable stop_called_;
  bool stopping_ = false;  // Stop was called
  bool stopped_ = false;   // and nothing is served any more
  std::thread health_sampler_;
  bool healthy_ = true;  // as the sampler last saw it
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

size_t Server::Stop(std::chrono::milliseconds grace) {
  return impl_->Stop(grace);
}

}  // namespace perigee::server
