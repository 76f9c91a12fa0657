#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace perigee::text {

struct ToolCall {
  std::string id;  // "functions.get_weather:0"
  std::string name;
  std::string arguments;  // JSON text, printed as given
};

struct ChatMessage {
  std::string role;
  std::string name;                    // label in place of the role when not empty
  std::optional<std::string> content;  // absent: null
  std::vector<ToolCall> tool_calls;    // assistant only
  std::string tool_call_id;            // role tool
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  std::string tools_json;  // the OpenAI `tools` array as JSON, any spacing and order; empty or "[]": none
  bool add_generation_prompt = true;
};

// The Kimi-Linear chat format. Rendering is native; the folder's template is not run.
class ChatTemplate {
 public:
  // Fails when the tokenizer lacks one of the markers.
  static StatusOr<ChatTemplate> Create(const Tokenizer& tokenizer);

  // Prompt ids: markers are control ids, everything a client sent is plain text.
  StatusOr<std::vector<TokenId>> Encode(const ChatPrompt& prompt) const;
  // The same prompt as text, as the reference template renders it.
  StatusOr<std::string> Render(const ChatPrompt& prompt) const;

 private:
  explicit ChatTemplate(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  const Tokenizer* tokenizer_;
};

// What a folder's template text says that we do not render: think tags, a default system text, other role
// markers,
// ... One sentence each; empty when nothing was found.
std::vector<std::string> UnrenderedTemplateFeatures(std::string_view jinja);

}  // namespace perigee::text
