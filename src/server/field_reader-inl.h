#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/request_fields.h"

// Reading requests. For the .cc files that parse them only: it brings in the JSON library.
namespace perigee::server {

// Members keep their order: arguments of past tool calls are printed as they came.
using Json = nlohmann::ordered_json;

// The object that a body holds. Refuses invalid UTF-8, what is not JSON, and what is over JsonLimits.
std::optional<ApiError> ParseBody(std::string_view body, Json& out);

// Reads the members of one object. The first problem is kept and ends all reading, so that a parser can be
// written without a check after every field; values of a failed reader are unspecified. Absent and null are
// the same: the variable keeps what it has.
class FieldReader {
 public:
  // `path` goes before names in errors: "sampling_params.".
  explicit FieldReader(const Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }
  void Fail(std::string_view name, std::string_view problem, std::string code = {});
  // A reader of the object `member` under this one; its failure comes back by Adopt.
  FieldReader Nested(const Json& member, std::string_view name) const;
  void Adopt(const FieldReader& nested);

  // The member, or null when it is absent, null, or reading has ended. Whatever was asked for is known.
  const Json* Find(std::string_view name) const;
  bool known(std::string_view name) const { return known_.count(name) != 0; }

  void Read(std::string_view name, bool& value);
  void Read(std::string_view name, std::string& value);
  void Read(std::string_view name, int64_t min, int64_t max, std::optional<int64_t>& value);
  void Read(std::string_view name, double min, double max, std::optional<double>& value);

  // Fields that would change the answer in a way we do not offer: any value but the neutral one fails.
  void RefuseUnlessEmpty(std::string_view name);  // neutral: false, "", [], {}
  void RefuseUnless(std::string_view name, double neutral);
  // Fails on the first member that is not null, was not asked for and is not in `harmless`, which lists what
  // cannot change the answer: it might change the answer on another server. Last of all.
  void RefuseUnknown(std::span<const std::string_view> harmless);
  void RefuseUnknown(std::initializer_list<std::string_view> harmless) {
    RefuseUnknown(std::span(harmless.begin(), harmless.size()));
  }

 private:
  const Json& object_;
  std::string path_;
  std::optional<ApiError> error_;
  mutable std::set<std::string, std::less<>> known_;
};

// A string or a list of strings.
void ReadStop(FieldReader& reader, std::vector<std::string>& stop);
// temperature, top_p, top_k, seed, stop, stop_token_ids, ignore_eos, skip_special_tokens, n; refuses the
// sampling controls that we do not have.
void ReadSampling(FieldReader& reader, GenerationFields& fields);
// A string, a list of strings, a list of ids or a list of lists of ids, under `name`.
void ReadPrompt(FieldReader& reader, std::string_view name, PromptFields& prompt);
// What clients of the OpenAI API send for their own or the operator's sake, at the top of a request.
inline constexpr std::string_view kHarmlessFields[] = {"user",
                                                       "metadata",
                                                       "store",
                                                       "service_tier",
                                                       "safety_identifier",
                                                       "prompt_cache_key",
                                                       "prompt_cache_retention",
                                                       "prediction",
                                                       "request_id",
                                                       "rid",
                                                       "priority",
                                                       "cache_salt",
                                                       "include_reasoning",
                                                       "separate_reasoning",
                                                       "stream_reasoning",
                                                       "add_special_tokens",
                                                       "log_metrics"};
// stream_options.include_usage
void ReadStreamOptions(FieldReader& reader, bool& include_usage);
void CheckAnswerCount(FieldReader& reader, std::string_view name, size_t prompts, int32_t n);

}  // namespace perigee::server
