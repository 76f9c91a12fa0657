#include "server/openai/chat_request.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "server/field_reader-inl.h"

namespace perigee::server {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// A string, null or absent (both nothing), or a list of text parts.
void ReadContent(FieldReader& reader, text::ChatMessage& message) {
  const Json* content = reader.Find("content");
  if (!content) return;
  if (content->is_string()) {
    message.content = content->get<std::string>();
    return;
  }
  if (!content->is_array()) return reader.Fail("content", "must be a string or a list of parts");
  message.content.emplace();
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    std::string at = StrCat("content[", i, "]");
    if (!part.is_object()) return reader.Fail(at, "must be an object");
    FieldReader inner = reader.Nested(part, at);
    inner.Find("type");
    inner.Find("text");
    inner.RefuseUnknown({"cache_control", "annotations"});
    auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return reader.Fail(StrCat(at, ".type"), "must be a string");
    if (*type != "text")
      return reader.Fail(StrCat(at, ".type"), StrCat("must be \"text\": this model reads no ",
                                                     Quoted(type->get<std::string>()), " parts"));
    auto text = part.find("text");
    if (text == part.end() || !text->is_string()) return reader.Fail(StrCat(at, ".text"), "must be a string");
    *message.content += text->get_ref<const std::string&>();
    reader.Adopt(inner);
  }
}

void ReadToolCall(FieldReader& reader, text::ToolCall& call) {
  reader.Read("id", call.id);
  reader.Find("type");
  const Json* function = reader.Find("function");
  if (!function || !function->is_object()) return reader.Fail("function", "must be an object");
  FieldReader inner = reader.Nested(*function, "function");
  inner.Read("name", call.name);
  if (call.name.empty()) inner.Fail("name", "must be a string that is not empty");
  if (const Json* arguments = inner.Find("arguments")) {
    call.arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump();
  }
  inner.RefuseUnknown({});
  reader.Adopt(inner);
  reader.RefuseUnknown({"index"});
}

void ReadToolCalls(FieldReader& reader, text::ChatMessage& message) {
  const Json* calls = reader.Find("tool_calls");
  if (!calls) return;
  if (!calls->is_array()) return reader.Fail("tool_calls", "must be a list");
  for (size_t i = 0; i < calls->size(); ++i) {
    std::string at = StrCat("tool_calls[", i, "]");
    if (!(*calls)[i].is_object()) return reader.Fail(at, "must be an object");
    FieldReader inner = reader.Nested((*calls)[i], at);
    ReadToolCall(inner, message.tool_calls.emplace_back());
    reader.Adopt(inner);
  }
}

void ReadMessage(FieldReader& reader, text::ChatMessage& message) {
  reader.Read("role", message.role);
  if (std::find(std::begin(kRoles), std::end(kRoles), message.role) == std::end(kRoles))
    return reader.Fail(
        "role", StrCat("must be system, developer, user, assistant or tool, not ", Quoted(message.role)));
  reader.Read("name", message.name);
  ReadContent(reader, message);
  if (message.role == "tool") {
    reader.Read("tool_call_id", message.tool_call_id);
    if (message.tool_call_id.empty()) reader.Fail("tool_call_id", "must be a string that is not empty");
  }
  if (message.role == "assistant") ReadToolCalls(reader, message);
  for (const char* name : {"tool_calls", "tool_call_id"}) {
    if (!reader.known(name)) reader.RefuseUnlessEmpty(name);
  }
  // What answers of other servers bring with them.
  for (const char* name :
       {"refusal", "audio", "function_call", "reasoning", "reasoning_content", "prefix", "partial"})
    reader.RefuseUnlessEmpty(name);
  reader.RefuseUnknown({"id", "annotations", "cache_control"});
}

void ReadMessages(FieldReader& reader, std::vector<text::ChatMessage>& messages) {
  const Json* list = reader.Find("messages");
  if (!list || !list->is_array() || list->empty())
    return reader.Fail("messages", "must be a list with at least one message");
  for (size_t i = 0; i < list->size(); ++i) {
    std::string at = StrCat("messages[", i, "]");
    if (!(*list)[i].is_object()) return reader.Fail(at, "must be an object");
    FieldReader inner = reader.Nested((*list)[i], at);
    ReadMessage(inner, messages.emplace_back());
    reader.Adopt(inner);
    if (reader.failed()) return;
  }
}

