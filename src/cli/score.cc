#include "cli/score.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/queue.h"
#include "base/strings.h"
#include "cli/launch.h"

namespace perigee::cli {
namespace {

using Json = nlohmann::ordered_json;

// A float's shortest digits, which a reader turns back into the same float.
Json FloatJson(float value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  double same_digits = 0;
  std::from_chars(digits, end, same_digits);
  return same_digits;
}

StatusOr<std::vector<text::TokenId>> ReadIds(const Json& ids, const std::string& where) {
  if (!ids.is_array()) return InvalidArgument(StrCat(where, ": field \"ids\" must be an array of integers"));
  std::vector<text::TokenId> out;
  out.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    // A number out of int32's range is no token of any model.
    if (!ids[i].is_number_integer() || ids[i] < 0 || ids[i] > std::numeric_limits<text::TokenId>::max()) {
      return InvalidArgument(StrCat(where, ": field \"ids\"[", i, "] is ", Quoted(ids[i].dump()),
                                    "; accepted: a token id of the model"));
    }
    out.push_back(ids[i].get<text::TokenId>());
  }
  return out;
}

StatusOr<std::vector<text::TokenId>> CaseIds(const Json& scored, const std::string& where,
                                             const text::Tokenizer& tokenizer) {
  if (!scored.is_object()) return InvalidArgument(StrCat(where, " must be an object"));
  if (const auto ids = scored.find("ids"); ids != scored.end()) return ReadIds(*ids, where);
  const auto text = scored.find("text");
  if (text == scored.end()) return InvalidArgument(StrCat(where, ": field \"ids\" or \"text\" is required"));
  if (!text->is_string()) return InvalidArgument(StrCat(where, ": field \"text\" must be a string"));
  return tokenizer.Encode(text->get<std::string>(), text::Tokenizer::Specials::kRecognise);
}

// Everything delivered for one case, in one piece.
struct Collected {
  std::vector<std::optional<float>> logprobs;
  std::vector<engine::TopToken> top;
  engine::FinishReason finish = engine::FinishReason::kNone;
  Status status;
};

struct Delivery {
  size_t index;
  engine::Output output;
};

// Submits all cases, so that they share steps, and waits for every one. When one is refused the others are
// cancelled.
StatusOr<std::vector<Collected>> RunCases(std::vector<std::vector<text::TokenId>> prompts,
                                          engine::Engine& engine) {
  const auto deliveries = std::make_shared<BlockingQueue<Delivery>>();
  std::vector<engine::RequestId> submitted;
  Status refused;
  for (size_t i = 0; i < prompts.size() && refused.ok(); ++i) {
    engine::Request request{.prompt = std::move(prompts[i])};
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = 1;
    request.sampling.prompt_logprobs = true;
    request.sampling.top_logprobs = engine::kMaxTopLogprobs;
    const auto id = engine.Submit(std::move(request), [deliveries, i](engine::Output output) {
      deliveries->Push({i, std::move(output)});
    });
    if (id.ok()) {
      submitted.push_back(*id);
    } else {
      refused = {id.status().code(), StrCat("cases[", i, "]: ", id.status().message())};
    }
  }
  if (!refused.ok()) {
    for (const engine::RequestId id : submitted) engine.Cancel(id);
    return refused;
  }
  std::vector<Collected> results(submitted.size());
  for (size_t left = results.size(); left > 0;) {
    Delivery delivery = std::move(*deliveries->Pop());
    Collected& result = results[delivery.index];
    engine::Output& output = delivery.output;
    if (!output.prompt_logprobs.empty()) result.logprobs = std::move(output.prompt_logprobs);
    if (!output.tokens.empty()) result.top = std::move(output.tokens.front().top);
    result.finish = output.finish;
    result.status = std::move(output.status);
    left -= output.finish != engine::FinishReason::kNone;
  }
  return results;
}

StatusOr<Json> LogprobsJson(const std::vector<std::optional<float>>& logprobs, const std::string& where) {
  Json out = Json::array();
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (logprobs[i] && !std::isfinite(*logprobs[i])) {
      return InternalError(StrCat(where, ": the log-probability of token ", i, " is not a finite number"));
    }
    out.push_back(logprobs[i] ? FloatJson(*logprobs[i]) : Json(nullptr));
  }
  return out;
}

