#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "cli/flags.h"
#include "comm/process_ranks.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

// From flags to a loaded model: what serve, generate and score have in common.
namespace perigee::cli {

// Applies the log level, fills an empty model path with the bundled model (and says so on standard error
// unless `quiet`), checks that the folder is there and says whose tokenizer is used.
Status PrepareModel(ModelFlags* flags, bool quiet = false);

// Joins the ranks when mpirun has started this process, else gives null. First of all, since mpirun waits for
// it; a usage error when --tp is not mpirun's count.
StatusOr<std::unique_ptr<comm::ProcessRanks>> JoinRanks(const ModelFlags& flags);

// What a process that is not rank 0 does in place of its command, to the end. Signals are rank 0's business.
Status FollowRankZero(ModelFlags flags, std::unique_ptr<comm::ProcessRanks> ranks);

// The result of a command on rank 0 (or without ranks: null), to be called while its model lives. A failure
// is the failure of all ranks. When they are lost it does not return: it prints why and ends the process at
// once, which makes mpirun end the others, since a thread may be in a long kernel that nobody waits for.
Status ConcludeRanks(comm::ProcessRanks* ranks, Status result);

struct LoadedModel {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
};

// Loads tokenizer and weights and starts the engine, with progress when standard error is a terminal. `ranks`
// (rank 0 of them, or null) outlives the model.
StatusOr<LoadedModel> LoadModel(const ModelFlags& flags, comm::ProcessRanks* ranks);

// One warning for what the folder's chat template says that we do not render; an error with
// --strict-template.
Status CheckTemplate(const ModelFlags& flags);

// The folder's name without its path: "/models/tiny-kimi-linear/" gives "tiny-kimi-linear".
std::string FolderName(const std::string& model_path);

}  // namespace perigee::cli
