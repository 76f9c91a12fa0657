#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/plan_report.h"

// The command line as plain structs. Every value in them has been checked against what its flag accepts; no
// file has been opened yet.
namespace perigee::cli {

// Flags of every command that loads a model. An empty engine.model_path means the bundled model.
struct ModelFlags {
  engine::EngineConfig engine;
  // Folder of the tokenizer, known once the model is prepared.
  std::string tokenizer_path;
  LogLevel log_level = LogLevel::kWarning;
  // Longest time without progress: of the engine (serve), of a step and of a rank that is a process.
  int64_t watchdog_seconds = 300;
  bool strict_template = false;
  bool trust_remote_code = false;
};

struct ServeFlags {
  ModelFlags model;
  std::string host = "127.0.0.1";
  int port = 30000;               // 0: any free port
  std::string served_model_name;  // empty: the model folder's name
  int64_t drain_seconds = 30;     // how long running answers may go on after the first signal
};

struct GenerateFlags {
  ModelFlags model;
  std::optional<std::string> prompt;  // exactly one of these two is set; valid UTF-8
  std::optional<std::string> chat;
  std::optional<int64_t> max_tokens;  // default: 256, or what is left of the context
  double temperature = 0;
};

struct ScoreFlags {
  ModelFlags model;
  std::string input;
  std::string output;  // empty: standard output
};

enum class EvalKind { kGsm8k, kNeedle, kChat };

struct EvalFlags {
  EvalKind kind = EvalKind::kGsm8k;
  std::string base_url;
  std::string data;
  std::string output;  // JSON lines, one a question; empty: none
  int64_t num_shots = 5;
  int64_t num_questions = 0;  // 0: all
  int64_t parallel = 32;
  int64_t max_new_tokens = 512;
  int64_t timeout_seconds = 600;  // of one request
};

struct BenchOfflineFlags {
  ModelFlags model;
  std::string command;                 // as it was given, for the report
  std::vector<int64_t> prompts = {};   // lengths
  std::vector<int64_t> batches = {1};  // answers that are generated together ...
  std::vector<int64_t> depths = {};    // ... after prompts of these lengths
  int64_t repeats = 5;
  int64_t steps = 32;
  std::string output;  // JSON; empty: none
};

struct InspectFlags {
  std::string folder;  // exactly one of these two is set
  std::string shape;
};

struct PlanFlags {
  engine::PlanRequest request;
  bool json = false;
};

// --help or --version: text for standard output.
struct ShowText {
  std::string text;
};

using Command = std::variant<ShowText, ServeFlags, GenerateFlags, ScoreFlags, EvalFlags, InspectFlags,
                             PlanFlags, BenchOfflineFlags>;

// Parses the arguments after the program's name. kInvalidArgument is a usage error: one line naming flag,
// value and what is accepted.
StatusOr<Command> ParseCommandLine(std::span<const char* const> args);

}  // namespace perigee::cli
