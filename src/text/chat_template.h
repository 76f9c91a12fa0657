#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace perigee::text {

struct ToolCall {
  std::string id;         // "functions.get_weather:0"; printed as given, the caller rewrites foreign ids
  std::string name;       // not printed: the id carries it
  std::string arguments;  // JSON text, printed as given
};

struct ChatMessage {
  std::string role;
  std::string name;                    // label in place of the role when not empty
  std::optional<std::string> content;  // absent: null, which renders as empty
  std::vector<ToolCall> tool_calls;    // assistant only
  std::string tool_call_id;            // role tool, needed there and unused elsewhere
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  std::string
      tools_json;  // the OpenAI `tools` array as JSON, any spacing and order; empty, "null" or "[]": none
  bool add_generation_prompt = true;
  // Leaves the last message open for the model to go on with: it must be an assistant's without tool calls,
  // and no generation prompt follows.
  bool continue_final_message = false;
};

// The Kimi-Linear chat format: [tool declaration] message* [generation prompt], nothing in between, no system
// text of its own, no BOS. A role other than user and assistant has the system marker. Rendering is native;
// the folder's template is not run. Prompts are untrusted: text that is not UTF-8, tools that are not a JSON
// array, a tool message without tool_call_id and tool calls outside an assistant message are InvalidArgument.
class ChatTemplate {
 public:
  // Fails when the tokenizer, which must outlive the template, lacks one of the markers.
  static StatusOr<ChatTemplate> Create(const Tokenizer& tokenizer);

  // Prompt ids: markers are control ids, everything a client sent is plain text. Otherwise the ids of the
  // rendered text, with the reference's cuts for very long prompts (no marker is cut).
  StatusOr<std::vector<TokenId>> Encode(const ChatPrompt& prompt) const;
  // The same prompt as text, as the reference template renders it.
  StatusOr<std::string> Render(const ChatPrompt& prompt) const;

 private:
  struct Markers {
    TokenId user, assistant, system, middle, end;
    TokenId section_begin, section_end, call_begin, argument_begin, call_end;
  };
  // A prompt as an alternation of markers and texts.
  class Parts;

  ChatTemplate(const Tokenizer& tokenizer, const Markers& markers)
      : tokenizer_(&tokenizer), markers_(markers) {}
  StatusOr<Parts> Assemble(const ChatPrompt& prompt) const;
  void AppendMessage(const ChatMessage& message, bool open, Parts& parts) const;

  const Tokenizer* tokenizer_;
  Markers markers_;
};

// What a folder's template text says that we do not render: think tags, a default system text, other markers,
// dates, special cases and so on; and the markers we print that it does not. One sentence each; empty when
// nothing was found. The text is untrusted and is only read, never run.
std::vector<std::string> UnrenderedTemplateFeatures(std::string_view jinja);

}  // namespace perigee::text
