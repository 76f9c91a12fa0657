#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/detokenizer.h"
#include "text/text_testing.h"

namespace perigee::text {
namespace {

using ::testing::HasSubstr;
using testing::TinyTokenizer;
using Ids = std::vector<TokenId>;

const ChatTemplate& Template() {
  static const ChatTemplate made = ChatTemplate::Create(TinyTokenizer()).value();
  return made;
}

ChatMessage Message(std::string role, std::optional<std::string> content) {
  return {.role = std::move(role), .content = std::move(content)};
}

ChatMessage ToolResult(std::string id, std::string content) {
  return {.role = "tool", .content = std::move(content), .tool_call_id = std::move(id)};
}

std::string Render(const ChatPrompt& prompt) {
  const auto text = Template().Render(prompt);
  return text.ok() ? *text : "error: " + text.status().message();
}

// Rendering and its ids; on plain content the ids are those of the rendered text.
std::string RenderAndCheckIds(const ChatPrompt& prompt) {
  const std::string text = Render(prompt);
  EXPECT_EQ(Template().Encode(prompt).value(), TinyTokenizer().Encode(text, Tokenizer::Specials::kRecognise));
  return text;
}

TEST(ChatTemplate, SingleTurn) {
  EXPECT_EQ(RenderAndCheckIds({.messages = {Message("user", "Tell me about the french revolution.")}}),
            "<|im_user|>user<|im_middle|>Tell me about the french revolution.<|im_end|><|im_assistant|>"
            "assistant<|im_middle|>");
  EXPECT_EQ(Template().Encode({.messages = {Message("user", "Hello")}}).value(),
            (Ids{1795, 318, 1809, 1077, 1794, 1796, 313, 1809}));
}

TEST(ChatTemplate, SystemTurnsAndANamedUser) {
  ChatMessage named = Message("user", "And dogs?");
  named.name = "mira";
  EXPECT_EQ(
      RenderAndCheckIds({.messages = {Message("system", "Answer with one short sentence."),
                                      Message("user", "Why do cats purr?"),
                                      Message("assistant", "Mostly because they are content."), named}}),
      "<|im_system|>system<|im_middle|>Answer with one short sentence.<|im_end|>"
      "<|im_user|>user<|im_middle|>Why do cats purr?<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|>Mostly because they are content.<|im_end|>"
      "<|im_user|>mira<|im_middle|>And dogs?<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|>");
}

TEST(ChatTemplate, OneToolOneCallItsResult) {
  ChatMessage call = Message("assistant", std::nullopt);
  call.tool_calls = {
      {"functions.convert_currency:0", "convert_currency", R"({"amount":30,"from":"EUR","to":"JPY"})"}};
  const std::string tools = R"([
    {"type": "function", "function": {
      "name": "convert_currency", "description": "Convert an amount between two currencies",
      "parameters": {"type": "object", "required": ["amount", "from", "to"],
        "properties": {"to": {"type": "string"}, "from": {"type": "string"}, "amount": {"type": "number"}}}}}])";
  EXPECT_EQ(
      RenderAndCheckIds({.messages = {Message("user", "How much is 30 euro in yen?"), call,
                                      ToolResult("functions.convert_currency:0", R"({"value":4920})")},
                         .tools_json = tools}),
      R"(<|im_system|>tool_declare<|im_middle|>[{"function":{"description":"Convert an amount between two currencies","name":"convert_currency","parameters":{"properties":{"amount":{"type":"number"},"from":{"type":"string"},"to":{"type":"string"}},"required":["amount","from","to"],"type":"object"}},"type":"function"}]<|im_end|><|im_user|>user<|im_middle|>How much is 30 euro in yen?<|im_end|><|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|><|tool_call_begin|>functions.convert_currency:0<|tool_call_argument_begin|>{"amount":30,"from":"EUR","to":"JPY"}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return of functions.convert_currency:0
{"value":4920}<|im_end|><|im_assistant|>assistant<|im_middle|>)");
}

TEST(ChatTemplate, TextAndParallelCalls) {
  ChatMessage calls = Message("assistant", "Let me check both places.");
  calls.tool_calls = {{"functions.stock_level:1", "stock_level", R"({"shelf": "A4"})"},
                      {"functions.stock_level:2", "stock_level", R"({"shelf": "B9"})"}};
  ChatMessage labelled = ToolResult("functions.stock_level:2", "0");
  labelled.name = "stock_level";
  EXPECT_EQ(
      RenderAndCheckIds({.messages = {calls, ToolResult("functions.stock_level:1", "12"), labelled}}),
      R"(<|im_assistant|>assistant<|im_middle|>Let me check both places.<|tool_calls_section_begin|><|tool_call_begin|>functions.stock_level:1<|tool_call_argument_begin|>{"shelf": "A4"}<|tool_call_end|><|tool_call_begin|>functions.stock_level:2<|tool_call_argument_begin|>{"shelf": "B9"}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return of functions.stock_level:1
12<|im_end|><|im_system|>stock_level<|im_middle|>## Return of functions.stock_level:2
0<|im_end|><|im_assistant|>assistant<|im_middle|>)");
}

