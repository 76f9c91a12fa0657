#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "text/chat_template.h"
#include "text/jinja_lexer.h"
#include "text/text_testing.h"

namespace perigee::text {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string Bundled() {
  return testing::TinyModelFile("chat_template.jinja");
}

// The bundled template with `what` put in place of `where`.
std::string With(const std::string& where, const std::string& what) {
  std::string jinja = Bundled();
  const size_t at = jinja.find(where);
  EXPECT_NE(at, std::string::npos) << where;
  return jinja.replace(at, where.size(), what);
}

TEST(TemplateFeatures, NothingInTheBundledTemplate) {
  EXPECT_THAT(UnrenderedTemplateFeatures(Bundled()), IsEmpty());
}

// The same format written in another way: a macro, get(), image parts.
TEST(TemplateFeatures, NothingInAnotherWayOfWritingTheFormat) {
  EXPECT_THAT(UnrenderedTemplateFeatures(R"({#- Renders one content. -#}
{%- macro body(m) -%}
  {%- set c = m.get('content') -%}
  {%- if c is string -%}
    {{ c }}
  {%- elif c is not none -%}
    {% for part in c -%}
      {% if part['type'] == 'image' or 'image_url' in part -%}
        <|media_start|>image<|media_content|><|media_pad|><|media_end|>
      {% else -%}
        {{ part['text'] }}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}

{%- if tools -%}
  <|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{% for m in messages %}
  {%- set label = m.get('name') or m['role'] -%}
  {%- if m['role'] == 'user' -%}
    <|im_user|>{{ label }}<|im_middle|>
  {%- elif m['role'] == 'assistant' -%}
    <|im_assistant|>{{ label }}<|im_middle|>
  {%- else -%}
    <|im_system|>{{ label }}<|im_middle|>
  {%- endif -%}
  {%- if m['role'] == 'assistant' and m.get('tool_calls') -%}
    {{ body(m) }}<|tool_calls_section_begin|>
    {%- for call in m['tool_calls'] -%}
      {%- set id = call['id'] -%}
      <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- elif m['role'] == 'tool' -%}
    ## Return of {{ m.tool_call_id }}
{{ body(m) }}
  {%- elif m['content'] is not none -%}
    {{ body(m) }}
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
  <|im_assistant|>assistant<|im_middle|>
{%- endif -%}
)"),
              IsEmpty());
}

TEST(TemplateFeatures, EachPlantedFeatureIsFound) {
  const std::string loop = "{%- for message in messages -%}";
  const std::string prompt = "<|im_assistant|>assistant<|im_middle|>{%- endif -%}";
  const std::string content = "{{ message['content'] }}";
  struct Case {
    std::string jinja;
    std::string finding;
  };
  const Case cases[] = {
      {With(prompt, "<|im_assistant|>assistant<|im_middle|><think>\n{%- endif -%}"),
       "think tags: \"<think>\""},
      {With(prompt, "<|im_assistant|>assistant<|im_middle|>{{ '<think>' }}{%- endif -%}"), "think tags"},
      {With(content, "{{ message['content'].split('</think>')[-1] }}"), "think tags: \"</think>\""},
      {With(loop,
            "{%- if messages and messages[0]['role'] != 'system' -%}<|im_system|>system<|im_middle|>You are "
            "Kimi.<|im_end|>{%- endif -%}" +
                loop),
       "default system text: \"You are Kimi.\""},
      {With(loop, "{%- set hello = 'You are Kimi.' -%}" + loop), "default system text: \"You are Kimi.\""},
      {With(loop, "<|im_start|>" + loop), "prints the marker \"<|im_start|>\""},
      {With("<|im_end|>\n{%- endfor", "<|eot_id|>\n{%- endfor"), "prints the marker \"<|eot_id|>\""},
      {With(loop, "[BOS]" + loop), "a text of its own, such as a default system text: \"[BOS]\""},
      {With(loop, "{{ bos_token }}" + loop), "prints the begin-of-text token"},
      {With(loop, "{{- eos_token -}}" + loop), "prints the end-of-text token"},
      {With(loop, "{%- set ns = namespace(n=0) -%}" + loop), "state from message to message (namespace)"},
      {With(loop, "{{ strftime_now('%Y') }}" + loop), "prints the date or time"},
      {With(loop, "{%- if loop.first -%}{%- endif -%}" + loop), "by their place in the conversation (loop)"},
      {With(loop, "{%- for message in messages[1:] -%}"), "by place (1)"},
      {With(loop, "{%- for message in messages if message['content'] -%}"), "leaves out some messages"},
      {With(loop, "{%- if not messages -%}{{ raise_exception('no') }}{%- endif -%}" + loop), "refuses some"},
      {With(content, "{{ message['reasoning_content'] }}"), "renders reasoning (reasoning_content)"},
      {With(content, "{{ message.reasoning_content }}"), "renders reasoning (reasoning_content)"},
      {With(content, "{% if enable_thinking %}{% endif %}" + content), "a switch for thinking"},
      {With(content, "{{ message['content'] | trim }}"), "trims white space"},
      {With(content, "{{ message['content'].strip() }}"), "trims white space"},
      {With(content, "{{ message['content'] | upper }}"), "uses \"upper\""},
      {With(content, content + "{{ '\\n' }}"), "white space between its parts"},
      {With(content, "{{ message['content'] + '\\n' }}"), "white space between its parts"},
      {With("{{ '## Return of ' + message['tool_call_id'] + '\\n' }}",
            "{{ '## Return of ' }}{{ message['tool_call_id'] }}\n\n{{ '' }}"),
       "white space between its parts"},
      {With("message['role'] == 'tool'", "message['role'] == 'ipython'"), "\"ipython\""},
      {With("(separators=(',', ':'))", ""), "renders tools in another form"},
      {With("(separators=(',', ':'))", "(separators=(',', ','))"), "renders tools in another form"},
      {With("(separators=(',', ':'))", "(indent=2)"), "uses \"indent\""},
      {With("(separators=(',', ':'))", "(indent=2)"), "by place (2)"},
      {With("{{ tools | tojson(separators=(',', ':')) }}",
            "{% for t in tools %}{{ t | tojson }}{% endfor %}"),
       "renders tools one by one"},
      {With("<|im_end|>\n{%- endfor", "<|im_end|>\n\n{% endfor"), "white space between its parts"},
      {With("<|im_middle|>\n  {%- if message['role'] == 'tool'",
            "<|im_middle|> {% if message['role'] == 'tool'"),
       "white space between its parts"},
      {With("'## Return of '", "'Result of '"),
       "a text of its own, such as a default system text: \"Result of\""},
      {With("'## Return of '", "'Result of '"), "does not use \"## Return of\""},
      {With("message['name'] or ", ""), "does not use \"name\""},
      {With("{%- if tools -%}", "{%- if documents -%}"), "renders documents"},
      {With(loop, "{% include 'x.jinja' %}" + loop), "uses \"include\""},
      {With(loop, "{% raw %}{% endraw %}" + loop), "uses \"raw\""},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(UnrenderedTemplateFeatures(c.jinja), Contains(HasSubstr(c.finding))) << c.jinja;
  }
}

