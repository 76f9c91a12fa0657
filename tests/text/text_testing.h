#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace perigee::text::testing {

// The bundled model's tokenizer: 1792 ranks, 256 special tokens.
const Tokenizer& TinyTokenizer();
std::string TinyModelFile(const std::string& name);

std::string Base64(std::string_view bytes);
// A tiktoken.model of the 256 single bytes, followed by `tokens`.
std::string TiktokenModel(const std::vector<std::string>& tokens = {});

// Random valid UTF-8: words, marks, digits, white space, Han, emoji, contractions.
std::string RandomText(std::mt19937& rng, size_t max_pieces);
std::string RandomBytes(std::mt19937& rng, size_t max_size);

std::string EncodeUtf8(uint32_t code);

}  // namespace perigee::text::testing
