#include "server/tool_calls.h"

#include <gtest/gtest.h>

#include "base/strings.h"
#include "server/answer.h"
#include "server/api_fixture.h"

namespace perigee::server {
namespace {

const ToolMarkers& Markers() {
  static const ToolMarkers markers = ToolMarkers::Find(TinyTokenizer());
  return markers;
}

std::string Call(std::string_view header, std::string_view arguments) {
  return StrCat("<|tool_call_begin|>", header, "<|tool_call_argument_begin|>", arguments,
                "<|tool_call_end|>");
}

std::string Section(std::string_view inside) {
  return StrCat("<|tool_calls_section_begin|>", inside, "<|tool_calls_section_end|>");
}

// The answer to `output` in pieces of `step` tokens.
Answer Parse(std::string_view output, size_t step, ToolPolicy policy,
             engine::FinishReason finish = engine::FinishReason::kStop) {
  AnswerBuilder builder(TinyTokenizer(), Markers(), {.tools = std::move(policy)}, 0, 0);
  auto ids = Ids(output);
  std::string streamed;
  size_t streamed_calls = 0;
  for (size_t i = 0; i < ids.size(); i += step) {
    engine::Output out;
    for (size_t j = i; j < std::min(i + step, ids.size()); ++j) out.tokens.push_back({.id = ids[j]});
    AnswerDelta delta = builder.Push(std::move(out));
    streamed += delta.text;
    EXPECT_EQ(delta.first_call, streamed_calls);
    streamed_calls = builder.answer().calls.size();
  }
  streamed += builder.Push({.finish = finish}).text;
  EXPECT_EQ(streamed, builder.answer().text);
  return builder.answer();
}

TEST(ToolCalls, NamesAndIds) {
  struct Case {
    const char* header;
    const char* name;
    const char* id;
  };
  const Case cases[] = {
      {"functions.get_weather:0", "get_weather", "functions.get_weather:0"},
      {"functions.get_weather:12", "get_weather", "functions.get_weather:12"},
      {"functions.a.b.c:0", "a.b.c", "functions.a.b.c:0"},
      {"functions.my-tool:1", "my-tool", "functions.my-tool:1"},
      {"search:2", "search", "search:2"},
      {" functions.search:2\n", "search", "functions.search:2"},
      {"functions.search:2 extra", "search", "functions.search:2"},
      {"search", "search", "functions.search:0"},
      {"functions.search", "search", "functions.search:0"},
      {"functions.search:", "search:", "functions.search::0"},
      {"functions.functions.x:0", "functions.x", "functions.functions.x:0"},
      {"functionsx:0", "functionsx", "functionsx:0"},
      {"a:b:3", "a:b", "a:b:3"},
      {"functions.x:99999999999999999999999", "x", "functions.x:99999999999999999999999"},
      {"functions.über:0", "über", "functions.über:0"},
  };
  for (const Case& c : cases) {
    Answer answer = Parse(Section(Call(c.header, "{}")), 1, {.names = {c.name}});
    ASSERT_EQ(answer.calls.size(), 1u) << c.header;
    EXPECT_EQ(answer.calls[0].name, c.name);
    EXPECT_EQ(answer.calls[0].id, c.id);
    EXPECT_EQ(answer.text, "");
  }
}

TEST(ToolCalls, TheSameHoweverTheOutputIsCut) {
  std::string output =
      "Let me see. " +
      Section("\n" + Call("functions.f:3", " {\"a\": \"é<b>\"}\n") + " noise " + Call("functions.g:4", "")) +
      " \n";
  for (size_t step = 1; step < 60; ++step) {
    Answer answer = Parse(output, step, {.names = {"f", "g"}});
    EXPECT_EQ(answer.text, "Let me see. ");
    ASSERT_EQ(answer.calls.size(), 2u);
    EXPECT_EQ(answer.calls[0].arguments, " {\"a\": \"é<b>\"}\n");
    EXPECT_EQ(answer.calls[0].id, "functions.f:3");
    EXPECT_EQ(answer.calls[1].arguments, "{}");
    EXPECT_EQ(answer.calls[1].id, "functions.g:4");
  }
}

TEST(ToolCalls, TextAfterASectionIsContent) {
  Answer answer = Parse("a" + Section(Call("functions.f:0", "{}")) + " \n b c ", 1, {.names = {"f"}});
  EXPECT_EQ(answer.text, "a \n b c");
  EXPECT_EQ(answer.calls.size(), 1u);
}

TEST(ToolCalls, AnOutputThatBreaksOff) {
  const std::string open = "<|tool_calls_section_begin|>";
  std::string whole = Call("functions.f:0", "{\"a\":1}");
  // In the arguments or in the header: shown as text, since no client could read the arguments.
  Answer answer =
      Parse("hm" + open + whole + "<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{\"b", 1,
            {.names = {"f"}}, engine::FinishReason::kLength);
  EXPECT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.text, "hmfunctions.f:1{\"b");
  EXPECT_EQ(answer.end, AnswerEnd::kLength);
  EXPECT_EQ(
      Parse(open + "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", 1, {.names = {"f"}}).text,
      "functions.f:0");
  // Whole but for its mark: delivered.
  answer = Parse(open + "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"b\": 1}", 1,
                 {.names = {"f"}}, engine::FinishReason::kLength);
  ASSERT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.calls[0].arguments, "{\"b\": 1}");
  EXPECT_EQ(answer.text, "");
  answer = Parse(open + whole + "<|tool_call_begin|>functions.f", 1, {.names = {"f"}});
  EXPECT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.text, "functions.f");
  EXPECT_EQ(Parse(open + "stray", 1, {.names = {"f"}}).text, "");
  // Closed by the section's end, or by the next call.
  std::string unclosed = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}";
  EXPECT_EQ(Parse(Section(unclosed), 1, {.names = {"f"}}).calls.size(), 1u);
  EXPECT_EQ(Parse(Section(unclosed + whole), 1, {.names = {"f"}}).calls.size(), 2u);
  // Without a section around it.
  EXPECT_EQ(Parse("x" + whole, 1, {.names = {"f"}}).calls.size(), 1u);
}

