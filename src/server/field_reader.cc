#include <algorithm>
#include <cmath>
#include <limits>

#include "base/strings.h"
#include "server/field_reader-inl.h"
#include "server/json_limits.h"
#include "text/tokenizer.h"

namespace perigee::server {
namespace {

// Sampling controls of other servers, by the value that leaves the answer alone.
struct NeutralNumber {
  const char* name;
  double neutral;
};
constexpr NeutralNumber kUnsupportedNumbers[] = {
    {"presence_penalty", 0},
    {"frequency_penalty", 0},
    {"repetition_penalty", 1},
    {"length_penalty", 1},
    {"min_p", 0},
    {"min_tokens", 0},
    {"min_new_tokens", 0},
};
constexpr const char* kUnsupportedFields[] = {
    "logit_bias",
    "use_beam_search",
    "include_stop_str_in_output",
    "no_stop_trim",
    "grammar",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "stop_regex",
    "bad_words",
    "allowed_token_ids",
    "custom_logit_processor",
    "logits_processors",
    "lora_path",
    "truncate_prompt_tokens",
    "spaces_between_special_tokens",
    "return_tokens_as_token_ids",
    "return_token_ids",
};

bool IsNeutral(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return (value.is_string() || value.is_array() || value.is_object()) &&
         (value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty());
}

// Whole numbers may come as 5 or 5.0.
std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    auto u = value.get<uint64_t>();
    if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  double d = value.get<double>();
  if (d != std::floor(d) || std::abs(d) > 9e15) return std::nullopt;
  return static_cast<int64_t>(d);
}

std::optional<std::vector<engine::TokenId>> AsIds(const Json& list) {
  std::vector<engine::TokenId> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    std::optional<int64_t> id = AsInteger(item);
    if (!id || *id < 0 || *id > std::numeric_limits<engine::TokenId>::max()) return std::nullopt;
    ids.push_back(static_cast<engine::TokenId>(*id));
  }
  return ids;
}

}  // namespace

std::optional<ApiError> ParseBody(std::string_view body, Json& out) {
  if (!text::IsValidUtf8(body)) return ApiError{.message = "the request body is not valid UTF-8"};
  if (std::string over = ExceededJsonLimit(body); !over.empty())
    return ApiError{.message = StrCat("the request body ", over)};
  try {
    out = Json::parse(body);
  } catch (const nlohmann::json::exception& e) {
    return ApiError{.message = StrCat("the request body is not valid JSON: ", Quoted(e.what(), 200))};
  }
  if (!out.is_object()) return ApiError{.message = "the request body must be a JSON object"};
  return std::nullopt;
}

void FieldReader::Fail(std::string_view name, std::string_view problem, std::string code) {
  if (failed()) return;
  std::string param = StrCat(path_, name);
  error_ = ApiError{.message = StrCat(param, " ", problem), .param = param, .code = std::move(code)};
}

FieldReader FieldReader::Nested(const Json& member, std::string_view name) const {
  return FieldReader(member, StrCat(path_, name, "."));
}

void FieldReader::Adopt(const FieldReader& nested) {
  if (!failed()) error_ = nested.error_;
}

const Json* FieldReader::Find(std::string_view name) const {
  if (failed()) return nullptr;
  known_.emplace(name);
  auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::Read(std::string_view name, bool& value) {
  const Json* field = Find(name);
  if (!field) return;
  if (!field->is_boolean()) return Fail(name, "must be true or false");
  value = field->get<bool>();
}

void FieldReader::Read(std::string_view name, std::string& value) {
  const Json* field = Find(name);
  if (!field) return;
  if (!field->is_string()) return Fail(name, "must be a string");
  value = field->get<std::string>();
}

void FieldReader::Read(std::string_view name, int64_t min, int64_t max, std::optional<int64_t>& value) {
  const Json* field = Find(name);
  if (!field) return;
  std::optional<int64_t> number = AsInteger(*field);
  if (!number || *number < min || *number > max) {
    std::string range = max == std::numeric_limits<int64_t>::max() ? StrCat(" not below ", min)
                                                                   : StrCat(" from ", min, " to ", max);
    return Fail(name, StrCat("must be a whole number", range, ", not ", Quoted(field->dump(), 40)));
  }
  value = number;
}

void FieldReader::Read(std::string_view name, double min, double max, std::optional<double>& value) {
  const Json* field = Find(name);
  if (!field) return;
  double number = field->is_number() ? field->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= min && number <= max))
    return Fail(name,
                StrCat("must be a number from ", min, " to ", max, ", not ", Quoted(field->dump(), 40)));
  value = number;
}

void FieldReader::RefuseUnlessEmpty(std::string_view name) {
  const Json* field = Find(name);
  if (field && !IsNeutral(*field)) Fail(name, "is not supported by this server");
}

void FieldReader::RefuseUnless(std::string_view name, double neutral) {
  const Json* field = Find(name);
  if (!field) return;
  if (!field->is_number()) return Fail(name, "must be a number");
  if (field->get<double>() != neutral)
    Fail(name, StrCat("is not supported by this server: only ", neutral, " is accepted"));
}

