#include "text/text_testing.h"

#include <fstream>
#include <sstream>

#include "base/check.h"

namespace perigee::text::testing {

std::string TinyModelFile(const std::string& name) {
  std::ifstream file(std::string(PERIGEE_MODELS "/tiny-kimi-linear/") + name, std::ios::binary);
  PERIGEE_CHECK_MSG(file.good(), name);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(PERIGEE_MODELS "/tiny-kimi-linear");
    return std::move(loaded).value();
  }();
  return *tokenizer;
}

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string TiktokenModel(const std::vector<std::string>& tokens) {
  std::string out;
  int rank = 0;
  const auto add = [&](std::string_view token) {
    out += Base64(token) + " " + std::to_string(rank++) + "\n";
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  for (const std::string& token : tokens) add(token);
  return out;
}

std::string EncodeUtf8(uint32_t code) {
  std::string out;
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 63));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 63));
    add(0x80 | (code & 63));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 63));
    add(0x80 | (code >> 6 & 63));
    add(0x80 | (code & 63));
  }
  return out;
}

std::string RandomText(std::mt19937& rng, size_t max_pieces) {
  static const std::vector<std::string> kPieces = {
      "a",      "b",          "Z",      "Q",    "the",    "Hello", " ",  " ",   "  ", "\n",   "\r\n",
      "\t",     "1",          "23",     "²",    "Ⅷ",      "'s",    "'T", "'ll", "’",  "'",    "ſ",
      "世",     "界",         "々",     "〆",   "〇",     "か",    "テ", "é",   "É",  "ǅ",    "ʰ",
      "\u0301", "्",           "я",      "Я",    "ß",      ".",     ",",  "!",   "—",  "🙂", "👩‍💻",
      "\u3000", "\u00a0",     "\u2028", "\x1c", "_",      "#",     "ا",  "٣",   "한", "𠀀",   "⺀",
      "\u0085", "<|im_end|>", "<|",     "|>",   "\u200d", "$"};
  std::uniform_int_distribution<size_t> count(0, max_pieces);
  std::uniform_int_distribution<size_t> pick(0, kPieces.size());
  std::uniform_int_distribution<uint32_t> any(0, 0x10FFFF);
  std::string out;
  for (size_t n = count(rng); n > 0; --n) {
    const size_t i = pick(rng);
    if (i < kPieces.size()) {
      out += kPieces[i];
      continue;
    }
    const uint32_t code = any(rng);
    out += EncodeUtf8(code >= 0xD800 && code <= 0xDFFF ? 0x4E00 : code);
  }
  return out;
}

std::string RandomBytes(std::mt19937& rng, size_t max_size) {
  std::uniform_int_distribution<size_t> count(0, max_size);
  std::uniform_int_distribution<int> any(0, 255);
  // Bytes around the borders of UTF-8 come up more often.
  constexpr uint8_t kBorders[] = {0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                  0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF3, 0xF4, 0xF5, 0xFF, 'a'};
  std::uniform_int_distribution<size_t> border(0, sizeof(kBorders) - 1);
  std::string out;
  for (size_t n = count(rng); n > 0; --n)
    out += static_cast<char>(any(rng) < 64 ? any(rng) : kBorders[border(rng)]);
  return out;
}

}  // namespace perigee::text::testing
