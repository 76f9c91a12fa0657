// Gives the Python oracles access to src/text. Usage: text_oracle_tool MODEL_FOLDER
// Reads requests from standard input and answers each on standard output, both as one byte of kind, the
// payload's length as 4 little-endian bytes, and the payload:
//   E, P   text: ids with special strings recognised, or not; answered by I and 4 bytes an id
//   D, S   4 bytes an id: decoding, without or with skipping special tokens; answered by T and text
//   C      JSON conversation: rendered text (T), then its ids (I)
//   J      JSON: the same as Python prints it, answered by T
// A failure is answered by F and its message.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/json_format.h"
#include "text/tokenizer.h"

namespace perigee::text {
namespace {

void Answer(char kind, std::string_view payload) {
  const uint32_t size = static_cast<uint32_t>(payload.size());
  char head[5] = {kind};
  std::memcpy(head + 1, &size, 4);
  std::cout.write(head, 5).write(payload.data(), static_cast<std::streamsize>(size));
}

void AnswerIds(const std::vector<TokenId>& ids) {
  Answer('I', std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)));
}

template <typename T>
bool AnswerIfFailed(const StatusOr<T>& result) {
  if (!result.ok()) Answer('F', result.status().message());
  return !result.ok();
}

// {"messages": [...], "tools": text, "add_generation_prompt": bool}, messages in the OpenAI form with content
// a string, null or absent. A call has its arguments as a string, or as the JSON text of an object in
// arguments_json.
ChatPrompt ReadPrompt(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  ChatPrompt prompt;
  prompt.tools_json = json["tools"];
  prompt.add_generation_prompt = json["add_generation_prompt"];
  for (const auto& m : json["messages"]) {
    ChatMessage& message = prompt.messages.emplace_back();
    message.role = m["role"];
    message.name = m.value("name", "");
    if (m.contains("content") && m["content"].is_string()) message.content = m["content"].get<std::string>();
    message.tool_call_id = m.value("tool_call_id", "");
    if (!m.contains("tool_calls")) continue;
    for (const auto& call : m["tool_calls"]) {
      const auto& function = call["function"];
      message.tool_calls.push_back(
          {call["id"], function["name"],
           function.contains("arguments_json")
               ? FormatJson(function["arguments_json"].get<std::string>(), {}, "").value()
               : function["arguments"].get<std::string>()});
    }
  }
  return prompt;
}

void AnswerChat(const ChatTemplate& chat, const std::string& payload) {
  const ChatPrompt prompt = ReadPrompt(payload);
  const auto text = chat.Render(prompt);
  if (AnswerIfFailed(text)) return;
  Answer('T', *text);
  const auto ids = chat.Encode(prompt);
  if (!AnswerIfFailed(ids)) AnswerIds(*ids);
}

int Run(const std::string& folder) {
  const auto loaded = Tokenizer::Load(folder);
  if (!loaded.ok()) {
    std::cerr << loaded.status().message() << "\n";
    return 1;
  }
  const Tokenizer& tokenizer = **loaded;
  const ChatTemplate chat = ChatTemplate::Create(tokenizer).value();
  char head[5];
  while (std::cin.read(head, 5)) {
    uint32_t size = 0;
    std::memcpy(&size, head + 1, 4);
    std::string payload(size, '\0');
    if (!std::cin.read(payload.data(), size)) return 1;
    switch (head[0]) {
      case 'E':
        AnswerIds(tokenizer.Encode(payload, Tokenizer::Specials::kRecognise));
        break;
      case 'P':
        AnswerIds(tokenizer.Encode(payload, Tokenizer::Specials::kPlainText));
        break;
      case 'D':
      case 'S': {
        std::vector<TokenId> ids(size / sizeof(TokenId));
        std::memcpy(ids.data(), payload.data(), ids.size() * sizeof(TokenId));
        Answer('T', Decode(tokenizer, ids, head[0] == 'S'));
        break;
      }
      case 'C':
        AnswerChat(chat, payload);
        break;
      case 'J': {
        const auto text = FormatJson(payload, {}, "JSON");
        if (!AnswerIfFailed(text)) Answer('T', *text);
        break;
      }
      default:
        std::cerr << "unknown request\n";
        return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace perigee::text

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: text_oracle_tool MODEL_FOLDER\n";
    return 2;
  }
  std::ios::sync_with_stdio(false);
  return perigee::text::Run(argv[1]);
}