TEST(ChatTemplate, NullAndEmptyContentAreTheSame) {
  ChatMessage null = Message("assistant", std::nullopt);
  null.tool_calls = {{"functions.f:0", "f", ""}};
  ChatMessage empty = null;
  empty.content = "";
  EXPECT_EQ(Render({.messages = {null}}), Render({.messages = {empty}}));
  EXPECT_THAT(Render({.messages = {null}}), HasSubstr("<|im_middle|><|tool_calls_section_begin|>"));
  EXPECT_EQ(Render({.messages = {Message("user", std::nullopt)}, .add_generation_prompt = false}),
            "<|im_user|>user<|im_middle|><|im_end|>");
}

TEST(ChatTemplate, OtherRolesHaveTheSystemMarker) {
  for (const char* role : {"system", "developer", "critic", "Assistant", "役"})
    EXPECT_EQ(RenderAndCheckIds({.messages = {Message(role, " x\n")}, .add_generation_prompt = false}),
              "<|im_system|>" + std::string(role) + "<|im_middle|> x\n<|im_end|>");
}

TEST(ChatTemplate, GenerationPromptAndContinuation) {
  const std::vector<ChatMessage> messages = {Message("user", "hi"), Message("assistant", "The answer")};
  const Ids opener = {1796, 313, 1809};
  const Ids on = Template().Encode({.messages = messages}).value();
  EXPECT_EQ(Ids(on.end() - 3, on.end()), opener);
  const Ids off = Template().Encode({.messages = messages, .add_generation_prompt = false}).value();
  EXPECT_EQ(off.back(), 1794);
  EXPECT_EQ(Ids(on.begin(), on.end() - 3), off);
  const ChatPrompt open{.messages = messages, .add_generation_prompt = false, .continue_final_message = true};
  EXPECT_THAT(Render(open), ::testing::EndsWith("assistant<|im_middle|>The answer"));
  EXPECT_EQ(Template().Encode(open).value(), Ids(off.begin(), off.end() - 1));

  ChatPrompt bad = open;
  bad.add_generation_prompt = true;
  EXPECT_THAT(Render(bad), HasSubstr("add_generation_prompt must be false"));
  bad = open;
  bad.messages.pop_back();
  EXPECT_THAT(Render(bad), HasSubstr("the last message must be an assistant's"));
  bad.messages.clear();
  EXPECT_THAT(Render(bad), HasSubstr("the last message must be an assistant's"));
}

// Every control token typed by a client, in every field.
TEST(ChatTemplate, ClientTextNeverBecomesAControlToken) {
  std::string all;
  for (TokenId id = 1792; id < 2048; ++id) all += TinyTokenizer().Bytes(id);
  ChatMessage call = Message("assistant", all);
  call.name = all;
  call.tool_calls = {{all, all, all}};
  ChatMessage result = ToolResult(all, all);
  const ChatPrompt hostile{.messages = {Message(all, all), call, result}, .tools_json = "[\"" + all + "\"]"};
  ChatMessage plain_call = Message("assistant", "x");
  plain_call.tool_calls = {{"x", "x", "x"}};
  const ChatPrompt plain{.messages = {Message("x", "x"), plain_call, ToolResult("x", "x")},
                         .tools_json = "[\"x\"]"};
  const auto markers = [](const ChatPrompt& prompt) {
    Ids out;
    const Ids ids = Template().Encode(prompt).value();
    for (const TokenId id : ids) {
      if (TinyTokenizer().IsSpecial(id)) out.push_back(id);
    }
    return out;
  };
  EXPECT_EQ(markers(hostile), markers(plain));
  EXPECT_EQ(markers(plain).size(), 3u + 3 + 8 + 3 + 2);
  EXPECT_EQ(Decode(TinyTokenizer(), Template().Encode(hostile).value(), false), Render(hostile));
}