void FieldReader::RefuseUnknown(std::span<const std::string_view> harmless) {
  if (failed()) return;
  for (const auto& [name, value] : object_.items()) {
    const bool fine = value.is_null() || known_.count(name) != 0 ||
                      std::find(harmless.begin(), harmless.end(), name) != harmless.end();
    if (fine) continue;
    // A name may be anything, of any length.
    constexpr size_t kMaxName = 64;
    const bool plain =
        name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [](char c) {
          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        });
    return Fail(plain ? name : Quoted(name, kMaxName),
                "is not known to this server and might change the answer");
  }
}

void ReadStop(FieldReader& reader, std::vector<std::string>& stop) {
  const Json* field = reader.Find("stop");
  if (!field) return;
  Json list = field->is_string() ? Json::array({*field}) : *field;
  if (!list.is_array() || list.size() > kMaxStopStrings)
    return reader.Fail("stop", StrCat("must be a string or a list of at most ", kMaxStopStrings, " strings"));
  for (const Json& item : list) {
    if (!item.is_string()) return reader.Fail("stop", "must hold strings only");
    const auto& s = item.get_ref<const std::string&>();
    if (s.size() > kMaxStopBytes)
      return reader.Fail("stop", StrCat("must hold strings of at most ", kMaxStopBytes, " bytes"));
    if (!s.empty()) stop.push_back(s);
  }
}

void ReadSampling(FieldReader& reader, GenerationFields& fields) {
  for (const NeutralNumber& f : kUnsupportedNumbers) reader.RefuseUnless(f.name, f.neutral);
  for (const char* name : kUnsupportedFields) reader.RefuseUnlessEmpty(name);

  engine::SamplingParams& sampling = fields.sampling;
  std::optional<double> temperature, top_p;
  reader.Read("temperature", 0.0, 100.0, temperature);
  if (temperature) sampling.temperature = static_cast<float>(*temperature);
  reader.Read("top_p", 0.0, 1.0, top_p);
  if (top_p == 0.0) reader.Fail("top_p", "must be above 0");
  // So small that a float cannot hold it: the smallest that it can.
  if (top_p) sampling.top_p = std::max(static_cast<float>(*top_p), std::numeric_limits<float>::min());
  std::optional<int64_t> top_k, n, seed;
  reader.Read("top_k", -1, std::numeric_limits<int32_t>::max(), top_k);
  if (top_k) sampling.top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));  // -1: all, too
  reader.Read("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), seed);
  if (seed) sampling.seed = static_cast<uint64_t>(*seed);
  reader.Read("n", 1, kMaxChoices, n);
  if (n) fields.n = static_cast<int32_t>(*n);
  ReadStop(reader, fields.stop);
  if (const Json* ids = reader.Find("stop_token_ids")) {
    auto parsed = ids->is_array() && ids->size() <= kMaxStopIds ? AsIds(*ids) : std::nullopt;
    if (!parsed)
      return reader.Fail("stop_token_ids", StrCat("must be a list of at most ", kMaxStopIds, " token ids"));
    sampling.stop_token_ids = std::move(*parsed);
  }
  reader.Read("ignore_eos", sampling.ignore_eos);
  reader.Read("skip_special_tokens", fields.skip_special_tokens);
}

void ReadPrompt(FieldReader& reader, std::string_view name, PromptFields& prompt) {
  static constexpr std::string_view kForms =
      "must be a string, a list of strings, a list of token ids or a list of lists of token ids";
  const Json* field = reader.Find(name);
  if (!field) return;
  if (field->is_string()) {
    prompt.texts.push_back(field->get<std::string>());
    return;
  }
  if (!field->is_array()) return reader.Fail(name, kForms);
  if (field->empty()) return reader.Fail(name, "must not be empty");
  const Json& first = field->front();
  if (first.is_number()) {
    auto ids = AsIds(*field);
    if (!ids) return reader.Fail(name, "must hold token ids (whole numbers, not negative) only");
    prompt.ids.push_back(std::move(*ids));
    return;
  }
  prompt.batch = true;
  for (const Json& item : *field) {
    if (first.is_string() && item.is_string()) {
      prompt.texts.push_back(item.get<std::string>());
    } else if (first.is_array() && item.is_array()) {
      auto ids = AsIds(item);
      if (!ids)
        return reader.Fail(StrCat(name, "[", prompt.ids.size(), "]"),
                           "must hold token ids (whole numbers, not negative) only");
      prompt.ids.push_back(std::move(*ids));
    } else {
      return reader.Fail(name, kForms);
    }
  }
}

void ReadStreamOptions(FieldReader& reader, bool& include_usage) {
  const Json* options = reader.Find("stream_options");
  if (!options) return;
  if (!options->is_object()) return reader.Fail("stream_options", "must be an object");
  FieldReader inner = reader.Nested(*options, "stream_options");
  inner.Read("include_usage", include_usage);
  inner.RefuseUnlessEmpty("continuous_usage_stats");
  inner.RefuseUnknown({"include_obfuscation"});
  reader.Adopt(inner);
}

void CheckAnswerCount(FieldReader& reader, std::string_view name, size_t prompts, int32_t n) {
  size_t answers = prompts * static_cast<size_t>(n);
  if (answers > kMaxAnswers)
    reader.Fail(name, StrCat("asks for ", answers, " answers (prompts times n); at most ", kMaxAnswers,
                             " are given at once"));
}

}  // namespace perigee::server