// The tokens of a broken call are those of the shown text, with their places in it; the stop id is not.
TEST(ToolCalls, ABrokenCallKeepsItsTokens) {
  AnswerBuilder builder(TinyTokenizer(), Markers(), {.tools = ToolPolicy{.names = {"f"}}}, 0, 0);
  const engine::TokenId end = SpecialId("<|im_end|>");
  engine::Output out{.finish = engine::FinishReason::kStop, .stop_token = end};
  for (auto id : Ids("é<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{"))
    out.tokens.push_back({.id = id});
  out.tokens.push_back({.id = end});
  builder.Push(std::move(out));
  const Answer& answer = builder.answer();
  EXPECT_EQ(answer.text, "éf{");
  EXPECT_EQ(answer.end, AnswerEnd::kStop);
  EXPECT_EQ(answer.shown_tokens, answer.tokens.size());
  std::string listed;
  for (const AnswerToken& token : answer.tokens) {
    if (!token.content) continue;
    const std::string_view bytes = TinyTokenizer().Bytes(token.output.id);
    // "é" is one character of two bytes.
    if (bytes == "f" || bytes == "{") {
      EXPECT_EQ(token.text_offset, bytes == "f" ? 1 : 2);
    }
    listed += bytes;
  }
  EXPECT_EQ(listed, "éf{");
}

TEST(ToolCalls, MarkersNeverLeakAndSpelledOutMarkersAreText) {
  for (const char* marker :
       {"<|tool_calls_section_end|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"})
    EXPECT_EQ(Parse(StrCat("a", marker, "b"), 1, {}).text, "ab");
  AnswerBuilder builder(TinyTokenizer(), Markers(), {.tools = ToolPolicy{}}, 0, 0);
  engine::Output out{.finish = engine::FinishReason::kStop};
  for (auto id : Ids("<|tool_calls_section_begin|>", false)) out.tokens.push_back({.id = id});
  builder.Push(std::move(out));
  EXPECT_EQ(builder.answer().text, "<|tool_calls_section_begin|>");
}

TEST(ToolCalls, OnlyOfferedFunctionsAreDelivered) {
  std::string output = Section(Call("functions.g:0", "{}") + Call("functions.f:1", "{}"));
  Answer answer = Parse(output, 1, {.names = {"f"}});
  ASSERT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.calls[0].name, "f");
  // Without any, what a call says is not lost.
  answer = Parse("a" + output + "b", 1, {});
  EXPECT_TRUE(answer.calls.empty());
  EXPECT_EQ(answer.text, "afunctions.g:0{}functions.f:1{}b");
}

