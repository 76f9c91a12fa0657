#include "cli/serve.h"

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

// How long running answers may go on after the first signal.
constexpr std::chrono::seconds kDrainLimit{30};

std::string Url(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return StrCat("http://", ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
}

}  // namespace

Status RunServe(ServeFlags flags) {
  SignalWatcher signals;
  PERIGEE_RETURN_IF_ERROR(PrepareModel(&flags.model));
  PERIGEE_RETURN_IF_ERROR(CheckTemplate(flags.model));
  LoadedModel model;  // outlives the server
  PERIGEE_ASSIGN_OR_RETURN(
      const std::unique_ptr<server::Server> server,
      server::Server::Start(
          {.host = flags.host, .port = flags.port, .served_model_name = flags.served_model_name}));
  PERIGEE_ASSIGN_OR_RETURN(model, LoadModel(flags.model));
  PERIGEE_RETURN_IF_ERROR(server->SetReady(model.engine.get(), model.tokenizer.get()));

  // The watcher stays free for the second signal, so the waiting is done here.
  std::promise<void> stop;
  signals.Arm([&stop] { stop.set_value(); });
  std::printf("perigee is listening on %s\n", Url(flags.host, server->port()).c_str());
  std::fflush(stdout);
  stop.get_future().wait();
  signals.Arm(nullptr);
  LogInfo("stopping: running answers may finish");
  server->Stop(kDrainLimit);
  return Status::Ok();
}

}  // namespace perigee::cli
