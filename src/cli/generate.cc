#include "cli/generate.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/queue.h"
#include "base/strings.h"
#include "cli/launch.h"
#include "cli/signals.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"

namespace perigee::cli {
namespace {

constexpr int64_t kDefaultMaxTokens = 256;

StatusOr<std::vector<text::TokenId>> EncodePrompt(const GenerateFlags& flags,
                                                  const text::Tokenizer& tokenizer) {
  if (flags.prompt) return tokenizer.Encode(*flags.prompt, text::Tokenizer::Specials::kRecognise);
  PERIGEE_ASSIGN_OR_RETURN(const text::ChatTemplate chat, text::ChatTemplate::Create(tokenizer));
  text::ChatPrompt prompt;
  prompt.messages.push_back({.role = "user", .content = *flags.chat});
  return chat.Encode(prompt);
}

Status Show(const std::string& piece) {
  const bool written =
      std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size() && std::fflush(stdout) == 0;
  return written ? Status::Ok()
                 : InternalError(StrCat("cannot write standard output: ", std::strerror(errno)));
}

// Prints deliveries until the last one, or until nobody takes them any more.
Status Stream(const text::Tokenizer& tokenizer, BlockingQueue<engine::Output>& outputs) {
  text::IncrementalDetokenizer detokenizer(tokenizer, /*skip_special_tokens=*/true);
  for (;;) {
    const engine::Output output = std::move(*outputs.Pop());
    for (size_t i = 0; i < output.tokens.size(); ++i) {
      const bool is_stop = output.stop_token.has_value() && i + 1 == output.tokens.size();
      if (!is_stop) PERIGEE_RETURN_IF_ERROR(Show(detokenizer.Push(output.tokens[i].id)));
    }
    if (output.finish == engine::FinishReason::kNone) continue;
    PERIGEE_RETURN_IF_ERROR(Show(detokenizer.Flush() + "\n"));
    if (output.finish == engine::FinishReason::kError) return output.status;
    if (output.finish == engine::FinishReason::kCancelled) return Cancelled("interrupted");
    return Status::Ok();
  }
}

Status Generate(GenerateFlags flags, SignalWatcher& signals, comm::ProcessRanks* ranks) {
  PERIGEE_RETURN_IF_ERROR(PrepareModel(&flags.model));
  PERIGEE_RETURN_IF_ERROR(CheckTemplate(flags.model));
  // Before the engine, whose thread may still be in Push when the last output is read here.
  BlockingQueue<engine::Output> outputs;
  PERIGEE_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(flags.model, ranks));
  engine::Request request;
  PERIGEE_ASSIGN_OR_RETURN(request.prompt, EncodePrompt(flags, *model.tokenizer));
  request.sampling.temperature = static_cast<float>(flags.temperature);
  const int64_t room =
      model.engine->model_info().LongestRequest() - static_cast<int64_t>(request.prompt.size());
  request.sampling.max_new_tokens =
      flags.max_tokens.value_or(std::clamp<int64_t>(room, 1, kDefaultMaxTokens));

  PERIGEE_ASSIGN_OR_RETURN(const engine::RequestId id,
                           model.engine->Submit(std::move(request), [&outputs](engine::Output output) {
                             outputs.Push(std::move(output));
                           }));
  engine::Engine* engine = model.engine.get();
  signals.Arm([engine, id] { engine->Cancel(id); });
  const Status status = Stream(*model.tokenizer, outputs);
  signals.Arm(nullptr);
  return ConcludeRanks(ranks, status);
}

}  // namespace

Status RunGenerate(GenerateFlags flags) {
  SignalWatcher signals;
  PERIGEE_ASSIGN_OR_RETURN(std::unique_ptr<comm::ProcessRanks> ranks, JoinRanks(flags.model));
  if (ranks != nullptr && ranks->rank() > 0) {
    signals.Arm([] {});  // mpirun signals everybody; rank 0 says when it is over
    return FollowRankZero(std::move(flags.model), std::move(ranks));
  }
  return ConcludeRanks(ranks.get(), Generate(std::move(flags), signals, ranks.get()));
}

}  // namespace perigee::cli
