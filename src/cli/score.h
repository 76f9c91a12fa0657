#pragma once

#include <string>

#include "base/status.h"
#include "cli/flags.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace perigee::cli {

// perigee score: log-probabilities of every case's tokens and the 20 most probable ones after it.
//
// Input: {"cases": [{"ids": [...]} or {"text": "..."}]}. With both, the ids count. Output: the same cases,
// all their other fields kept, with `ids`, `logprobs` (entry i is that of ids[i] given the ones before; the
// first is null) and `top` ([id, log-probability] after the last token, most probable first).
Status RunScore(ScoreFlags flags);

// The same on an engine that runs, from JSON text to JSON text. Errors name the case by its index, and the
// field.
StatusOr<std::string> ScoreCases(const std::string& input_json, const std::string& model_name,
                                 const text::Tokenizer& tokenizer, engine::Engine& engine);

}  // namespace perigee::cli
