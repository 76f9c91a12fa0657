#include "model/kimi_linear/config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/strings.h"
#include "model/config_reader.h"
#include "tensor/safetensors.h"

namespace perigee::model {
namespace {

// Far above any model of this family, and low enough that no product of sizes leaves 64 bits.
constexpr int64_t kMaxHidden = int64_t{1} << 17;
constexpr int64_t kMaxIntermediate = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 8192;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxLatent = 16384;
constexpr int64_t kMaxExperts = 8192;
constexpr int64_t kMaxShared = 64;
constexpr int64_t kMaxConv = 64;
constexpr int64_t kMaxExpertsInAll = int64_t{1} << 20;
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxFileBytes = size_t{1} << 24;

constexpr std::string_view kArchitecture = "KimiLinearForCausalLM";
constexpr std::string_view kModelType = "kimi_linear";

ConfigValue Text(std::string_view v) {
  return {std::string(v)};
}

void CheckArchitecture(ConfigReader& in) {
  // Kimi-K3 nests its text model and may call it by our names inside.
  in.RequireAbsentOr("text_config", {}, "the nested form of Kimi-K3 is not supported");
  if (const auto found = in.Require({"architectures"})) {
    const std::vector<std::string> names =
        in.OptionalStringList({"architectures"}).value_or(std::vector<std::string>{});
    if (std::find(names.begin(), names.end(), kArchitecture) == names.end())
      in.Fail(found->key, StrCat("is ", found->value->Text(), "; accepted: [\"", kArchitecture, "\"]"));
  }
  const std::string type = in.String({"model_type"});
  if (type != kModelType)
    in.Fail("model_type", StrCat("is ", Quoted(type), "; accepted: \"", kModelType, "\""));
}

void RefuseRopeScaling(ConfigReader& in) {
  for (const auto& [key, type, old_type] :
       {std::tuple("rope_scaling", "rope_scaling.rope_type", "rope_scaling.type"),
        std::tuple("rope_parameters", "rope_parameters.rope_type", "rope_parameters.type")}) {
    const auto scaling = in.Find({key});
    if (!scaling) continue;
    const auto kind = in.Find({type, old_type});
    if (kind && *kind->value == Text("default")) continue;
    const auto& shown = kind ? *kind : *scaling;
    in.Fail(
        shown.key,
        StrCat("is ", shown.value->Text(),
               "; accepted: null, or rope_type \"default\" (the model has no rotary embedding to scale)"));
  }
}

// Switches of later models and of other families that share keys with this one. Their default changes
// nothing; any other value would change the mathematics or the tensors.
void RefuseOtherForms(ConfigReader& in) {
  constexpr std::string_view kQuantized = "quantized checkpoints are not supported";
  for (std::string_view key : {"quantization_config", "compression_config", "quantization"})
    in.RequireAbsentOr(key, {}, kQuantized);

  constexpr std::string_view kK3 = "a Kimi-K3 feature that is not supported";
  for (std::string_view key :
       {"linear_attn_config.gate_lower_bound", "gate_lower_bound", "routed_expert_hidden_size"})
    in.RequireAbsentOr(key, {}, kK3);
  for (std::string_view key : {"linear_attn_config.use_full_rank_gate", "use_full_rank_gate",
                               "latent_moe_use_norm", "mla_use_output_gate"}) {
    in.RequireAbsentOr(key, {{false}}, kK3);
  }
  in.RequireAbsentOr("attn_res_block_size", {{int64_t{0}}}, kK3);
  for (std::string_view key : {"activation_situ_beta", "activation_situ_linear_beta"})
    in.RequireAbsentOr(key, {{1.0}}, kK3);
  in.RequireAbsentOr("q_lora_rank", {}, "MLA queries come from one q_proj");

  for (std::string_view key : {"num_nextn_predict_layers", "num_mtp_layers"})
    in.RequireAbsentOr(key, {{int64_t{0}}}, "multi-token prediction layers are not supported");
  for (std::string_view key : {"tie_word_embeddings", "attention_bias", "mlp_bias"})
    in.RequireAbsentOr(key, {{false}}, "the model has an lm_head of its own and no biases");
  RefuseRopeScaling(in);
  in.RequireAbsentOr("sliding_window", {}, "attention sees the whole context");
  in.RequireAbsentOr("topk_method", {Text("noaux_tc")}, "the router selects by score plus bias");
  in.RequireAbsentOr("scoring_func", {Text("sigmoid")}, "the router's scores are sigmoids");
}

// Required keys that have one accepted value.
void CheckFixedValues(ConfigReader& in) {
  const auto only = [&](ConfigReader::Names names, const ConfigValue& accepted, std::string_view why) {
    const auto found = in.Require(names);
    if (found && !(*found->value == accepted))
      in.Fail(found->key,
              StrCat("is ", found->value->Text(), "; accepted: ", accepted.Text(), " (", why, ")"));
  };
  only({"hidden_act"}, Text("silu"), "the only activation that is supported");
  only({"mla_use_nope"}, {true}, "rotary embeddings in MLA are not supported");
  only({"num_expert_group", "n_group"}, {int64_t{1}}, "experts are chosen from one group");
  only({"topk_group"}, {int64_t{1}}, "experts are chosen from one group");
  // Absent in the form that newer transformers versions write, where the router is always a sigmoid one.
  if (in.Has("moe_router_activation_func") || !in.Has("mlp_layer_types"))
    only({"moe_router_activation_func"}, Text("sigmoid"), "the router's scores are sigmoids");
}

void ReadSizes(ConfigReader& in, KimiLinearConfig& c) {
  c.hidden_size = in.Int({"hidden_size"}, 1, kMaxHidden);
  c.num_hidden_layers = in.Int({"num_hidden_layers"}, 1, kMaxLayers);
  c.intermediate_size = in.Int({"intermediate_size", "dense_ffn_hidden"}, 1, kMaxIntermediate);
  c.vocab_size = in.Int({"vocab_size"}, 1, kMaxVocab);
  c.model_max_length = in.Int({"model_max_length", "max_position_embeddings"}, 1, kMaxId);
  c.rms_norm_eps = in.PositiveDouble({"rms_norm_eps"}, 0.1);

  c.kda_num_heads =
      in.Int({"linear_attn_config.num_heads", "linear_num_heads", "linear_num_key_heads"}, 1, kMaxHeads);
  c.kda_head_dim =
      in.Int({"linear_attn_config.head_dim", "linear_head_dim", "linear_key_head_dim"}, 1, kMaxHeadDim);
  in.RequireAbsentOr("linear_num_value_heads", {{c.kda_num_heads}}, "as many value heads as key heads");
  in.RequireAbsentOr("linear_value_head_dim", {{c.kda_head_dim}}, "values are as wide as keys");
  c.short_conv_kernel_size =
      in.Int({"linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"}, 2, kMaxConv);

  c.num_attention_heads = in.Int({"num_attention_heads"}, 1, kMaxHeads);
  c.kv_lora_rank = in.Int({"kv_lora_rank"}, 1, kMaxLatent);
  c.qk_nope_head_dim = in.Int({"qk_nope_head_dim"}, 1, kMaxHeadDim);
  c.qk_rope_head_dim = in.Int({"qk_rope_head_dim"}, 0, kMaxHeadDim);
  c.v_head_dim = in.Int({"v_head_dim"}, 1, kMaxHeadDim);

  c.num_experts = in.Int({"num_experts", "num_local_experts", "n_routed_experts"}, 1, kMaxExperts);
  c.num_experts_per_token = in.Int({"num_experts_per_token", "num_experts_per_tok"}, 1, c.num_experts);
  c.num_shared_experts = in.Int({"num_shared_experts", "n_shared_experts"}, 0, kMaxShared);
  c.moe_intermediate_size = in.Int({"moe_intermediate_size"}, 1, kMaxHidden);
  c.routed_scaling_factor = in.PositiveDouble({"routed_scaling_factor"}, 1e6);
  c.moe_renormalize = in.Bool({"moe_renormalize", "norm_topk_prob"});

  for (int64_t id : in.IntOrList({"eos_token_id"}, 0, c.vocab_size - 1))
    c.eos_token_ids.push_back(static_cast<int32_t>(id));
  c.bos_token_id = static_cast<int32_t>(in.OptionalInt({"bos_token_id"}, -1, kMaxId).value_or(-1));
  c.pad_token_id = static_cast<int32_t>(in.OptionalInt({"pad_token_id"}, -1, kMaxId).value_or(-1));
}

// A list with one word a layer; `first` and `second` are the words for true and for false.
std::optional<std::vector<bool>> ReadLayerWords(ConfigReader& in, std::string_view key, int64_t layers,
                                                std::span<const std::string_view> yes, std::string_view no) {
  const std::optional<std::vector<std::string>> words = in.OptionalStringList({key});
  if (!words) return std::nullopt;
  if (static_cast<int64_t>(words->size()) != layers) {
    in.Fail(key, StrCat("has ", words->size(), " entries, expected num_hidden_layers, ", layers));
    return std::nullopt;
  }
  std::vector<bool> out;
  for (const std::string& word : *words) {
    const bool is_yes = std::find(yes.begin(), yes.end(), word) != yes.end();
    if (!is_yes && word != no) {
      in.Fail(key, StrCat("entry ", out.size(), " is ", Quoted(word), "; accepted: \"", yes[0], "\" or \"",
                          no, "\""));
      return std::nullopt;
    }
    out.push_back(is_yes);
  }
  return out;
}

void FailOnDifference(ConfigReader& in, std::string_view key, const std::vector<bool>& a,
                      std::string_view other, const std::vector<bool>& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  if (at != a.end()) in.Fail(key, StrCat("entry ", at - a.begin(), " (0-based) disagrees with ", other));
}

// kda_layers and full_attn_layers: 1-based, each layer in exactly one.
std::optional<std::vector<bool>> ReadLayerLists(ConfigReader& in, int64_t layers) {
  constexpr std::string_view kKda = "linear_attn_config.kda_layers";
  constexpr std::string_view kFull = "linear_attn_config.full_attn_layers";
  const auto kda = in.OptionalIntList({kKda}, 1, layers);
  const auto full = in.OptionalIntList({kFull}, 1, layers);
  if (!kda && !full) return std::nullopt;
  if (!kda || !full) {
    in.Fail(kda ? kFull : kKda, "is missing, but the model needs it");
    return std::nullopt;
  }
  std::vector<std::string_view> owner(static_cast<size_t>(layers));
  for (const auto& [key, list] : {std::pair(kKda, &*kda), std::pair(kFull, &*full)}) {
    for (int64_t layer : *list) {
      std::string_view& o = owner[static_cast<size_t>(layer - 1)];
      if (!o.empty()) in.Fail(key, StrCat("holds layer ", layer, " (1-based), which ", o, " holds already"));
      o = key;
    }
  }
  std::vector<bool> is_kda;
  for (std::string_view o : owner) {
    if (o.empty()) {
      in.Fail(kKda, StrCat("neither it nor full_attn_layers holds layer ", is_kda.size() + 1,
                           " (1-based); every layer from 1 to ", layers, " must be in one of them"));
    }
    is_kda.push_back(o == kKda);
  }
  return is_kda;
}

void ReadAttentionKinds(ConfigReader& in, KimiLinearConfig& c) {
  constexpr std::string_view kWords[] = {"linear_attention", "kda_attention"};
  const auto lists = ReadLayerLists(in, c.num_hidden_layers);
  const auto words = ReadLayerWords(in, "layer_types", c.num_hidden_layers, kWords, "full_attention");
  if (lists && words) FailOnDifference(in, "layer_types", *words, "linear_attn_config.kda_layers", *lists);
  if (!lists && !words) (void)in.Require({"linear_attn_config.kda_layers"});
  c.is_kda = lists ? *lists : words.value_or(std::vector<bool>{});
}

void ReadMlpKinds(ConfigReader& in, KimiLinearConfig& c) {
  constexpr std::string_view kWords[] = {"sparse"};
  const auto words = ReadLayerWords(in, "mlp_layer_types", c.num_hidden_layers, kWords, "dense");
  if (words && !in.Has("first_k_dense_replace") && !in.Has("moe_layer_freq")) {
    c.is_moe = *words;
  } else {
    const int64_t dense = in.Int({"first_k_dense_replace"}, 0, c.num_hidden_layers);
    const int64_t every = in.Int({"moe_layer_freq"}, 1, c.num_hidden_layers);
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) c.is_moe.push_back(l >= dense && l % every == 0);
    if (words)
      FailOnDifference(in, "mlp_layer_types", *words, "first_k_dense_replace and moe_layer_freq", c.is_moe);
  }
  const int64_t moe_layers = std::count(c.is_moe.begin(), c.is_moe.end(), true);
  if (c.num_experts * moe_layers > kMaxExpertsInAll) {
    in.Fail("num_experts", StrCat("is ", c.num_experts, " in ", moe_layers, " layers; accepted: at most ",
                                  kMaxExpertsInAll, " experts in all"));
  }
}

StatusOr<MappedFile> OpenJson(const std::string& path) {
  PERIGEE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > kMaxFileBytes) {
    return InvalidArgument(
        StrCat(path, ": has ", file.bytes().size(), " bytes, accepted are at most ", kMaxFileBytes));
  }
  return file;
}