// "none" leaves the tools out of the prompt and lets no call through; forcing a call is not supported.
void ReadToolChoice(FieldReader& reader, bool& none) {
  const Json* choice = reader.Find("tool_choice");
  if (!choice) return;
  if (*choice == "none") {
    none = true;
  } else if (*choice != "auto") {
    reader.Fail("tool_choice", "must be \"auto\" or \"none\": this server cannot force a tool call");
  }
}

void ReadTools(FieldReader& reader, ChatRequest& request) {
  reader.RefuseUnlessEmpty("functions");
  bool none = false;
  ReadToolChoice(reader, none);
  reader.Read("parallel_tool_calls", request.tools.parallel);
  const Json* tools = reader.Find("tools");
  if (!tools) return;
  if (!tools->is_array()) return reader.Fail("tools", "must be a list");
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    std::string at = StrCat("tools[", i, "]");
    if (!tool.is_object()) return reader.Fail(at, "must be an object");
    if (tool.value("type", Json()) != "function")
      return reader.Fail(StrCat(at, ".type"), "must be \"function\"");
    Json function = tool.value("function", Json());
    if (!function.is_object()) return reader.Fail(StrCat(at, ".function"), "must be an object");
    Json name = function.value("name", Json());
    if (!name.is_string() || name.get_ref<const std::string&>().empty())
      return reader.Fail(StrCat(at, ".function.name"), "must be a string that is not empty");
    if (!none) request.tools.names.push_back(name.get<std::string>());
  }
  if (!none && !tools->empty()) request.prompt.tools_json = tools->dump();
}

void ReadLogprobs(FieldReader& reader, engine::SamplingParams& sampling) {
  reader.Read("logprobs", sampling.logprobs);
  std::optional<int64_t> top;
  reader.Read("top_logprobs", 0, engine::kMaxTopLogprobs, top);
  if (top && !sampling.logprobs) reader.Fail("top_logprobs", "needs logprobs to be true");
  if (top) sampling.top_logprobs = static_cast<int32_t>(*top);
}

void ReadContinuation(FieldReader& reader, ChatRequest& request) {
  bool add = true;
  reader.Read("continue_final_message", request.continue_final_message);
  reader.Read("add_generation_prompt", add);
  bool explicit_add = add && reader.Find("add_generation_prompt");
  request.prompt.add_generation_prompt = add && !request.continue_final_message;
  if (!request.continue_final_message || reader.failed()) return;
  if (explicit_add) return reader.Fail("continue_final_message", "cannot go with add_generation_prompt");
  const text::ChatMessage& last = request.prompt.messages.back();
  if (last.role != "assistant" || !last.tool_calls.empty())
    reader.Fail("continue_final_message", "needs an assistant message without tool calls at the end");
}

void ReadResponseFormat(FieldReader& reader) {
  const Json* format = reader.Find("response_format");
  if (!format) return;
  if (!format->is_object() || format->value("type", Json()) != "text")
    reader.Fail("response_format", "is not supported by this server: only {\"type\": \"text\"} is accepted");
}

void ReadModalities(FieldReader& reader) {
  const Json* modalities = reader.Find("modalities");
  if (modalities && *modalities != Json::array({"text"}))
    reader.Fail("modalities", "must be [\"text\"]: this model gives nothing else");
}

}  // namespace

std::optional<ApiError> ParseChatRequest(std::string_view body, ChatRequest& request) {
  Json json;
  if (auto error = ParseBody(body, json)) return error;
  FieldReader reader(json);
  reader.Read("model", request.model);
  ReadMessages(reader, request.prompt.messages);
  GenerationFields& generation = request.generation;
  ReadSampling(reader, generation);
  // The newer name wins when both are given.
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  reader.Read("max_tokens", 0, kAny, generation.max_tokens);
  reader.Read("max_completion_tokens", 0, kAny, generation.max_tokens);
  if (reader.Find("max_completion_tokens")) request.max_tokens_field = "max_completion_tokens";
  ReadLogprobs(reader, generation.sampling);
  ReadTools(reader, request);
  ReadResponseFormat(reader);
  for (const char* name : {"audio", "chat_template", "chat_template_kwargs", "echo"})
    reader.RefuseUnlessEmpty(name);
  ReadContinuation(reader, request);
  reader.Read("stream", generation.stream);
  ReadStreamOptions(reader, request.include_usage);
  ReadModalities(reader);
  reader.RefuseUnknown(kHarmlessFields);
  if (reader.failed()) return reader.error();
  request.tools.ids = NormaliseToolCallIds(request.prompt.messages);
  return std::nullopt;
}

}  // namespace perigee::server