StatusOr<std::string> ReadInput(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return NotFound(StrCat("--input: cannot open ", path, ": ", std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> bytes;
  while (const size_t n = std::fread(bytes.data(), 1, bytes.size(), file.get())) text.append(bytes.data(), n);
  if (std::ferror(file.get()) != 0)
    return InvalidArgument(StrCat("--input: cannot read ", path, ": ", std::strerror(errno)));
  return text;
}

Status WriteText(const std::string& path, const std::string& text) {
  std::FILE* file = path.empty() ? stdout : std::fopen(path.c_str(), "wb");
  if (!file) return NotFound(StrCat("--output: cannot write ", path));
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  written &= (file == stdout ? std::fflush(file) : std::fclose(file)) == 0;
  if (!written) return InternalError(StrCat("cannot write ", path.empty() ? "standard output" : path));
  return Status::Ok();
}

}  // namespace

StatusOr<std::string> ScoreCases(const std::string& input_json, const std::string& model_name,
                                 const text::Tokenizer& tokenizer, engine::Engine& engine) {
  Json document;
  try {
    document = Json::parse(input_json);
  } catch (const Json::exception& error) {
    return InvalidArgument(StrCat("not JSON: ", error.what()));
  }
  if (!document.is_object() || !document.contains("cases") || !document["cases"].is_array()) {
    return InvalidArgument(R"(expected {"cases": [...]})");
  }
  Json& cases = document["cases"];
  std::vector<std::vector<text::TokenId>> prompts;
  for (size_t i = 0; i < cases.size(); ++i) {
    PERIGEE_ASSIGN_OR_RETURN(std::vector<text::TokenId> ids,
                             CaseIds(cases[i], StrCat("cases[", i, "]"), tokenizer));
    cases[i]["ids"] = ids;
    prompts.push_back(std::move(ids));
  }
  PERIGEE_ASSIGN_OR_RETURN(const std::vector<Collected> results, RunCases(std::move(prompts), engine));
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string where = StrCat("cases[", i, "]");
    if (results[i].finish == engine::FinishReason::kCancelled) return Cancelled(StrCat(where, ": cancelled"));
    if (!results[i].status.ok()) {
      return Status(results[i].status.code(), StrCat(where, ": ", results[i].status.message()));
    }
    PERIGEE_ASSIGN_OR_RETURN(cases[i]["logprobs"], LogprobsJson(results[i].logprobs, where));
    Json top = Json::array();
    for (const engine::TopToken& token : results[i].top) {
      top.push_back(Json::array({token.id, FloatJson(token.logprob)}));
    }
    cases[i]["top"] = std::move(top);
  }
  document["model"] = model_name;
  document["arithmetic"] = StrCat("perigee ", PERIGEE_VERSION);
  return document.dump() + "\n";
}

namespace {

Status Score(ScoreFlags flags, comm::ProcessRanks* ranks) {
  PERIGEE_ASSIGN_OR_RETURN(const std::string input, ReadInput(flags.input));
  // Now rather than after the work.
  if (!flags.output.empty()) {
    std::FILE* output = std::fopen(flags.output.c_str(), "ab");
    if (!output) return NotFound(StrCat("--output: cannot write ", flags.output));
    std::fclose(output);
  }
  PERIGEE_RETURN_IF_ERROR(PrepareModel(&flags.model));
  PERIGEE_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(flags.model, ranks));
  auto scored = ScoreCases(input, FolderName(flags.model.engine.model_path), *model.tokenizer, *model.engine);
  if (!scored.ok()) {
    return ConcludeRanks(ranks,
                         {scored.status().code(), StrCat(flags.input, ": ", scored.status().message())});
  }
  return WriteText(flags.output, *scored);
}

}  // namespace

Status RunScore(ScoreFlags flags) {
  PERIGEE_ASSIGN_OR_RETURN(std::unique_ptr<comm::ProcessRanks> ranks, JoinRanks(flags.model));
  if (ranks != nullptr && ranks->rank() > 0) return FollowRankZero(std::move(flags.model), std::move(ranks));
  return ConcludeRanks(ranks.get(), Score(std::move(flags), ranks.get()));
}

}  // namespace perigee::cli