std::string_view AsText(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string PathIn(const std::string& folder, std::string_view name) {
  return StrCat(folder, folder.ends_with('/') ? "" : "/", name);
}

}  // namespace

int64_t KimiLinearConfig::NumKdaLayers() const {
  return std::count(is_kda.begin(), is_kda.end(), true);
}

int64_t KimiLinearConfig::NumMlaLayers() const {
  return num_hidden_layers - NumKdaLayers();
}

int64_t KimiLinearConfig::NumMoeLayers() const {
  return std::count(is_moe.begin(), is_moe.end(), true);
}

StatusOr<KimiLinearConfig> ParseKimiLinearConfig(std::string_view json, const std::string& where) {
  PERIGEE_ASSIGN_OR_RETURN(ConfigReader in, ConfigReader::Parse(json, where));
  KimiLinearConfig config;
  CheckArchitecture(in);
  RefuseOtherForms(in);
  CheckFixedValues(in);
  ReadSizes(in, config);
  ReadAttentionKinds(in, config);
  ReadMlpKinds(in, config);
  PERIGEE_RETURN_IF_ERROR(in.status());
  // Names, training leftovers, and sizes that nothing is computed from.
  in.Ignore({"_name_or_path",
             "attention_dropout",
             "auto_map",
             "aux_loss_alpha",
             "dtype",
             "ep_size",
             "head_dim",
             "initializer_range",
             "num_key_value_heads",
             "output_router_logits",
             "pretraining_tp",
             "qk_head_dim",
             "rope_parameters",
             "rope_scaling",
             "rope_theta",
             "router_aux_loss_coef",
             "seq_aux",
             "torch_dtype",
             "transformers_version",
             "use_cache",
             "use_grouped_topk"});
  config.unknown_keys = in.UnknownKeys();
  return config;
}

