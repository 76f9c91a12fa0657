#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

std::string SingleBytes() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (size_t b = 0; b < 256; ++b) {
    lines += {kDigits[b >> 2], kDigits[(b & 3) << 4]};
    lines += "== " + std::to_string(b) + "\n";
  }
  return lines;
}

}  // namespace

// A tiktoken.model, then from the first NUL byte on a tokenizer_config.json, then from the next one a text:
// an error of one line, or a tokenizer that keeps the text's bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using perigee::text::Tokenizer;
  perigee::SetLogLevel(perigee::LogLevel::kOff);
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  const std::string_view ranks = next();
  const std::string_view config = next();
  // Few inputs hold all 256 single bytes; one that begins with an empty line is given them, so that what lies
  // behind the reader is reached.
  const std::string completed =
      ranks.starts_with('\n') ? SingleBytes() + std::string(ranks) : std::string(ranks);
  const auto loaded = Tokenizer::FromText(completed, config, "DIR");
  if (!loaded.ok()) {
    PERIGEE_CHECK(loaded.status().message().starts_with("DIR/"));
    PERIGEE_CHECK(loaded.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const Tokenizer& tokenizer = **loaded;
  for (const auto specials : {Tokenizer::Specials::kRecognise, Tokenizer::Specials::kPlainText}) {
    const auto ids = tokenizer.Encode(rest, specials);
    std::string bytes, text;
    perigee::text::IncrementalDetokenizer detokenizer(tokenizer, false);
    for (const auto id : ids) {
      bytes += tokenizer.Bytes(id);
      text += detokenizer.Push(id);
    }
    PERIGEE_CHECK(bytes == rest);
    PERIGEE_CHECK(text + detokenizer.Flush() == perigee::text::ReplaceInvalidUtf8(rest));
  }
  return 0;
}
