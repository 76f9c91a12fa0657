#include "cli/launch.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "cli/template_file.h"
#include "text/chat_template.h"

namespace perigee::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kBundledModel[] = "tiny-kimi-linear";
constexpr char kTokenizerFile[] = "tiktoken.model";

// How long rank 0 may take to answer its clients after a rank was lost.
constexpr std::chrono::seconds kAnswerTime{4};

// Beside the program: in the source tree of a build, or where an installation puts it.
StatusOr<std::string> FindBundledModel() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const char* models : {"../../../models", "../share/perigee/models"}) {
      const fs::path folder = fs::canonical(program.parent_path() / models / kBundledModel, error);
      if (!error && fs::is_directory(folder, error)) return folder.string();
    }
  }
  return NotFound(
      StrCat("the bundled model ", kBundledModel, " is not beside the program; give --model-path DIR"));
}

void ShowProgress(uint64_t done, uint64_t total) {
  const double percent = total == 0 ? 100 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
  std::fprintf(stderr, "\r\033[Kloading %s of %s (%.0f %%)", HumanBytes(done).c_str(),
               HumanBytes(total).c_str(), percent);
  if (done >= total) std::fprintf(stderr, "\r\033[K");
}

[[noreturn]] void EndLostRanks(const comm::ProcessRanks& ranks) {
  const Status reason = ranks.status();
  std::fprintf(stderr, "perigee: rank %d: %s\n", ranks.rank(), reason.message().c_str());
  std::fflush(stdout);
  _exit(reason.code() == StatusCode::kUsage ? 2 : 1);
}

}  // namespace

std::string FolderName(const std::string& model_path) {
  std::error_code error;
  const fs::path path = fs::canonical(model_path, error);
  return (error ? fs::path(model_path) : path).filename().string();
}

Status PrepareModel(ModelFlags* flags, bool quiet) {
  SetLogLevel(flags->log_level);
  if (!quiet && flags->trust_remote_code) {
    LogWarning("--trust-remote-code has no effect: code of a model folder never runs");
  }
  std::string& path = flags->engine.model_path;
  if (path.empty()) {
    PERIGEE_ASSIGN_OR_RETURN(path, FindBundledModel());
    if (!quiet) {
      std::fprintf(stderr, "no --model-path given: using the %sbundled model %s (%s)\n",
                   flags->engine.shape.empty() ? "" : "tokenizer of the ", kBundledModel, path.c_str());
    }
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return NotFound(StrCat("--model-path ", Quoted(path, 300), " is not a folder"));
  }
  flags->tokenizer_path = path;
  // A configuration without a tokenizer has no text of its own: any ids will do for random weights.
  if (flags->engine.dummy_weights && !fs::exists(fs::path(path) / kTokenizerFile, error)) {
    PERIGEE_ASSIGN_OR_RETURN(flags->tokenizer_path, FindBundledModel());
  }
  return Status::Ok();
}

StatusOr<std::unique_ptr<comm::ProcessRanks>> JoinRanks(const ModelFlags& flags) {
  const char* count = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (count == nullptr) return std::unique_ptr<comm::ProcessRanks>();
  const int32_t tp = flags.engine.parallel.tp;
  if (std::atoi(count) != tp) {
    return UsageError(StrCat("--tp ", tp, ": mpirun started ", count, " processes; accepted: --tp ", count));
  }
  return comm::ProcessRanks::Start(std::chrono::seconds(flags.watchdog_seconds));
}

Status FollowRankZero(ModelFlags flags, std::unique_ptr<comm::ProcessRanks> ranks) {
  std::promise<Status> end;
  std::atomic<bool> ended{false};
  const auto finish = [&](const Status& status) {
    if (!ended.exchange(true)) end.set_value(status);
  };
  ranks->OnFailure(finish);
  // Apart from this thread, which must not wait for a long kernel once the ranks are lost.
  std::thread follower([&] {
    Status status = PrepareModel(&flags, /*quiet=*/true);
    if (status.ok()) status = engine::FollowEngine(flags.engine, ranks.get());
    if (!status.ok()) ranks->Fail(status);
    finish(status);
  });
  const Status status = end.get_future().get();
  if (status.ok()) {
    follower.join();
    return status;
  }
  // Rank 0 has clients to answer: mpirun ends everybody as soon as one process ends badly.
  ranks->AwaitEndOfRankZero(kAnswerTime);
  EndLostRanks(*ranks);
}

Status ConcludeRanks(comm::ProcessRanks* ranks, Status result) {
  if (ranks == nullptr) return result;
  if (!result.ok()) ranks->Fail(result);
  if (ranks->status().ok()) return result;
  EndLostRanks(*ranks);
}

StatusOr<LoadedModel> LoadModel(const ModelFlags& flags, comm::ProcessRanks* ranks) {
  LoadedModel model;
  PERIGEE_ASSIGN_OR_RETURN(model.tokenizer, text::Tokenizer::Load(flags.tokenizer_path));
  engine::EngineConfig config = flags.engine;
  config.tokenizer_ids = model.tokenizer->vocab_size();
  for (const char* name : {"[EOS]", "[EOT]"}) {
    if (const auto id = model.tokenizer->SpecialId(name)) config.extra_stop_ids.push_back(*id);
  }
  if (isatty(STDERR_FILENO)) config.load_progress = ShowProgress;
  PERIGEE_ASSIGN_OR_RETURN(model.engine, engine::StartEngine(std::move(config), ranks));
  return model;
}

Status CheckTemplate(const ModelFlags& flags) {
  PERIGEE_ASSIGN_OR_RETURN(const std::string jinja, ReadChatTemplate(flags.tokenizer_path));
  const std::vector<std::string> findings = text::UnrenderedTemplateFeatures(jinja);
  if (findings.empty()) return Status::Ok();
  const std::string message = StrCat("the chat template of ", flags.engine.model_path,
                                     " differs from what is rendered here: ", StrJoin(findings, "; "));
  if (flags.strict_template) return InvalidArgument(StrCat(message, " (--strict-template)"));
  LogWarning(message);
  return Status::Ok();
}

}  // namespace perigee::cli
