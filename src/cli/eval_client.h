#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/http_client.h"

// The JSON of the eval commands: data sets in, requests out, replies in.
namespace perigee::cli {

// One line of a data set. Which fields must be there depends on the set.
struct Question {
  std::string question;       // gsm8k
  std::string prompt;         // chat
  std::string messages_json;  // needle: the array, as JSON text
  std::string answer;
};

// Reads JSON lines; every object must have `answer` and the named field. Errors name file and line.
StatusOr<std::vector<Question>> LoadQuestions(const std::string& file, std::string_view field);

struct Answer {
  std::string text;
  std::string finish_reason;  // "stop", "length", ...
  int64_t completion_tokens = 0;
};

// One connection to a server; one thread at a time. All requests are greedy. A reply that is not 200 or not
// of the expected form is an error quoting what the server said.
class EvalClient {
 public:
  EvalClient(const HttpUrl& url, std::chrono::seconds timeout) : http_(url, timeout) {}

  // /v1/completions. An empty `stop` sends none.
  StatusOr<Answer> Complete(const std::string& prompt, const std::string& stop, int64_t max_tokens);
  // /v1/chat/completions.
  StatusOr<Answer> Chat(const std::string& messages_json, int64_t max_tokens);
  // /generate with special tokens kept in the text.
  StatusOr<Answer> Generate(const std::string& prompt, int64_t max_new_tokens);

 private:
  HttpClient http_;
};

// One line of the --output file.
std::string AnswerLine(int64_t index, bool correct, const Answer& answer, const std::string& expected);
// The same for a request that failed.
std::string FailureLine(int64_t index, const std::string& error, const std::string& expected);

}  // namespace perigee::cli