TEST(TemplateFeatures, AnotherFormatIsNamedByItsMarkers) {
  const auto findings = UnrenderedTemplateFeatures(
      "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
      "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
      "{% endif %}");
  EXPECT_THAT(findings, Contains("it prints the marker \"<|im_start|>\""));
  EXPECT_THAT(findings, Contains("it does not print <|im_user|>, we do"));
  EXPECT_THAT(findings, Contains("it does not print <|tool_call_begin|>, we do"));
}

TEST(TemplateFeatures, HostileTexts) {
  EXPECT_THAT(UnrenderedTemplateFeatures(""), Contains("it does not print <|im_end|>, we do"));
  for (const char* unclosed : {"{{ 'abc }}", "{% if", "{# never", "{{ {'a': 1}", "{{", "{%-"})
    EXPECT_THAT(UnrenderedTemplateFeatures(unclosed), ElementsAre(StartsWith("it cannot be read: ")))
        << unclosed;
  std::string many;
  for (int i = 0; i < 100'000; ++i)
    many += "{{ name" + std::to_string(i) + " }}<|m" + std::to_string(i) + "|>";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(UnrenderedTemplateFeatures(many), SizeIs(20));
  for (const char* repeated : {"{{", "<|", "{{'", "{", "{{}}", " ", "{%-%}\n"}) {
    std::string text;
    while (text.size() < 1'000'000) text += repeated;
    EXPECT_FALSE(UnrenderedTemplateFeatures(text).empty());
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);
}

// Texts of a template after white-space control, "T" for a tag.
std::string Texts(std::string_view jinja) {
  std::string out;
  const auto chunks = LexJinja(jinja);
  if (!chunks.ok()) return chunks.status().message();
  for (const JinjaChunk& chunk : *chunks) out += chunk.kind == JinjaChunk::Kind::kText ? chunk.text : "T";
  return out;
}

TEST(LexJinja, WhiteSpaceControl) {
  EXPECT_EQ(Texts("a {{ x }} b\n"), "a T b");
  EXPECT_EQ(Texts("a {{- x -}} \n b"), "aTb");
  EXPECT_EQ(Texts("a\n  {% if x %}\n  b\n  {% endif %}\nc"), "a\nT  b\nTc");
  EXPECT_EQ(Texts("a\n  {%+ if x +%}\nb"), "a\n  T\nb");
  EXPECT_EQ(Texts("a  {% if x %}  b"), "a  T  b");
  EXPECT_EQ(Texts("  {# c #}\nb"), "b");
  EXPECT_EQ(Texts("{% if x %}\n  {% if y %}b"), "TTb");
  EXPECT_EQ(Texts("{{ x }}\n  {{ y }}\n\n"), "T\n  T\n");
  EXPECT_EQ(Texts("a {#- c -#} b"), "ab");
  EXPECT_EQ(Texts("{ % {x} %} }}"), "{ % {x} %} }}");
}

TEST(LexJinja, Tokens) {
  const auto chunks = LexJinja("{{ m['a\\n\\'b'].x2 | f(1, {\"k\": {}}) - y -}}");
  ASSERT_TRUE(chunks.ok());
  ASSERT_THAT(*chunks, SizeIs(1));
  std::vector<std::string> texts;
  for (const JinjaToken& token : chunks->front().tokens) texts.push_back(token.text);
  EXPECT_THAT(texts, ElementsAre("m", "[", "a\n'b", "]", ".", "x2", "|", "f", "(", "1", ",", "{", "k", ":",
                                 "{", "}", "}", ")", "-", "y"));
}

}  // namespace
}  // namespace perigee::text
