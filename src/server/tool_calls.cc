#include "server/tool_calls.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "text/json_format.h"

namespace perigee::server {
namespace {

constexpr std::string_view kPrefix = "functions.";
constexpr std::string_view kSpaces = " \t\r\n\f\v";

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view Strip(std::string_view text) {
  size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// Where ":123" begins that ends the text, or npos.
size_t NumberSuffix(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && IsDigit(text[end - 1])) --end;
  return end > 0 && end < text.size() && text[end - 1] == ':' ? end - 1 : std::string_view::npos;
}

// The longest prefix that ends in ":" and digits; all of it when there is none.
std::string_view IdInHeader(std::string_view header) {
  for (size_t colon = header.rfind(':'); colon != std::string_view::npos && colon > 0;
       colon = header.rfind(':', colon - 1)) {
    size_t end = colon + 1;
    while (end < header.size() && IsDigit(header[end])) ++end;
    if (end > colon + 1) return header.substr(0, end);
  }
  return header;
}

std::vector<text::TokenId> FindAll(const text::Tokenizer& tokenizer,
                                   std::initializer_list<const char*> names) {
  std::vector<text::TokenId> ids;
  for (const char* name : names) {
    if (auto id = tokenizer.SpecialId(name)) ids.push_back(*id);
  }
  return ids;
}

bool Contains(const std::vector<text::TokenId>& ids, text::TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::string ToolCallIds::Fresh(std::string_view name) {
  std::string id;
  do {
    id = StrCat(kPrefix, name, ":", next_++);
  } while (!used_.insert(id).second);
  return id;
}

std::string ToolCallIds::Claim(std::string_view id, std::string_view name) {
  size_t suffix = NumberSuffix(id);
  if (suffix == std::string_view::npos || !used_.emplace(id).second) return Fresh(name);
  int64_t number = 0;
  auto parsed = std::from_chars(id.data() + suffix + 1, id.data() + id.size(), number);
  if (parsed.ec == std::errc() && number < std::numeric_limits<int64_t>::max())
    next_ = std::max(next_, number + 1);
  return std::string(id);
}

std::string ToolCallIds::ClaimFromHistory(std::string_view id, std::string_view name) {
  size_t suffix = NumberSuffix(id);
  bool own_form = suffix != std::string_view::npos && id.substr(0, suffix) == StrCat(kPrefix, name);
  return own_form ? Claim(id, name) : Fresh(name);
}

ToolCallIds NormaliseToolCallIds(std::vector<text::ChatMessage>& messages) {
  ToolCallIds ids;
  // Per id of the client: the new ids of calls without a result yet. The last one stays for a repeated
  // result.
  std::map<std::string, std::deque<std::string>> renamed;
  for (text::ChatMessage& message : messages) {
    for (text::ToolCall& call : message.tool_calls) {
      std::string id = ids.ClaimFromHistory(call.id, call.name);
      auto& waiting = renamed[call.id];
      if (waiting.size() == 1 && message.tool_calls.size() == 1) waiting.clear();
      waiting.push_back(id);
      call.id = std::move(id);
    }
    if (message.tool_call_id.empty()) continue;
    auto it = renamed.find(message.tool_call_id);
    if (it == renamed.end()) continue;
    message.tool_call_id = it->second.front();
    if (it->second.size() > 1) it->second.pop_front();
  }
  return ids;
}

std::string FunctionName(std::string_view id) {
  size_t suffix = NumberSuffix(id);
  if (suffix != std::string_view::npos) id = id.substr(0, suffix);
  if (id.substr(0, kPrefix.size()) == kPrefix) id.remove_prefix(kPrefix.size());
  return std::string(id);
}

ToolMarkers ToolMarkers::Find(const text::Tokenizer& tokenizer) {
  ToolMarkers m;
  // The model writes the plural; its relatives are known to slip into the singular.
  m.section_begin = FindAll(tokenizer, {"<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"});
  m.section_end = FindAll(tokenizer, {"<|tool_calls_section_end|>", "<|tool_call_section_end|>"});
  m.call_begin = tokenizer.SpecialId("<|tool_call_begin|>");
  m.argument_begin = tokenizer.SpecialId("<|tool_call_argument_begin|>");
  m.call_end = tokenizer.SpecialId("<|tool_call_end|>");
  return m;
}

ToolCallParser::ToolCallParser(const text::Tokenizer& tokenizer, const ToolMarkers& markers,
                               ToolPolicy policy)
    : tokenizer_(&tokenizer), markers_(&markers), policy_(std::move(policy)) {}

bool ToolCallParser::IsMarker(text::TokenId id) const {
  return Contains(markers_->section_begin, id) || Contains(markers_->section_end, id) ||
         id == markers_->call_begin || id == markers_->argument_begin || id == markers_->call_end;
}

bool ToolCallParser::Push(text::TokenId id) {
  if (policy_.names.empty()) return !IsMarker(id);
  ++call_ids_;
  if (Contains(markers_->section_begin, id)) {
    if (state_ == State::kContent) state_ = State::kSection;
  } else if (Contains(markers_->section_end, id)) {
    FinishCall();
    after_section_ |= state_ != State::kContent;
    state_ = State::kContent;
  } else if (id == markers_->call_begin) {  // also without a section around it
    FinishCall();
    header_.clear();
    call_ids_ = 1;
    state_ = State::kHeader;
  } else if (id == markers_->argument_begin) {
    if (state_ == State::kHeader) {
      arguments_.clear();
      state_ = State::kArguments;
    }
  } else if (id == markers_->call_end) {
    FinishCall();
    if (state_ != State::kContent) state_ = State::kSection;
  } else if (state_ == State::kContent) {
    return true;
  } else if (state_ == State::kHeader) {
    header_.push_back(id);
  } else if (state_ == State::kArguments) {
    arguments_.push_back(id);
  }
  return false;
}

size_t ToolCallParser::Finish() {
  if (state_ == State::kArguments &&
      text::FormatJson(text::Decode(*tokenizer_, arguments_, false), {}, "arguments").ok()) {
    FinishCall();
    return 0;
  }
  return state_ == State::kHeader || state_ == State::kArguments ? call_ids_ : 0;
}

void ToolCallParser::FinishCall() {
  if (state_ != State::kArguments) return;
  state_ = State::kSection;
  std::string header = text::Decode(*tokenizer_, header_, false);
  std::string_view id = IdInHeader(Strip(header));
  text::ToolCall call;
  call.name = FunctionName(id);
  const auto& names = policy_.names;
  if (std::find(names.begin(), names.end(), call.name) == names.end()) {
    LogDebug(StrCat("a call of ", Quoted(call.name), " was dropped: the request does not offer it"));
    return;
  }
  if (!wants_more()) return;
  call.id = policy_.ids.Claim(id, call.name);
  call.arguments = text::Decode(*tokenizer_, arguments_, false);
  if (Strip(call.arguments).empty()) call.arguments = "{}";
  calls_.push_back(std::move(call));
}

}  // namespace perigee::server
