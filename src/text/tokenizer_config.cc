#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "text/json_format.h"
#include "text/special_tokens.h"

namespace perigee::text {
namespace {

using Json = nlohmann::ordered_json;

StatusOr<AddedToken> ParseEntry(const std::string& key, const Json& entry, const std::string& where) {
  AddedToken token;
  const char* const end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, token.id);
  if (error != std::errc() || stop != end || token.id < 0)
    return InvalidArgument(StrCat(where, ": ", Quoted(key), " is not a token id"));
  const std::string here = StrCat(where, " entry ", token.id);
  if (!entry.is_object()) return InvalidArgument(StrCat(here, ": expected an object"));
  const auto content = entry.find("content");
  if (content == entry.end() || !content->is_string())
    return InvalidArgument(StrCat(here, ": expected a string \"content\""));
  token.content = content->get<std::string>();
  if (const auto special = entry.find("special"); special != entry.end()) {
    if (!special->is_boolean()) return InvalidArgument(StrCat(here, ": \"special\" must be true or false"));
    token.special = special->get<bool>();
  }
  return token;
}

}  // namespace

StatusOr<std::vector<AddedToken>> ParseAddedTokens(std::string_view tokenizer_config,
                                                   const std::string& file) {
  std::vector<AddedToken> tokens;
  if (tokenizer_config.empty()) return tokens;
  // Finds every syntax error with its place, and bounds the nesting of what is parsed below.
  PERIGEE_ASSIGN_OR_RETURN(const std::string checked, FormatJson(tokenizer_config, {}, file));
  const Json config = Json::parse(checked, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return InvalidArgument(StrCat(file, ": expected a JSON object"));
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || decoder->is_null()) return tokens;
  const std::string where = StrCat(file, ": added_tokens_decoder");
  if (!decoder->is_object()) return InvalidArgument(StrCat(where, ": expected an object"));
  for (const auto& [key, entry] : decoder->items()) {
    PERIGEE_ASSIGN_OR_RETURN(AddedToken token, ParseEntry(key, entry, where));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace perigee::text
