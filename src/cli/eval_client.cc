#include "cli/eval_client.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"

namespace perigee::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status ReadText(const Json& line, const char* field, const std::string& where, std::string* out) {
  const auto found = line.find(field);
  if (found == line.end() || !found->is_string()) {
    return InvalidArgument(StrCat(where, ": field \"", field, "\" must be a string"));
  }
  *out = found->get<std::string>();
  return Status::Ok();
}

StatusOr<Question> ReadQuestion(const std::string& text, std::string_view field, const std::string& where) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return InvalidArgument(StrCat(where, ": not a JSON object"));
  Question question;
  PERIGEE_RETURN_IF_ERROR(ReadText(line, "answer", where, &question.answer));
  if (field == "messages") {
    const auto found = line.find("messages");
    if (found == line.end() || !found->is_array()) {
      return InvalidArgument(StrCat(where, ": field \"messages\" must be an array"));
    }
    question.messages_json = Dump(*found);
  } else {
    std::string* target = field == "question" ? &question.question : &question.prompt;
    PERIGEE_RETURN_IF_ERROR(ReadText(line, std::string(field).c_str(), where, target));
  }
  return question;
}

// The reply's body as JSON, or what the server said instead of 200.
StatusOr<Json> Ask(HttpClient& http, std::string_view path, const Json& request) {
  PERIGEE_ASSIGN_OR_RETURN(const HttpReply reply, http.Post(path, Dump(request)));
  if (reply.status != 200) {
    return Unavailable(StrCat(path, " answered ", reply.status, ": ", Quoted(reply.body, 300)));
  }
  Json body = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) {
    return InternalError(StrCat(path, " answered with something that is not JSON: ", Quoted(reply.body)));
  }
  return body;
}

StatusOr<Answer> Malformed(std::string_view path, const Json& body) {
  return InternalError(StrCat(path, " answered in an unexpected form: ", Quoted(Dump(body), 300)));
}

// OpenAI's two forms differ in where the text is.
StatusOr<Answer> FromOpenAi(std::string_view path, const Json& body, const char* text_pointer) {
  try {
    const Json& text = body.at(Json::json_pointer(text_pointer));
    // A message that is all tool calls has no content.
    return Answer{.text = text.is_null() ? "" : text.get<std::string>(),
                  .finish_reason = body.at("choices").at(0).at("finish_reason").get<std::string>(),
                  .completion_tokens = body.at("usage").at("completion_tokens").get<int64_t>()};
  } catch (const Json::exception&) {
    return Malformed(path, body);
  }
}

}  // namespace

StatusOr<std::vector<Question>> LoadQuestions(const std::string& file, std::string_view field) {
  std::ifstream in(file);
  if (!in) return NotFound(StrCat("cannot open ", file));
  std::vector<Question> questions;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    PERIGEE_ASSIGN_OR_RETURN(Question question, ReadQuestion(line, field, StrCat(file, ":", number)));
    questions.push_back(std::move(question));
  }
  if (in.bad()) return InternalError(StrCat("cannot read ", file));
  if (questions.empty()) return InvalidArgument(StrCat(file, ": no questions"));
  return questions;
}

StatusOr<Answer> EvalClient::Complete(const std::string& prompt, const std::string& stop,
                                      int64_t max_tokens) {
  constexpr std::string_view kPath = "/v1/completions";
  Json request = {{"model", "default"}, {"prompt", prompt}, {"temperature", 0}, {"max_tokens", max_tokens}};
  if (!stop.empty()) request["stop"] = Json::array({stop});
  PERIGEE_ASSIGN_OR_RETURN(const Json body, Ask(http_, kPath, request));
  return FromOpenAi(kPath, body, "/choices/0/text");
}

StatusOr<Answer> EvalClient::Chat(const std::string& messages_json, int64_t max_tokens) {
  constexpr std::string_view kPath = "/v1/chat/completions";
  const Json request = {{"model", "default"},
                        {"messages", Json::parse(messages_json, nullptr, /*allow_exceptions=*/false)},
                        {"temperature", 0},
                        {"max_tokens", max_tokens}};
  PERIGEE_ASSIGN_OR_RETURN(const Json body, Ask(http_, kPath, request));
  return FromOpenAi(kPath, body, "/choices/0/message/content");
}

StatusOr<Answer> EvalClient::Generate(const std::string& prompt, int64_t max_new_tokens) {
  constexpr std::string_view kPath = "/generate";
  const Json request = {
      {"text", prompt},
      {"sampling_params",
       {{"temperature", 0}, {"max_new_tokens", max_new_tokens}, {"skip_special_tokens", false}}}};
  PERIGEE_ASSIGN_OR_RETURN(const Json body, Ask(http_, kPath, request));
  try {
    const Json& meta = body.at("meta_info");
    return Answer{.text = body.at("text").get<std::string>(),
                  .finish_reason = meta.at("finish_reason").at("type").get<std::string>(),
                  .completion_tokens = meta.at("completion_tokens").get<int64_t>()};
  } catch (const Json::exception&) {
    return Malformed(kPath, body);
  }
}

std::string AnswerLine(int64_t index, bool correct, const Answer& answer, const std::string& expected) {
  return Dump({{"index", index},
               {"correct", correct},
               {"text", answer.text},
               {"answer", expected},
               {"finish_reason", answer.finish_reason},
               {"completion_tokens", answer.completion_tokens}});
}

std::string FailureLine(int64_t index, const std::string& error, const std::string& expected) {
  return Dump({{"index", index}, {"correct", false}, {"error", error}, {"answer", expected}});
}

}  // namespace perigee::cli
