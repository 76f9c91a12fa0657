#include "cli/serve.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "cli/launch.h"
#include "cli/signals.h"
#include "server/server.h"

namespace perigee::cli {
namespace {

// How long clients may take to read why their requests failed.
constexpr std::chrono::seconds kFailureLimit{2};

// Something that happens once, for whatever reason first.
class Stop {
 public:
  void Set() {
    if (!set_.exchange(true)) promise_.set_value();
  }
  void Wait() { promise_.get_future().wait(); }

 private:
  std::atomic<bool> set_{false};
  std::promise<void> promise_;
};

std::string Url(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return StrCat("http://", ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
}

// Serves until a signal comes or the ranks are lost.
Status Serve(ServeFlags flags, SignalWatcher& signals, comm::ProcessRanks* ranks) {
  PERIGEE_RETURN_IF_ERROR(PrepareModel(&flags.model));
  PERIGEE_RETURN_IF_ERROR(CheckTemplate(flags.model));
  if (flags.served_model_name.empty()) flags.served_model_name = flags.model.engine.shape;
  LoadedModel model;  // outlives the server
  PERIGEE_ASSIGN_OR_RETURN(
      const std::unique_ptr<server::Server> server,
      server::Server::Start({.host = flags.host,
                             .port = flags.port,
                             .served_model_name = flags.served_model_name,
                             .stall_limit = std::chrono::seconds(flags.model.watchdog_seconds)}));
  PERIGEE_ASSIGN_OR_RETURN(model, LoadModel(flags.model, ranks));
  PERIGEE_RETURN_IF_ERROR(server->SetReady(model.engine.get(), model.tokenizer.get()));

  // The watcher stays free for the second signal, so the waiting is done here.
  const auto stop = std::make_shared<Stop>();
  signals.Arm([stop] { stop->Set(); });
  if (ranks != nullptr) ranks->OnFailure([stop](const Status&) { stop->Set(); });
  std::printf("perigee is listening on %s\n", Url(flags.host, server->port()).c_str());
  std::fflush(stdout);
  stop->Wait();
  signals.Arm(nullptr);
  if (ranks != nullptr && !ranks->status().ok()) {
    LogError(StrCat("stopping: ", ranks->status().message()));
    server->Stop(kFailureLimit);
    return ConcludeRanks(ranks, Status::Ok());
  }
  LogInfo(StrCat("stopping: running answers may finish, for ", flags.drain_seconds, " s at most"));
  const size_t cut = server->Stop(std::chrono::seconds(flags.drain_seconds));
  if (cut == 0) return ConcludeRanks(ranks, Status::Ok());
  return ConcludeRanks(ranks,
                       Unavailable(StrCat(cut, " running requests were cut off after ", flags.drain_seconds,
                                          " s of shutting down (--drain-timeout)")));
}

}  // namespace

Status RunServe(ServeFlags flags) {
  SignalWatcher signals;
  PERIGEE_ASSIGN_OR_RETURN(std::unique_ptr<comm::ProcessRanks> ranks, JoinRanks(flags.model));
  if (ranks != nullptr && ranks->rank() > 0) {
    signals.Arm([] {});  // mpirun signals everybody; rank 0 says when it is over
    return FollowRankZero(std::move(flags.model), std::move(ranks));
  }
  return ConcludeRanks(ranks.get(), Serve(std::move(flags), signals, ranks.get()));
}

}  // namespace perigee::cli
