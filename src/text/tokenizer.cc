#include "text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/strings.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/special_tokens.h"
#include "text/vocab.h"

namespace perigee::text {
namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Vocab vocab, SpecialTokens specials)
      : vocab_(std::move(vocab)), specials_(std::move(specials)) {}

  std::vector<TokenId> Encode(std::string_view utf8, Specials specials) const override {
    std::vector<TokenId> ids;
    std::vector<std::string_view> parts;
    TextCutter().Cut(utf8, parts);
    Scratch scratch{BpeEncoder(vocab_), {}};
    for (const std::string_view part : parts) {
      size_t at = 0;
      if (specials == Specials::kRecognise) {
        while (const auto match = specials_.FindIn(part, at)) {
          EncodePlain(part.substr(at, match->begin - at), scratch, ids);
          ids.push_back(match->id);
          at = match->begin + specials_.Name(match->id).size();
        }
      }
      EncodePlain(part.substr(at), scratch, ids);
    }
    return ids;
  }

  int64_t vocab_size() const override { return vocab_.size() + SpecialTokens::kCount; }
  int64_t num_ranks() const override { return vocab_.size(); }
  std::string_view Bytes(TokenId id) const override {
    if (id >= 0 && id < vocab_.size()) return vocab_.Bytes(id);
    return specials_.Contains(id) ? std::string_view(specials_.Name(id)) : std::string_view();
  }
  std::optional<TokenId> SpecialId(std::string_view name) const override { return specials_.Find(name); }
  bool IsSkippedSpecial(TokenId id) const override { return specials_.Contains(id) && specials_.Skipped(id); }
  bool IsSpecial(TokenId id) const override { return specials_.Contains(id); }

 private:
  struct Scratch {
    BpeEncoder bpe;
    std::vector<std::string_view> pieces;
  };

  void EncodePlain(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
    scratch.pieces.clear();
    SplitPieces(text, scratch.pieces);
    for (const std::string_view piece : scratch.pieces) scratch.bpe.Encode(piece, ids);
  }

  Vocab vocab_;
  SpecialTokens specials_;
};

// The whole of a regular file of at most `max_bytes`.
StatusOr<std::string> ReadFile(const std::string& path, uintmax_t max_bytes) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return InvalidArgument(StrCat(path, ": ", error.message()));
  if (size > max_bytes)
    return InvalidArgument(
        StrCat(path, " has ", HumanBytes(size), ", more than the ", HumanBytes(max_bytes), " accepted"));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (size > 0) content << file.rdbuf();
  if (!file || !content) return InternalError(StrCat(path, " cannot be read"));
  return std::move(content).str();
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& folder) {
  constexpr uintmax_t kMaxFileBytes = 256u << 20;
  std::error_code error;
  const std::string ranks = folder + "/tiktoken.model";
  if (!std::filesystem::exists(ranks, error)) return NotFound(StrCat(ranks, " does not exist"));
  PERIGEE_ASSIGN_OR_RETURN(const std::string tiktoken_model, ReadFile(ranks, kMaxFileBytes));
  const std::string config = folder + "/tokenizer_config.json";
  std::string tokenizer_config;
  if (std::filesystem::exists(config, error)) {
    PERIGEE_ASSIGN_OR_RETURN(tokenizer_config, ReadFile(config, kMaxFileBytes));
    if (tokenizer_config.empty()) return InvalidArgument(StrCat(config, " is empty; expected a JSON object"));
  }
  return FromText(tiktoken_model, tokenizer_config, folder);
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromText(std::string_view tiktoken_model,
                                                         std::string_view tokenizer_config,
                                                         const std::string& where) {
  const std::string config_file = where + "/tokenizer_config.json";
  PERIGEE_ASSIGN_OR_RETURN(Vocab vocab, Vocab::Parse(tiktoken_model, where + "/tiktoken.model"));
  PERIGEE_ASSIGN_OR_RETURN(const std::vector<AddedToken> added,
                           ParseAddedTokens(tokenizer_config, config_file));
  PERIGEE_ASSIGN_OR_RETURN(SpecialTokens specials, SpecialTokens::Create(vocab.size(), added, config_file));
  return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(vocab), std::move(specials)));
}

}  // namespace perigee::text
