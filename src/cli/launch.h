#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "cli/flags.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

// From flags to a loaded model: what serve, generate and score have in common.
namespace perigee::cli {

// Applies the log level, fills an empty model path with the bundled model (and says so on standard error) and
// checks that the folder is there.
Status PrepareModel(ModelFlags* flags);

struct LoadedModel {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
};

// Loads tokenizer and weights and starts the engine, with progress when standard error is a terminal.
StatusOr<LoadedModel> LoadModel(const ModelFlags& flags);

// One warning for what the folder's chat template says that we do not render; an error with
// --strict-template.
Status CheckTemplate(const ModelFlags& flags);

// The folder's name without its path: "/models/tiny-kimi-linear/" gives "tiny-kimi-linear".
std::string FolderName(const std::string& model_path);

}  // namespace perigee::cli