TEST(ToolCalls, OneCallOnlyEndsTheAnswer) {
  Answer answer = Parse(Section(Call("functions.f:0", "{}") + Call("functions.f:1", "{}")) + "more", 1,
                        {.names = {"f"}, .parallel = false});
  EXPECT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.end, AnswerEnd::kStop);
  EXPECT_EQ(answer.text, "");
}

TEST(ToolCalls, IdsOfOneReplyDiffer) {
  Answer answer =
      Parse(Section(Call("functions.f:0", "{}") + Call("functions.f:0", "{}")), 1, {.names = {"f"}});
  ASSERT_EQ(answer.calls.size(), 2u);
  EXPECT_EQ(answer.calls[1].id, "functions.f:1");
}

TEST(ToolCalls, AStopStringIsNotLookedForInACall) {
  AnswerBuilder builder(TinyTokenizer(), Markers(), {.stop = {"END"}, .tools = ToolPolicy{.names = {"f"}}}, 0,
                        0);
  engine::Output out{.finish = engine::FinishReason::kStop};
  for (auto id : Ids("E" + Section(Call("functions.f:0", "{\"x\":\"END\"}")) + "ND."))
    out.tokens.push_back({.id = id});
  builder.Push(std::move(out));
  EXPECT_EQ(builder.answer().text, "END.");
  EXPECT_EQ(builder.answer().calls.size(), 1u);
}

text::ChatMessage AssistantCalls(std::vector<std::pair<std::string, std::string>> calls) {
  text::ChatMessage m{.role = "assistant"};
  for (auto& [id, name] : calls) m.tool_calls.push_back({.id = id, .name = name, .arguments = "{}"});
  return m;
}

text::ChatMessage ToolResult(std::string id) {
  return {.role = "tool", .content = "1", .tool_call_id = std::move(id)};
}

TEST(ToolCallIds, ForeignIdsAreRewrittenWithTheirResults) {
  std::vector<text::ChatMessage> messages = {AssistantCalls({{"call_abc", "f"}, {"search:0", "g"}}),
                                             ToolResult("search:0"), ToolResult("call_abc"),
                                             AssistantCalls({{"call_abc", "f"}}), ToolResult("call_abc")};
  ToolCallIds ids = NormaliseToolCallIds(messages);
  EXPECT_EQ(messages[0].tool_calls[0].id, "functions.f:0");
  EXPECT_EQ(messages[0].tool_calls[1].id, "functions.g:1");
  EXPECT_EQ(messages[1].tool_call_id, "functions.g:1");
  EXPECT_EQ(messages[2].tool_call_id, "functions.f:0");
  EXPECT_EQ(messages[3].tool_calls[0].id, "functions.f:2");
  EXPECT_EQ(messages[4].tool_call_id, "functions.f:2");
  // The next answer goes on counting, whatever the model writes.
  EXPECT_EQ(ids.Claim("functions.f:2", "f"), "functions.f:3");
  EXPECT_EQ(ids.Claim("functions.f:4", "f"), "functions.f:4");
}

TEST(ToolCallIds, OwnIdsStay) {
  std::vector<text::ChatMessage> messages = {AssistantCalls({{"functions.f:3", "f"}}),
                                             ToolResult("functions.f:3"),
                                             AssistantCalls({{"x", "f"}}),
                                             ToolResult("x"),
                                             AssistantCalls({{"functions.f:0", "g"}}),
                                             ToolResult("unknown")};
  NormaliseToolCallIds(messages);
  EXPECT_EQ(messages[0].tool_calls[0].id, "functions.f:3");
  EXPECT_EQ(messages[1].tool_call_id, "functions.f:3");
  EXPECT_EQ(messages[2].tool_calls[0].id, "functions.f:4");
  EXPECT_EQ(messages[3].tool_call_id, "functions.f:4");
  EXPECT_EQ(messages[4].tool_calls[0].id, "functions.g:5");  // the name does not match the id
  EXPECT_EQ(messages[5].tool_call_id, "unknown");
}

TEST(ToolCallIds, CallsThatShareAnIdTakeTheirResultsInOrder) {
  std::vector<text::ChatMessage> messages = {AssistantCalls({{"same", "f"}, {"same", "f"}}),
                                             ToolResult("same"), ToolResult("same")};
  NormaliseToolCallIds(messages);
  EXPECT_EQ(messages[1].tool_call_id, "functions.f:0");
  EXPECT_EQ(messages[2].tool_call_id, "functions.f:1");
}

}  // namespace
}  // namespace perigee::server
