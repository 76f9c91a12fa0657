#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/eval_client.h"
#include "cli/flags.h"

namespace perigee::cli {

// perigee eval: asks a running server every question of a data set and prints the share that it answered
// rightly. A request that fails is named and counts as wrong; then the result is an error, after the score.
Status RunEval(const EvalFlags& flags);

// How one data set asks and judges.
struct EvalTask {
  std::string_view field;     // of the data set, besides `answer`
  int64_t num_shots = 0;      // first lines that are not asked
  bool prints_rates = false;  // latency and throughput beside the score
  std::function<StatusOr<Answer>(EvalClient& client, const std::vector<Question>& all, const Question& asked)>
      ask;
  std::function<bool(const std::string& text, const std::string& expected)> judge;
  // Whether anything that can be judged was found in the text; empty: always.
  std::function<bool(const std::string& text)> parses;
};

EvalTask MakeGsm8kTask(const EvalFlags& flags);
EvalTask MakeNeedleTask(const EvalFlags& flags);
EvalTask MakeChatTask(const EvalFlags& flags);

// The prompt of a word problem: the shots with their answers, then the question with none.
std::string FewShotPrompt(const std::vector<Question>& all, int64_t num_shots, const Question& asked);

// The last number in a text: digits with an optional fraction, commas between them dropped, and a minus sign
// that does not follow a letter or digit. "a 1,234.5 b" gives 1234.5.
std::optional<double> LastNumber(std::string_view text);

// Totals of a run, and the lines that it prints.
struct EvalResult {
  int64_t asked = 0;
  int64_t correct = 0;
  int64_t failed = 0;     // requests without an answer: not correct
  int64_t truncated = 0;  // ended by the token limit
  int64_t unparsed = 0;
  int64_t completion_tokens = 0;
  double seconds = 0;

  double score() const { return asked == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(asked); }
  double standard_error() const;
  std::string Report(bool prints_rates) const;  // lines for standard output
  std::string Remarks() const;                  // one line for standard error
};

}  // namespace perigee::cli
