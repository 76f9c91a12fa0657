#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/server.h"
#include "testing/fake_engine.h"
#include "testing/http_connection.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace perigee::server {

using Json = nlohmann::ordered_json;

// The bundled model's tokenizer.
const text::Tokenizer& TinyTokenizer();
std::vector<engine::TokenId> Ids(std::string_view text, bool specials = true);
engine::TokenId SpecialId(std::string_view name);
// One id for every byte: text in the smallest steps.
std::vector<engine::TokenId> ByteIds(std::string_view text);

engine::ModelInfo TinyInfo(int64_t context_length = 4096);

// A server on a free port over a fake engine that answers everything with `script`.
class ApiTest : public ::testing::Test {
 protected:
  ApiTest();

  // Starts over with other options.
  void Restart(ServerOptions options, int64_t context_length = 4096);
  int port() const { return server_->port(); }

  // Answers from now on.
  void Answer(std::string_view text) { script_.tokens = Ids(text); }

  // The parsed body of a 200.
  Json PostOk(std::string_view path, const Json& body);
  // The error object, after checking the status.
  Json PostError(int status, std::string_view path, const Json& body);
  // The events of a stream, which must be whole and end with [DONE] (left out).
  std::vector<Json> PostStream(std::string_view path, Json body);

  test::Script script_;
  std::unique_ptr<test::FakeEngine> engine_;
  std::unique_ptr<Server> server_;
};

Json UserMessage(std::string_view content);
// {"messages": [one user message], ...extra}
Json Chat(std::string_view content, Json extra = Json::object());
// The content of all chunks of one choice.
std::string StreamedContent(const std::vector<Json>& chunks, int index = 0);
std::string StreamedText(const std::vector<Json>& chunks, int index = 0);

}  // namespace perigee::server
