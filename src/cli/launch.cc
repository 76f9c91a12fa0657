#include "cli/launch.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "cli/template_file.h"
#include "text/chat_template.h"

namespace perigee::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kBundledModel[] = "tiny-kimi-linear";

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

}  // namespace

std::string FolderName(const std::string& model_path) {
  std::error_code error;
  const fs::path path = fs::canonical(model_path, error);
  return (error ? fs::path(model_path) : path).filename().string();
}

Status PrepareModel(ModelFlags* flags) {
  SetLogLevel(flags->log_level);
  if (flags->trust_remote_code) {
    LogWarning("--trust-remote-code has no effect: code of a model folder never runs");
  }
  std::string& path = flags->engine.model_path;
  if (path.empty()) {
    PERIGEE_ASSIGN_OR_RETURN(path, FindBundledModel());
    std::fprintf(stderr, "no --model-path given: using the bundled model %s (%s)\n", kBundledModel,
                 path.c_str());
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return NotFound(StrCat("--model-path ", Quoted(path, 300), " is not a folder"));
  }
  return Status::Ok();
}

StatusOr<LoadedModel> LoadModel(const ModelFlags& flags) {
  LoadedModel model;
  PERIGEE_ASSIGN_OR_RETURN(model.tokenizer, text::Tokenizer::Load(flags.engine.model_path));
  engine::EngineConfig config = flags.engine;
  for (const char* name : {"[EOS]", "[EOT]"}) {
    if (const auto id = model.tokenizer->SpecialId(name)) config.extra_stop_ids.push_back(*id);
  }
  if (isatty(STDERR_FILENO)) config.load_progress = ShowProgress;
  PERIGEE_ASSIGN_OR_RETURN(model.engine, engine::StartEngine(std::move(config)));
  return model;
}

Status CheckTemplate(const ModelFlags& flags) {
  PERIGEE_ASSIGN_OR_RETURN(const std::string jinja, ReadChatTemplate(flags.engine.model_path));
  const std::vector<std::string> findings = text::UnrenderedTemplateFeatures(jinja);
  if (findings.empty()) return Status::Ok();
  const std::string message = StrCat("the chat template of ", flags.engine.model_path,
                                     " differs from what is rendered here: ", StrJoin(findings, "; "));
  if (flags.strict_template) return InvalidArgument(StrCat(message, " (--strict-template)"));
  LogWarning(message);
  return Status::Ok();
}

}  // namespace perigee::cli
