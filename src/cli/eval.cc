#include "cli/eval.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include "base/strings.h"

namespace perigee::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string Fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

// Answers to questions [first, first + answers.size()), asked by several threads with a connection each. A
// failure is the answer of its question alone.
class Run {
 public:
  Run(const EvalFlags& flags, const EvalTask& task, const std::vector<Question>& questions, size_t first,
      size_t count)
      : flags_(flags),
        task_(task),
        questions_(questions),
        first_(first),
        answers_(count, StatusOr<Answer>(Unavailable("not asked"))) {}

  void Execute() {
    const auto threads = std::min<size_t>(static_cast<size_t>(flags_.parallel), answers_.size());
    std::vector<std::thread> workers;
    for (size_t i = 0; i < threads; ++i) workers.emplace_back([this] { Work(); });
    for (std::thread& worker : workers) worker.join();
    if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\r\033[K");
  }

  const std::vector<StatusOr<Answer>>& answers() const { return answers_; }

 private:
  void Work() {
    EvalClient client(*ParseHttpUrl(flags_.base_url), std::chrono::seconds(flags_.timeout_seconds));
    for (size_t i = next_++; i < answers_.size(); i = next_++) {
      StatusOr<Answer> answer = task_.ask(client, questions_, questions_[first_ + i]);
      std::lock_guard lock(mutex_);
      answers_[i] = std::move(answer);
      ++done_;
      if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\r%zu of %zu", done_, answers_.size());
    }
  }

  const EvalFlags& flags_;
  const EvalTask& task_;
  const std::vector<Question>& questions_;
  const size_t first_;
  std::vector<StatusOr<Answer>> answers_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  size_t done_ = 0;
};

// Adds one answered question.
void Count(const EvalTask& task, const Answer& answer, bool correct, EvalResult& result) {
  result.correct += correct;
  result.truncated += answer.finish_reason == "length";
  result.unparsed += task.parses && !task.parses(answer.text);
  result.completion_tokens += answer.completion_tokens;
}

// Judges all answers, writes a line for each, and names the first failures on standard error.
EvalResult Judge(const EvalTask& task, const std::vector<StatusOr<Answer>>& answers,
                 const std::vector<Question>& questions, size_t first, std::ofstream& output) {
  constexpr int64_t kNamed = 10;
  EvalResult result{.asked = static_cast<int64_t>(answers.size())};
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto index = static_cast<int64_t>(first + i);
    const std::string& expected = questions[first + i].answer;
    std::string line;
    if (answers[i].ok()) {
      const bool correct = task.judge(answers[i]->text, expected);
      Count(task, *answers[i], correct, result);
      line = AnswerLine(index, correct, *answers[i], expected);
    } else {
      const std::string& error = answers[i].status().message();
      if (++result.failed <= kNamed)
        std::fprintf(stderr, "question %" PRId64 " failed: %s\n", index, error.c_str());
      line = FailureLine(index, error, expected);
    }
    if (output.is_open()) output << line << "\n";
  }
  return result;
}

EvalTask MakeTask(const EvalFlags& flags) {
  switch (flags.kind) {
    case EvalKind::kGsm8k:
      return MakeGsm8kTask(flags);
    case EvalKind::kNeedle:
      return MakeNeedleTask(flags);
    case EvalKind::kChat:
      break;
  }
  return MakeChatTask(flags);
}

}  // namespace

double EvalResult::standard_error() const {
  return asked == 0 ? 0 : std::sqrt(score() * (1 - score()) / static_cast<double>(asked));
}

std::string EvalResult::Report(bool prints_rates) const {
  std::string lines;
  if (prints_rates) lines += StrCat("Total latency: ", Fixed(seconds), " s\n");
  lines += StrCat("Score: ", Fixed(score()), "\n");
  if (prints_rates) {
    const double rate = seconds > 0 ? static_cast<double>(completion_tokens) / seconds : 0;
    lines += StrCat("Output throughput: ", Fixed(rate), " token/s\n");
  }
  return lines;
}

std::string EvalResult::Remarks() const {
  std::string line = StrCat("n = ", asked, ", standard error ", Fixed(standard_error()), ", truncated ",
                            truncated, ", unparsed ", unparsed);
  if (failed > 0) line += StrCat(", failed ", failed);
  if (truncated * 100 > asked) line += "; over 1 % truncated, the score says little: raise --max-new-tokens";
  return line + "\n";
}

Status RunEval(const EvalFlags& flags) {
  const EvalTask task = MakeTask(flags);
  PERIGEE_ASSIGN_OR_RETURN(const std::vector<Question> questions, LoadQuestions(flags.data, task.field));
  const auto available = static_cast<int64_t>(questions.size()) - task.num_shots;
  if (available < 1) {
    return InvalidArgument(StrCat(flags.data, " has ", questions.size(), " questions: --num-shots ",
                                  task.num_shots, " leaves none to ask"));
  }
  const int64_t count = flags.num_questions == 0 ? available : std::min(flags.num_questions, available);
  std::ofstream output;
  if (!flags.output.empty()) {
    output.open(flags.output);
    if (!output) return NotFound(StrCat("--output: cannot write ", flags.output));
  }

  const auto first = static_cast<size_t>(task.num_shots);
  Run run(flags, task, questions, first, static_cast<size_t>(count));
  const Clock::time_point start = Clock::now();
  run.Execute();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  EvalResult result = Judge(task, run.answers(), questions, first, output);
  result.seconds = seconds;
  if (output.is_open() && !output.flush()) return InternalError(StrCat("cannot write ", flags.output));
  const auto failed = std::find_if(run.answers().begin(), run.answers().end(),
                                   [](const StatusOr<Answer>& answer) { return !answer.ok(); });
  // A server that answers nothing has no score.
  if (result.failed == result.asked) return failed->status();
  std::fputs(result.Report(task.prints_rates).c_str(), stdout);
  std::fflush(stdout);
  std::fputs(result.Remarks().c_str(), stderr);
  if (result.failed == 0) return Status::Ok();
  return Unavailable(
      StrCat(result.failed, " of ", result.asked, " requests failed and count as wrong; the first: question ",
             first + static_cast<size_t>(failed - run.answers().begin()), ": ", failed->status().message()));
}

}  // namespace perigee::cli
