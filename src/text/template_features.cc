#include <algorithm>
#include <array>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/strings.h"
#include "text/chat_template.h"
#include "text/jinja_lexer.h"

namespace perigee::text {
namespace {

constexpr size_t kMaxFindings = 20;
constexpr std::string_view kReturnOf = "## Return of ";
constexpr std::string_view kSpace = " \t\r\n";

constexpr std::string_view kMarkers[] = {"<|im_user|>",
                                         "<|im_assistant|>",
                                         "<|im_system|>",
                                         "<|im_middle|>",
                                         "<|im_end|>",
                                         "<|tool_calls_section_begin|>",
                                         "<|tool_calls_section_end|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|tool_call_end|>"};
// Image parts are refused before rendering, so what a template makes of them does not matter.
constexpr std::string_view kMediaMarkers[] = {"<|media_start|>", "<|media_content|>", "<|media_pad|>",
                                              "<|media_end|>"};
// Texts that we print too, or that only image parts would print.
constexpr std::string_view kKnownTexts[] = {"tool_declare", "assistant", "## Return of", "image"};
// Words of the template language and names that every reading of the format needs.
constexpr std::string_view kKnownNames[] = {
    "for",    "endfor",   "if",        "elif",       "else",       "endif",         "set",
    "endset", "macro",    "endmacro",  "in",         "is",         "not",           "and",
    "or",     "none",     "None",      "true",       "True",       "false",         "False",
    "string", "defined",  "undefined", "iterable",   "mapping",    "sequence",      "tojson",
    "get",    "messages", "tools",     "separators", "generation", "endgeneration", "add_generation_prompt"};
// Fields of messages, parts and calls, roles, and the separators of compact JSON.
constexpr std::string_view kKnownStrings[] = {
    "role", "name", "content",   "tool_calls", "tool_call_id", "id",    "function",  "arguments", "type",
    "text", "user", "assistant", "system",     "tool",         "image", "image_url", ",",         ":"};

struct NamedFeature {
  std::string_view name;
  std::string_view sentence;
};
constexpr NamedFeature kNamedFeatures[] = {
    {"bos_token", "it prints the begin-of-text token"},
    {"eos_token", "it prints the end-of-text token"},
    {"strftime_now", "it prints the date or time"},
    {"date_string", "it prints the date or time"},
    {"datetime", "it prints the date or time"},
    {"now", "it prints the date or time"},
    {"namespace", "it carries state from message to message (namespace)"},
    {"loop", "it treats messages by their place in the conversation (loop)"},
    {"raise_exception", "it refuses some conversations (raise_exception)"},
    {"reasoning_content", "it renders reasoning (reasoning_content)"},
    {"reasoning", "it renders reasoning (reasoning)"},
    {"thinking", "it has a switch for thinking (thinking)"},
    {"enable_thinking", "it has a switch for thinking (enable_thinking)"},
    {"documents", "it renders documents"},
    {"trim", "it trims white space (trim)"},
    {"strip", "it trims white space (strip)"},
    {"default", "it fills in default values (default)"},
};

bool Contains(std::span<const std::string_view> list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string_view Strip(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

class Inspector {
 public:
  std::vector<std::string> Run(const std::vector<JinjaChunk>& chunks) {
    for (const JinjaChunk& chunk : chunks) {
      if (chunk.kind == JinjaChunk::Kind::kStatement) CollectLocals(chunk.tokens);
    }
    for (const JinjaChunk& chunk : chunks) {
      if (chunk.kind == JinjaChunk::Kind::kText) {
        // The line break of "## Return of ID", after the id.
        const bool after_id = tags_since_return_ <= 1 && chunk.text == "\n";
        tags_since_return_ = kLongAgo;
        InspectText(chunk.text, after_id);
      } else {
        InspectTag(chunk);
      }
    }
    ReportMissing();
    return std::move(findings_);
  }

 private:
  using Kind = JinjaToken::Kind;
  static constexpr int kLongAgo = 2;

  void Find(std::string sentence) {
    if (findings_.size() < kMaxFindings &&
        std::find(findings_.begin(), findings_.end(), sentence) == findings_.end())
      findings_.push_back(std::move(sentence));
  }

  // Names that the template itself defines: set x, for x in, macro f(a, b).
  void CollectLocals(const std::vector<JinjaToken>& tokens) {
    if (tokens.empty()) return;
    const std::string& keyword = tokens[0].text;
    if (keyword != "set" && keyword != "for" && keyword != "macro") return;
    for (size_t i = 1; i < tokens.size(); ++i) {
      if (tokens[i].text == "=" || tokens[i].text == "in") break;
      if (tokens[i].kind == Kind::kName && !NamedSentence(tokens[i].text)) locals_.insert(tokens[i].text);
    }
  }

  static std::optional<std::string> NamedSentence(std::string_view name) {
    for (const NamedFeature& f : kNamedFeatures) {
      if (f.name == name) return std::string(f.sentence);
    }
    return std::nullopt;
  }

  void InspectTag(const JinjaChunk& chunk) {
    const auto has = [&](Kind kind, std::string_view text) {
      return std::any_of(chunk.tokens.begin(), chunk.tokens.end(),
                         [&](const JinjaToken& t) { return t.kind == kind && t.text == text; });
    };
    const bool has_return = has(Kind::kString, kReturnOf);
    tags_since_return_ = has_return                                    ? 0
                         : chunk.kind == JinjaChunk::Kind::kExpression ? tags_since_return_ + 1
                                                                       : kLongAgo;
    for (const JinjaToken& token : chunk.tokens) InspectToken(token, has_return);
    const bool loop = !chunk.tokens.empty() && chunk.tokens[0].text == "for";
    if (loop && has(Kind::kName, "if")) Find("it leaves out some messages (a loop with a condition)");
    if (loop && has(Kind::kName, "tools")) Find("it renders tools one by one");
    if (chunk.kind == JinjaChunk::Kind::kExpression && has(Kind::kName, "tools") &&
        !(has(Kind::kName, "tojson") && has(Kind::kString, ",") && has(Kind::kString, ":")))
      Find("it renders tools in another form than compact JSON");
  }

  void InspectToken(const JinjaToken& token, bool line_break_allowed) {
    switch (token.kind) {
      case Kind::kOperator:
        break;
      case Kind::kNumber:
        Find(StrCat("it picks messages or text by place (", token.text, ")"));
        break;
      case Kind::kName:
        Seen(token.text);
        if (const auto sentence = NamedSentence(token.text)) {
          Find(*sentence);
        } else if (!Contains(kKnownNames, token.text) && !Contains(kKnownStrings, token.text) &&
                   !locals_.contains(token.text)) {
          Find(StrCat("it uses ", Quoted(token.text)));
        }
        break;
      case Kind::kString:
        Seen(token.text);
        if (Contains(kKnownStrings, token.text)) break;
        if (const auto sentence = NamedSentence(token.text)) {
          Find(*sentence);
        } else {
          InspectText(token.text, line_break_allowed && token.text == "\n");
        }
        break;
    }
  }

  // Text that is printed: markers, and what stands between them.
  void InspectText(std::string_view text, bool space_allowed) {
    bool beside_media = false;
    while (!text.empty()) {
      const size_t begin = text.find("<|");
      const size_t end = begin == std::string_view::npos ? begin : text.find("|>", begin);
      const std::string_view marker =
          end == std::string_view::npos ? std::string_view() : text.substr(begin, end + 2 - begin);
      const bool media = Contains(kMediaMarkers, marker);
      InspectPlain(text.substr(0, marker.empty() ? text.size() : begin),
                   space_allowed || beside_media || media);
      if (marker.empty()) return;
      Seen(marker);
      if (!media && !Contains(kMarkers, marker)) Find(StrCat("it prints the marker ", Quoted(marker)));
      beside_media = media;
      text.remove_prefix(end + 2);
    }
  }

  void InspectPlain(std::string_view text, bool space_allowed) {
    if (text.empty()) return;
    const std::string_view words = Strip(text);
    if (words.empty()) {
      if (!space_allowed) Find("it prints white space between its parts");
    } else if (words.find("think") != std::string_view::npos) {
      Find(StrCat("it prints think tags: ", Quoted(words)));
    } else if (!Contains(kKnownTexts, words)) {
      Find(StrCat("it prints a text of its own, such as a default system text: ", Quoted(words)));
    } else {
      Seen(words);
      if (words == Strip(kReturnOf)) {
        tags_since_return_ = 0;
        if (text != kReturnOf) Find("it prints white space around \"## Return of\"");
      } else if (text.size() != words.size() && !space_allowed) {
        Find("it prints white space between its parts");
      }
    }
  }

  void Seen(std::string_view what) { seen_.emplace(what); }

  void ReportMissing() {
    for (const std::string_view marker : kMarkers) {
      if (!seen_.contains(std::string(marker))) Find(StrCat("it does not print ", marker, ", we do"));
    }
    constexpr std::array<std::string_view, 4> kNeeded = {"tool_declare", "## Return of", "name",
                                                         "add_generation_prompt"};
    for (const std::string_view what : kNeeded) {
      if (!seen_.contains(std::string(what))) Find(StrCat("it does not use ", Quoted(what), ", we do"));
    }
  }

  std::vector<std::string> findings_;
  std::unordered_set<std::string> locals_;
  std::unordered_set<std::string> seen_;
  int tags_since_return_ = kLongAgo;  // expressions since "## Return of " was printed
};

}  // namespace

std::vector<std::string> UnrenderedTemplateFeatures(std::string_view jinja) {
  const StatusOr<std::vector<JinjaChunk>> chunks = LexJinja(jinja);
  if (!chunks.ok()) return {StrCat("it cannot be read: ", chunks.status().message())};
  return Inspector().Run(*chunks);
}

}  // namespace perigee::text
