#include "server/generation.h"

#include <chrono>
#include <utility>

#include "base/strings.h"

namespace perigee::server {
namespace {

// Lives on the delivery thread: every method but the constructor runs there. Kept alive by the callbacks that
// the engine holds and by tasks in flight.
class Generation : public GenerationSet::Member, public std::enable_shared_from_this<Generation> {
 public:
  Generation(std::shared_ptr<const ServingContext> context, GenerationRequest request,
             ResponseChannel channel, std::unique_ptr<Responder> responder)
      : context_(std::move(context)),
        request_(std::move(request)),
        channel_(std::move(channel)),
        responder_(std::move(responder)) {}

  void Start();
  void Fail(const ApiError& error) override;

 private:
  using Clock = RequestRecord::Clock;

  struct Run {
    AnswerBuilder builder;
    engine::RequestId id = 0;
    bool engine_done = false;
    std::optional<Clock::time_point> last_token;
  };

  Status Submit(size_t index);
  void OnOutput(size_t index, engine::Output output);
  ApiError ErrorOf(size_t index, const Status& status) const;
  void CancelAll();
  void End();
  void ObserveTokens(Run& run, size_t count) const;

  std::shared_ptr<const ServingContext> context_;
  GenerationRequest request_;
  ResponseChannel channel_;
  std::unique_ptr<Responder> responder_;
  std::vector<Run> runs_;
  size_t unfinished_ = 0;
  bool over_ = false;
};

void Generation::Start() {
  if (channel_.writer().disconnected()) return;
  if (const auto closed = context_->generations->Join(shared_from_this())) return channel_.Fail(*closed);
  channel_.writer().OnDisconnect([weak = weak_from_this(), queue = context_->deliveries] {
    queue->Push([weak] {
      if (auto self = weak.lock()) self->CancelAll();
    });
  });
  unfinished_ = request_.prompts.size() * static_cast<size_t>(request_.n);
  for (size_t i = 0; i < unfinished_; ++i) {
    if (Status submitted = Submit(i); !submitted.ok()) return Fail(ErrorOf(i, submitted));
  }
  if (!channel_.stream()) return;
  channel_.Open();
  for (const Run& run : runs_) responder_->OnStart(channel_, run.builder.answer());
}

Status Generation::Submit(size_t index) {
  size_t n = static_cast<size_t>(request_.n);
  size_t prompt = index / n;
  bool last_choice = index % n == n - 1;
  engine::Request submission{.prompt = {}, .sampling = request_.sampling};
  submission.sampling.choice = static_cast<int32_t>(index % n);
  submission.sampling.max_new_tokens = request_.max_new_tokens[prompt];
  if (last_choice) {
    submission.prompt = std::move(request_.prompts[prompt]);
  } else {
    submission.prompt = request_.prompts[prompt];
  }
  runs_.push_back({.builder = AnswerBuilder(*context_->tokenizer, context_->tool_markers, request_.answer,
                                            static_cast<int32_t>(index), static_cast<int32_t>(prompt))});
  auto id = context_->engine->Submit(std::move(submission), [self = shared_from_this(),
                                                             queue = context_->deliveries,
                                                             index](engine::Output o) {
    queue->Push([self, index, output = std::move(o)]() mutable { self->OnOutput(index, std::move(output)); });
  });
  if (!id.ok()) {
    runs_.back().engine_done = true;
    return id.status();
  }
  runs_.back().id = *id;
  return Status::Ok();
}

void Generation::OnOutput(size_t index, engine::Output output) {
  Run& run = runs_[index];
  run.engine_done |= output.finish != engine::FinishReason::kNone;
  if (over_ || run.builder.ended()) return;
  if (output.finish == engine::FinishReason::kError) return Fail(ErrorOf(index, output.status));
  if (output.finish == engine::FinishReason::kCancelled)
    return Fail({.status = 503, .message = "the request was cancelled: the server is shutting down"});

  ObserveTokens(run, output.tokens.size());
  AnswerDelta delta = run.builder.Push(std::move(output));
  responder_->OnDelta(channel_, run.builder.answer(), delta);
  if (!run.builder.ended()) return;
  if (!run.engine_done) context_->engine->Cancel(run.id);  // ended by a stop string
  if (--unfinished_ == 0) End();
}

// Of a list of prompts the error says which.
ApiError Generation::ErrorOf(size_t index, const Status& status) const {
  ApiError error = FromStatus(status);
  if (request_.list_field.empty()) return error;
  error.param = StrCat(request_.list_field, "[", index / static_cast<size_t>(request_.n), "]");
  error.message = StrCat(error.param, ": ", error.message);
  return error;
}

void Generation::Fail(const ApiError& error) {
  CancelAll();
  channel_.Fail(error);
}

void Generation::CancelAll() {
  over_ = true;
  context_->generations->Leave(this);
  for (const Run& run : runs_) {
    if (!run.engine_done) context_->engine->Cancel(run.id);
  }
}

void Generation::End() {
  over_ = true;
  context_->generations->Leave(this);
  std::vector<const Answer*> answers;
  Usage usage;
  for (const Run& run : runs_) {
    const Answer& answer = run.builder.answer();
    answers.push_back(&answer);
    usage.completion_tokens += answer.completion_tokens();
    if (answer.index % request_.n != 0) continue;
    usage.prompt_tokens += answer.prompt_tokens;
    usage.cached_tokens += answer.cached_tokens;
  }
  responder_->OnEnd(channel_, answers, usage);
}

void Generation::ObserveTokens(Run& run, size_t count) const {
  if (count == 0) return;
  Metrics& metrics = channel_.record().metrics();
  const Clock::time_point now = Clock::now();
  if (run.last_token) {
    metrics.inter_token.Observe((now - *run.last_token) / static_cast<double>(count), count);
  } else {
    metrics.time_to_first_token.Observe(now - channel_.record().arrived());
  }
  run.last_token = now;
}

}  // namespace

void StartGeneration(std::shared_ptr<const ServingContext> context, GenerationRequest request,
                     ResponseChannel channel, std::unique_ptr<Responder> responder) {
  auto queue = context->deliveries;
  auto generation = std::make_shared<Generation>(std::move(context), std::move(request), std::move(channel),
                                                 std::move(responder));
  queue->Push([generation] { generation->Start(); });
}

}  // namespace perigee::server