TEST(ChatTemplate, ToolsAreSortedAndCompact) {
  const auto declared = [](const std::string& tools) {
    const std::string text = Render({.tools_json = tools, .add_generation_prompt = false});
    const std::string head = "<|im_system|>tool_declare<|im_middle|>";
    if (!text.starts_with(head)) return text;
    return text.substr(head.size(), text.size() - head.size() - std::string("<|im_end|>").size());
  };
  for (const char* none : {"", "[]", " [ ] ", "null"}) EXPECT_EQ(declared(none), "");
  EXPECT_EQ(declared(R"([ {"b": [3, {"z": 1, "a": 2}], "a": "ü\u00fc\n\ud83d\ude42"} , 1.0 ])"),
            "[{\"a\":\"üü\\n🙂\",\"b\":[3,{\"a\":2,\"z\":1}]},1.0]");
  EXPECT_EQ(declared("{}"), "error: tools: expected an array");
  EXPECT_EQ(declared("[1"), "error: tools: not valid JSON at byte 3");
  EXPECT_EQ(declared(std::string(200'000, '[')), "error: tools: nested deeper than 128 levels");
}

TEST(ChatTemplate, BadMessagesAreErrorsThatNameTheField) {
  const auto error = [](ChatMessage message) {
    const ChatPrompt prompt{.messages = {Message("user", "x"), std::move(message)}};
    EXPECT_FALSE(Template().Encode(prompt).ok());
    return Render(prompt);
  };
  EXPECT_EQ(error(Message("", "x")), "error: messages[1].role: must not be empty");
  EXPECT_EQ(error(Message("user", "\xFF")), "error: messages[1].content: not valid UTF-8");
  EXPECT_EQ(error(Message("\xED\xA0\x80", "x")), "error: messages[1].role: not valid UTF-8");
  EXPECT_EQ(error({.role = "user", .name = "\xC3", .content = "x"}),
            "error: messages[1].name: not valid UTF-8");
  EXPECT_EQ(error(Message("tool", "x")),
            "error: messages[1].tool_call_id: a tool message needs the id of the call that it answers");
  EXPECT_EQ(error(ToolResult("\xC3", "x")), "error: messages[1].tool_call_id: not valid UTF-8");
  EXPECT_EQ(error({.role = "user", .tool_calls = {{"functions.f:0", "f", "{}"}}}),
            "error: messages[1].tool_calls: only an assistant message may have them, not role \"user\"");
  EXPECT_EQ(error({.role = "assistant", .tool_calls = {{"a", "f", "{}"}, {"", "f", "{}"}}}),
            "error: messages[1].tool_calls[1].id: must not be empty");
  EXPECT_EQ(error({.role = "assistant", .tool_calls = {{"a\xFF", "f", "{}"}}}),
            "error: messages[1].tool_calls[0].id: not valid UTF-8");
  EXPECT_EQ(error({.role = "assistant", .tool_calls = {{"a", "f", "\xFF"}}}),
            "error: messages[1].tool_calls[0].function.arguments: not valid UTF-8");
  EXPECT_THAT(Render({.messages = {Message("user", std::string("a\0b", 3))}}),
              HasSubstr(std::string("a\0b", 3)));
}

TEST(ChatTemplate, LongPromptsAreCutAsTheirRenderedText) {
  // The markers count: 50,000 characters without white space, cut at 25,000 from the first marker on.
  std::string han;
  for (int i = 0; i < 50'000; ++i) han += i % 7 == 0 ? "世" : "界";
  // A cut inside "the" shows in the ids.
  std::string joined;
  while (joined.size() < 60'000) joined += "the";
  std::string words;
  while (words.size() < 450'000) words += "aaaaaaa bb ";
  for (const std::string& content : {han, joined, words + joined, words + han})
    RenderAndCheckIds({.messages = {Message("user", content), Message("assistant", content)}});
}

TEST(ChatTemplate, AMarkerIsNeverCut) {
  // 24,995 characters, so that the run's limit falls inside the closing marker.
  const std::string opening = "<|im_user|>user<|im_middle|>";
  const ChatPrompt prompt{.messages = {Message("user", std::string(24'995 - opening.size(), 'a'))}};
  const Ids ids = Template().Encode(prompt).value();
  EXPECT_EQ(Ids(ids.end() - 4, ids.end()), (Ids{1794, 1796, 313, 1809}));
}

TEST(ChatTemplate, NeedsTheMarkers) {
  const auto tokenizer =
      Tokenizer::FromText(testing::TiktokenModel(),
                          R"({"added_tokens_decoder": {"273": {"content": "<|other|>"}}})", "f")
          .value();
  const auto made = ChatTemplate::Create(*tokenizer);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(), "the tokenizer has no special token <|im_middle|>");
}

}  // namespace
}  // namespace perigee::text
