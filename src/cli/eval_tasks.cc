#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/strings.h"
#include "cli/eval.h"

namespace perigee::cli {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool SameNumber(const std::string& text, const std::string& expected) {
  // The worked answer ends in "#### 42".
  const size_t mark = expected.rfind("####");
  const std::optional<double> right =
      LastNumber(mark == std::string::npos ? expected : expected.substr(mark));
  const std::optional<double> given = LastNumber(text);
  return right && given && *right == *given;
}

}  // namespace

std::optional<double> LastNumber(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (c != ',') kept += c;
  }
  size_t end = kept.size();
  while (end > 0 && !IsDigit(kept[end - 1])) --end;
  if (end == 0) return std::nullopt;
  size_t begin = end;
  while (begin > 0 && IsDigit(kept[begin - 1])) --begin;
  if (begin >= 2 && kept[begin - 1] == '.' && IsDigit(kept[begin - 2])) {
    --begin;
    while (begin > 0 && IsDigit(kept[begin - 1])) --begin;
  }
  const bool minus = begin > 0 && kept[begin - 1] == '-' &&
                     (begin == 1 || !std::isalnum(static_cast<unsigned char>(kept[begin - 2])));
  if (minus) --begin;
  double value = 0;
  const auto [stop, error] = std::from_chars(kept.data() + begin, kept.data() + end, value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::string FewShotPrompt(const std::vector<Question>& all, int64_t num_shots, const Question& asked) {
  std::string prompt;
  for (int64_t i = 0; i < num_shots; ++i) {
    const Question& shot = all[static_cast<size_t>(i)];
    prompt += StrCat("Question: ", shot.question, "\nAnswer: ", shot.answer, "\n\n");
  }
  return prompt + StrCat("Question: ", asked.question, "\nAnswer:");
}

EvalTask MakeGsm8kTask(const EvalFlags& flags) {
  return {.field = "question",
          .num_shots = flags.num_shots,
          .prints_rates = true,
          .ask =
              [flags](EvalClient& client, const std::vector<Question>& all, const Question& asked) {
                return client.Complete(FewShotPrompt(all, flags.num_shots, asked), "Question",
                                       flags.max_new_tokens);
              },
          .judge = SameNumber,
          .parses = [](const std::string& text) { return LastNumber(text).has_value(); }};
}

EvalTask MakeNeedleTask(const EvalFlags& flags) {
  return {.field = "messages",
          .ask =
              [flags](EvalClient& client, const std::vector<Question>&, const Question& asked) {
                return client.Chat(asked.messages_json, flags.max_new_tokens);
              },
          .judge = [](const std::string& text,
                      const std::string& expected) { return Stripped(text) == Stripped(expected); },
          .parses = nullptr};
}

EvalTask MakeChatTask(const EvalFlags& flags) {
  return {
      .field = "prompt",
      .ask = [flags](EvalClient& client, const std::vector<Question>&,
                     const Question& asked) { return client.Generate(asked.prompt, flags.max_new_tokens); },
      .judge = [](const std::string& text, const std::string& expected) { return text == expected; },
      .parses = nullptr};
}

}  // namespace perigee::cli
