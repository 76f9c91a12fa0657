#include "text/chat_template.h"

#include <utility>

#include "base/strings.h"
#include "text/json_format.h"
#include "text/pretokenizer.h"

namespace perigee::text {
namespace {

Status CheckUtf8(std::string_view text, std::string_view where, std::string_view field) {
  if (IsValidUtf8(text)) return Status::Ok();
  return InvalidArgument(StrCat(where, field, ": not valid UTF-8"));
}

Status CheckToolCalls(const ChatMessage& message, const std::string& where) {
  if (!message.tool_calls.empty() && message.role != "assistant")
    return InvalidArgument(StrCat(where, ".tool_calls: only an assistant message may have them, not role ",
                                  Quoted(message.role)));
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    const std::string here = StrCat(where, ".tool_calls[", i, "]");
    if (call.id.empty()) return InvalidArgument(StrCat(here, ".id: must not be empty"));
    PERIGEE_RETURN_IF_ERROR(CheckUtf8(call.id, here, ".id"));
    PERIGEE_RETURN_IF_ERROR(CheckUtf8(call.arguments, here, ".function.arguments"));
  }
  return Status::Ok();
}

Status CheckMessage(const ChatMessage& message, const std::string& where) {
  if (message.role.empty()) return InvalidArgument(StrCat(where, ".role: must not be empty"));
  PERIGEE_RETURN_IF_ERROR(CheckUtf8(message.role, where, ".role"));
  PERIGEE_RETURN_IF_ERROR(CheckUtf8(message.name, where, ".name"));
  PERIGEE_RETURN_IF_ERROR(CheckUtf8(message.tool_call_id, where, ".tool_call_id"));
  if (message.content) PERIGEE_RETURN_IF_ERROR(CheckUtf8(*message.content, where, ".content"));
  if (message.role == "tool" && message.tool_call_id.empty())
    return InvalidArgument(
        StrCat(where, ".tool_call_id: a tool message needs the id of the call that it answers"));
  return CheckToolCalls(message, where);
}

// The tools as the template prints them, or nothing when there are none.
StatusOr<std::string> ToolDeclaration(std::string_view tools_json) {
  if (tools_json.empty()) return std::string();
  PERIGEE_ASSIGN_OR_RETURN(std::string json,
                           FormatJson(tools_json, {.sort_keys = true, .compact = true}, "tools"));
  if (json == "null" || json == "[]") return std::string();
  if (json[0] != '[') return InvalidArgument("tools: expected an array");
  return json;
}

}  // namespace

class ChatTemplate::Parts {
 public:
  struct Part {
    std::optional<TokenId> marker;
    std::string text;  // when there is no marker
  };

  void Marker(TokenId id) { parts_.push_back({id, {}}); }
  void Text(std::string_view text) {
    if (parts_.empty() || parts_.back().marker) parts_.push_back({});
    parts_.back().text += text;
  }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

StatusOr<ChatTemplate> ChatTemplate::Create(const Tokenizer& tokenizer) {
  Markers m;
  const std::pair<std::string_view, TokenId*> wanted[] = {
      {"<|im_user|>", &m.user},
      {"<|im_assistant|>", &m.assistant},
      {"<|im_system|>", &m.system},
      {"<|im_middle|>", &m.middle},
      {"<|im_end|>", &m.end},
      {"<|tool_calls_section_begin|>", &m.section_begin},
      {"<|tool_calls_section_end|>", &m.section_end},
      {"<|tool_call_begin|>", &m.call_begin},
      {"<|tool_call_argument_begin|>", &m.argument_begin},
      {"<|tool_call_end|>", &m.call_end},
  };
  for (const auto& [name, id] : wanted) {
    const std::optional<TokenId> found = tokenizer.SpecialId(name);
    if (!found) return InvalidArgument(StrCat("the tokenizer has no special token ", name));
    *id = *found;
  }
  return ChatTemplate(tokenizer, m);
}

void ChatTemplate::AppendMessage(const ChatMessage& message, bool open, Parts& parts) const {
  parts.Marker(message.role == "user"        ? markers_.user
               : message.role == "assistant" ? markers_.assistant
                                             : markers_.system);
  parts.Text(message.name.empty() ? message.role : message.name);
  parts.Marker(markers_.middle);
  if (message.role == "tool") parts.Text(StrCat("## Return of ", message.tool_call_id, "\n"));
  if (message.content) parts.Text(*message.content);
  if (!message.tool_calls.empty()) {
    parts.Marker(markers_.section_begin);
    for (const ToolCall& call : message.tool_calls) {
      parts.Marker(markers_.call_begin);
      parts.Text(call.id);
      parts.Marker(markers_.argument_begin);
      parts.Text(call.arguments);
      parts.Marker(markers_.call_end);
    }
    parts.Marker(markers_.section_end);
  }
  if (!open) parts.Marker(markers_.end);
}

StatusOr<ChatTemplate::Parts> ChatTemplate::Assemble(const ChatPrompt& prompt) const {
  for (size_t i = 0; i < prompt.messages.size(); ++i)
    PERIGEE_RETURN_IF_ERROR(CheckMessage(prompt.messages[i], StrCat("messages[", i, "]")));
  if (prompt.continue_final_message) {
    if (prompt.messages.empty() || prompt.messages.back().role != "assistant" ||
        !prompt.messages.back().tool_calls.empty())
      return InvalidArgument(
          "continue_final_message: the last message must be an assistant's, without tool calls");
    if (prompt.add_generation_prompt)
      return InvalidArgument("continue_final_message: add_generation_prompt must be false");
  }
  Parts parts;
  PERIGEE_ASSIGN_OR_RETURN(const std::string tools, ToolDeclaration(prompt.tools_json));
  if (!tools.empty()) {
    parts.Marker(markers_.system);
    parts.Text("tool_declare");
    parts.Marker(markers_.middle);
    parts.Text(tools);
    parts.Marker(markers_.end);
  }
  for (const ChatMessage& message : prompt.messages)
    AppendMessage(message, prompt.continue_final_message && &message == &prompt.messages.back(), parts);
  if (prompt.add_generation_prompt) {
    parts.Marker(markers_.assistant);
    parts.Text("assistant");
    parts.Marker(markers_.middle);
  }
  return parts;
}

StatusOr<std::vector<TokenId>> ChatTemplate::Encode(const ChatPrompt& prompt) const {
  PERIGEE_ASSIGN_OR_RETURN(const Parts assembled, Assemble(prompt));
  std::vector<TokenId> ids;
  TextCutter cutter;
  std::vector<std::string_view> uncut;
  for (const Parts::Part& part : assembled.parts()) {
    if (part.marker) {
      cutter.Skip(tokenizer_->Bytes(*part.marker));
      ids.push_back(*part.marker);
      continue;
    }
    uncut.clear();
    cutter.Cut(part.text, uncut);
    for (const std::string_view text : uncut) {
      const std::vector<TokenId> encoded = tokenizer_->Encode(text, Tokenizer::Specials::kPlainText);
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
  }
  return ids;
}

StatusOr<std::string> ChatTemplate::Render(const ChatPrompt& prompt) const {
  PERIGEE_ASSIGN_OR_RETURN(const Parts assembled, Assemble(prompt));
  std::string text;
  for (const Parts::Part& part : assembled.parts())
    text += part.marker ? tokenizer_->Bytes(*part.marker) : std::string_view(part.text);
  return text;
}

}  // namespace perigee::text