StatusOr<KimiLinearConfig> ReadKimiLinearConfig(const std::string& folder) {
  const std::string path = PathIn(folder, "config.json");
  PERIGEE_ASSIGN_OR_RETURN(const MappedFile file, OpenJson(path));
  return ParseKimiLinearConfig(AsText(file), path);
}

StatusOr<std::vector<int32_t>> ParseGenerationStopIds(std::string_view json, int64_t vocab_size,
                                                      const std::string& where) {
  PERIGEE_ASSIGN_OR_RETURN(ConfigReader in, ConfigReader::Parse(json, where));
  std::vector<int32_t> ids;
  for (int64_t id : in.IntOrList({"eos_token_id"}, 0, vocab_size - 1)) {
    ids.push_back(static_cast<int32_t>(id));
  }
  PERIGEE_RETURN_IF_ERROR(in.status());
  return ids;
}

StatusOr<std::vector<int32_t>> ReadGenerationStopIds(const std::string& folder, int64_t vocab_size) {
  const std::string path = PathIn(folder, "generation_config.json");
  StatusOr<MappedFile> file = OpenJson(path);
  if (!file.ok() && file.status().code() == StatusCode::kNotFound) return std::vector<int32_t>{};
  PERIGEE_RETURN_IF_ERROR(file.status());
  return ParseGenerationStopIds(AsText(*file), vocab_size, path);
}

}  // namespace perigee::model
