#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace perigee::text {

std::string IncrementalDetokenizer::Push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_.IsSkippedSpecial(id)) return {};
  pending_ += tokenizer_.Bytes(id);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = DecodeUtf8(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    out += step.kind == Utf8Step::Kind::kChar ? rest.substr(0, step.size) : kReplacementCharacter;
    rest.remove_prefix(step.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string IncrementalDetokenizer::Flush() {
  return ReplaceInvalidUtf8(std::exchange(pending_, {}));
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special_tokens) {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special_tokens || !tokenizer.IsSkippedSpecial(id)) bytes += tokenizer.Bytes(id);
  }
  return ReplaceInvalidUtf8(bytes);
}

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop{std::move(text), {0, 0}};
    for (size_t i = 1, border = 0; i < stop.text.size(); ++i) {
      while (border > 0 && stop.text[i] != stop.text[border]) border = stop.borders[border];
      if (stop.text[i] == stop.text[border]) ++border;
      stop.borders.push_back(border);
    }
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::Stop::Advance(char c) {
  while (seen > 0 && c != text[seen]) seen = borders[seen];
  if (c == text[seen]) ++seen;
}

std::string StopMatcher::Push(std::string_view piece) {
  if (stopped()) return {};
  for (const char c : piece) {
    held_ += c;
    for (Stop& stop : stops_) {
      stop.Advance(c);
      if (stop.seen == stop.text.size() && stop.text.size() > matched_.size()) matched_ = stop.text;
    }
    if (stopped()) {
      held_.resize(held_.size() - matched_.size());
      return std::exchange(held_, {});
    }
  }
  size_t possible = 0;
  for (const Stop& stop : stops_) possible = std::max(possible, stop.seen);
  std::string out = held_.substr(0, held_.size() - possible);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::Flush() {
  for (Stop& stop : stops_) stop.seen = 0;
  return std::exchange(held_, {});
}

}  // namespace perigee::text
