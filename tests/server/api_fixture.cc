#include "server/api_fixture.h"

#include <utility>

#include "base/log.h"

namespace perigee::server {

const text::Tokenizer& TinyTokenizer() {
  static const auto tokenizer = text::Tokenizer::Load(PERIGEE_MODELS "/tiny-kimi-linear");
  return *tokenizer.value();
}

std::vector<engine::TokenId> Ids(std::string_view text, bool specials) {
  using Specials = text::Tokenizer::Specials;
  return TinyTokenizer().Encode(text, specials ? Specials::kRecognise : Specials::kPlainText);
}

engine::TokenId SpecialId(std::string_view name) {
  return TinyTokenizer().SpecialId(name).value();
}

std::vector<engine::TokenId> ByteIds(std::string_view text) {
  static const std::vector<engine::TokenId> by_byte = [] {
    std::vector<engine::TokenId> ids(256);
    for (engine::TokenId id = 0; id < TinyTokenizer().num_ranks(); ++id) {
      std::string_view bytes = TinyTokenizer().Bytes(id);
      if (bytes.size() == 1) ids[static_cast<unsigned char>(bytes[0])] = id;
    }
    return ids;
  }();
  std::vector<engine::TokenId> ids;
  for (unsigned char byte : text) ids.push_back(by_byte[byte]);
  return ids;
}

engine::ModelInfo TinyInfo(int64_t context_length) {
  return {
      .model_path = "/models/tiny-kimi-linear",
      .vocab_size = TinyTokenizer().vocab_size(),
      .context_length = context_length,
      .max_total_tokens = 4 * context_length,
      .stop_ids = {SpecialId("<|im_end|>")},
      .memory = {.ranks = {{.weights = 1000, .latents = 200, .states = 30, .snapshots = 4, .workspace = 5}},
                 .embedding_bytes = 60,
                 .tokens = 4 * context_length,
                 .sequences = 3,
                 .snapshots = 6,
                 .context_length = context_length,
                 .bytes_per_token = {8},
                 .bytes_per_sequence = {9},
                 .memory_bytes = 10'000,
                 .available_bytes = 5000,
                 .fraction = 0.5,
                 .budget_bytes = 5000}};
}

ApiTest::ApiTest() {
  SetLogLevel(LogLevel::kOff);  // many requests are refused on purpose
  script_.stop_token = SpecialId("<|im_end|>");
  Answer("All is well.");
  Restart({});
}

void ApiTest::Restart(ServerOptions options, int64_t context_length) {
  server_.reset();
  engine_ = std::make_unique<test::FakeEngine>([this](const engine::Request&) { return script_; },
                                               TinyInfo(context_length));
  options.port = 0;
  server_ = std::move(Server::Start(options).value());
  ASSERT_TRUE(server_->SetReady(engine_.get(), &TinyTokenizer()).ok());
}

Json ApiTest::PostOk(std::string_view path, const Json& body) {
  test::HttpReply reply = test::Post(port(), path, body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("content-type"), "application/json");
  return Json::parse(reply.body, nullptr, false);
}

Json ApiTest::PostError(int status, std::string_view path, const Json& body) {
  test::HttpReply reply = test::Post(port(), path, body.dump());
  EXPECT_EQ(reply.status, status) << body.dump().substr(0, 200) << "\n" << reply.body;
  Json parsed = Json::parse(reply.body, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("error")) {
    ADD_FAILURE() << "no error object: " << reply.body;
    return Json::object();
  }
  for (const char* field : {"message", "type", "param", "code"}) EXPECT_TRUE(parsed["error"].contains(field));
  return parsed["error"];
}

std::vector<Json> ApiTest::PostStream(std::string_view path, Json body) {
  body["stream"] = true;
  test::HttpReply reply = test::Post(port(), path, body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("content-type"), "text/event-stream");
  EXPECT_TRUE(reply.whole);
  std::vector<std::string> events = test::Events(reply.body);
  std::vector<Json> parsed;
  if (events.empty() || events.back() != "[DONE]") {
    ADD_FAILURE() << "the stream does not end with [DONE]: " << reply.body;
    return parsed;
  }
  events.pop_back();
  for (const std::string& event : events) {
    parsed.push_back(Json::parse(event, nullptr, false));
    EXPECT_TRUE(parsed.back().is_object()) << event;
  }
  return parsed;
}

Json UserMessage(std::string_view content) {
  return {{"role", "user"}, {"content", content}};
}

Json Chat(std::string_view content, Json extra) {
  Json body = {{"messages", Json::array({UserMessage(content)})}};
  body.update(extra);
  return body;
}

namespace {

template <typename Piece>
std::string Join(const std::vector<Json>& chunks, int index, Piece piece) {
  std::string text;
  for (const Json& chunk : chunks) {
    for (const Json& choice : chunk["choices"]) {
      if (choice["index"] == index) text += piece(choice);
    }
  }
  return text;
}

}  // namespace

std::string StreamedContent(const std::vector<Json>& chunks, int index) {
  return Join(chunks, index, [](const Json& choice) { return choice["delta"].value("content", ""); });
}

std::string StreamedText(const std::vector<Json>& chunks, int index) {
  return Join(chunks, index, [](const Json& choice) { return choice["text"].get<std::string>(); });
}

}  // namespace perigee::server
