#include "model/kimi_linear/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "testing/safetensors_writer.h"

namespace perigee::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Four layers: KDA, KDA, MLA, KDA; the first is dense.
constexpr std::string_view kSmall = R"({
  "architectures": ["KimiLinearForCausalLM"],
  "model_type": "kimi_linear",
  "dtype": "bfloat16",
  "bos_token_id": 1,
  "eos_token_id": 2,
  "pad_token_id": 3,
  "first_k_dense_replace": 1,
  "hidden_act": "silu",
  "hidden_size": 64,
  "intermediate_size": 96,
  "kv_lora_rank": 32,
  "linear_attn_config": {
    "full_attn_layers": [3],
    "kda_layers": [1, 2, 4],
    "head_dim": 16,
    "num_heads": 6,
    "short_conv_kernel_size": 4
  },
  "mla_use_nope": true,
  "model_max_length": 4096,
  "moe_intermediate_size": 24,
  "moe_layer_freq": 1,
  "moe_renormalize": true,
  "moe_router_activation_func": "sigmoid",
  "num_attention_heads": 4,
  "num_expert_group": 1,
  "num_experts": 8,
  "num_experts_per_token": 3,
  "num_hidden_layers": 4,
  "num_nextn_predict_layers": 0,
  "num_shared_experts": 2,
  "q_lora_rank": null,
  "qk_nope_head_dim": 20,
  "qk_rope_head_dim": 8,
  "rms_norm_eps": 1e-05,
  "routed_scaling_factor": 2.446,
  "tie_word_embeddings": false,
  "topk_group": 1,
  "v_head_dim": 12,
  "vocab_size": 512
})";

// kSmall with one text replaced; the text must be there.
std::string With(std::string_view from, std::string_view to, std::string_view in = kSmall) {
  std::string text(in);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// kSmall with more keys at the top.
std::string Plus(std::string_view more, std::string_view in = kSmall) {
  return With("{", "{" + std::string(more) + ",", in);
}

// kSmall without the line of a key.
std::string Without(std::string_view key, std::string_view in = kSmall) {
  std::string text(in);
  const size_t at = text.find("\"" + std::string(key) + "\":");
  EXPECT_NE(at, std::string::npos) << key;
  if (at == std::string::npos) return text;
  text.erase(at, text.find('\n', at) - at);
  // A comma before the closing brace, where the last line went.
  for (const char* brace : {"\n  }", "\n}"}) {
    size_t end = text.find(brace);
    if (end == std::string::npos) continue;
    size_t last = text.find_last_not_of(" \n", end);
    if (text[last] == ',') text.erase(last, 1);
  }
  return text;
}

StatusOr<KimiLinearConfig> Parse(std::string_view json) {
  return ParseKimiLinearConfig(json, "DIR/config.json");
}

KimiLinearConfig MustParse(std::string_view json) {
  StatusOr<KimiLinearConfig> parsed = Parse(json);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? std::move(parsed).value() : KimiLinearConfig{};
}

void ExpectRefused(std::string_view json, const std::vector<std::string>& parts) {
  const StatusOr<KimiLinearConfig> parsed = Parse(json);
  if (parsed.ok()) {
    ADD_FAILURE() << "accepted";
    return;
  }
  const std::string& message = parsed.status().message();
  EXPECT_EQ(message.find("DIR/config.json: "), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 400u) << message;
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

TEST(KimiLinearConfig, ReadsEveryValue) {
  const KimiLinearConfig c = MustParse(kSmall);
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.num_hidden_layers, 4);
  EXPECT_EQ(c.intermediate_size, 96);
  EXPECT_EQ(c.vocab_size, 512);
  EXPECT_EQ(c.model_max_length, 4096);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.kda_num_heads, 6);
  EXPECT_EQ(c.kda_head_dim, 16);
  EXPECT_EQ(c.short_conv_kernel_size, 4);
  EXPECT_THAT(c.is_kda, ElementsAre(true, true, false, true));
  EXPECT_EQ(c.NumKdaLayers(), 3);
  EXPECT_EQ(c.NumMlaLayers(), 1);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.kv_lora_rank, 32);
  EXPECT_EQ(c.qk_nope_head_dim, 20);
  EXPECT_EQ(c.qk_rope_head_dim, 8);
  EXPECT_EQ(c.qk_head_dim(), 28);
  EXPECT_EQ(c.v_head_dim, 12);
  EXPECT_THAT(c.is_moe, ElementsAre(false, true, true, true));
  EXPECT_EQ(c.num_experts, 8);
  EXPECT_EQ(c.num_experts_per_token, 3);
  EXPECT_EQ(c.num_shared_experts, 2);
  EXPECT_EQ(c.moe_intermediate_size, 24);
  EXPECT_EQ(c.routed_scaling_factor, 2.446);
  EXPECT_TRUE(c.moe_renormalize);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.pad_token_id, 3);
  EXPECT_THAT(c.unknown_keys, ElementsAre());
}

TEST(KimiLinearConfig, EveryStructuralKeyIsRequired) {
  for (const char* key : {"architectures",
                          "model_type",
                          "first_k_dense_replace",
                          "hidden_act",
                          "hidden_size",
                          "intermediate_size",
                          "kv_lora_rank",
                          "full_attn_layers",
                          "kda_layers",
                          "head_dim",
                          "num_heads",
                          "short_conv_kernel_size",
                          "mla_use_nope",
                          "model_max_length",
                          "moe_intermediate_size",
                          "moe_layer_freq",
                          "moe_renormalize",
                          "moe_router_activation_func",
                          "num_attention_heads",
                          "num_expert_group",
                          "num_experts",
                          "num_experts_per_token",
                          "num_hidden_layers",
                          "num_shared_experts",
                          "qk_nope_head_dim",
                          "qk_rope_head_dim",
                          "rms_norm_eps",
                          "routed_scaling_factor",
                          "topk_group",
                          "v_head_dim",
                          "vocab_size"}) {
    SCOPED_TRACE(key);
    ExpectRefused(Without(key), {std::string(key) + ": is missing"});
  }
}

TEST(KimiLinearConfig, OtherKeysMayBeAbsent) {
  for (const char* key : {"dtype", "bos_token_id", "eos_token_id", "pad_token_id", "num_nextn_predict_layers",
                          "q_lora_rank", "tie_word_embeddings"}) {
    SCOPED_TRACE(key);
    MustParse(Without(key));
  }
  EXPECT_TRUE(MustParse(Without("eos_token_id")).eos_token_ids.empty());
  EXPECT_EQ(MustParse(Without("bos_token_id")).bos_token_id, -1);
}

TEST(KimiLinearConfig, StopIdsAreOneOrAList) {
  EXPECT_THAT(MustParse(With("\"eos_token_id\": 2", "\"eos_token_id\": [7, 2]")).eos_token_ids,
              ElementsAre(7, 2));
  EXPECT_THAT(MustParse(With("\"eos_token_id\": 2", "\"eos_token_id\": null")).eos_token_ids, ElementsAre());
  EXPECT_THAT(MustParse(With("\"eos_token_id\": 2", "\"eos_token_id\": []")).eos_token_ids, ElementsAre());
}

TEST(KimiLinearConfig, NamesUnknownKeysOnceEach) {
  const std::string json =
      Plus(R"("zeta": 1, "alpha": {"b": [1, {"c": 2}]}, "nothing": null, "rope_theta": 1e4,)"
           R"("auto_map": {"AutoConfig": "x"}, "use_cache": true)");
  EXPECT_THAT(MustParse(With("\"head_dim\": 16", "\"head_dim\": 16, \"extra\": 5", json)).unknown_keys,
              ElementsAre("alpha", "linear_attn_config.extra", "zeta"));
}

struct Replacement {
  const char* from;
  const char* to;
};

TEST(KimiLinearConfig, AcceptsEveryAlias) {
  const KimiLinearConfig plain = MustParse(kSmall);
  for (const Replacement& r : std::vector<Replacement>{
           {"model_max_length", "max_position_embeddings"},
           {"moe_renormalize", "norm_topk_prob"},
           {"num_expert_group", "n_group"},
           {"num_experts\"", "num_local_experts\""},
           {"num_experts\"", "n_routed_experts\""},
           {"num_experts_per_token", "num_experts_per_tok"},
           {"num_shared_experts", "n_shared_experts"},
           {"num_nextn_predict_layers", "num_mtp_layers"},
           {"\"dtype\"", "\"torch_dtype\""},
       }) {
    SCOPED_TRACE(r.to);
    const KimiLinearConfig c = MustParse(With(r.from, r.to));
    EXPECT_EQ(c.model_max_length, plain.model_max_length);
    EXPECT_EQ(c.num_experts, plain.num_experts);
    EXPECT_EQ(c.num_experts_per_token, plain.num_experts_per_token);
    EXPECT_EQ(c.num_shared_experts, plain.num_shared_experts);
    EXPECT_THAT(c.unknown_keys, ElementsAre());
  }
}

// The flat form of newer transformers versions: no linear_attn_config, 0-based words instead of lists.
std::string FlatForm(std::string_view kda_word) {
  const std::string kda = "\"" + std::string(kda_word) + "\"";
  std::string json(kSmall);
  for (const char* key : {"full_attn_layers", "kda_layers", "head_dim", "num_heads", "short_conv_kernel_size",
                          "first_k_dense_replace", "moe_layer_freq", "moe_router_activation_func"}) {
    json = Without(key, json);
  }
  return Plus(
      "\"layer_types\": [" + kda + "," + kda + ",\"full_attention\"," + kda +
          "], \"mlp_layer_types\": [\"dense\",\"sparse\",\"sparse\",\"sparse\"], \"linear_head_dim\": 16,"
          "\"linear_num_heads\": 6, \"linear_conv_kernel_dim\": 4, \"activation_situ_beta\": 1.0,"
          "\"attn_res_block_size\": 0, \"mla_use_output_gate\": false, \"dense_ffn_hidden\": 96,"
          "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}",
      json);
}

TEST(KimiLinearConfig, AcceptsTheFlatForm) {
  for (const char* word : {"linear_attention", "kda_attention"}) {
    const KimiLinearConfig c = MustParse(FlatForm(word));
    EXPECT_THAT(c.is_kda, ElementsAre(true, true, false, true));
    EXPECT_THAT(c.is_moe, ElementsAre(false, true, true, true));
    EXPECT_EQ(c.kda_num_heads, 6);
    EXPECT_EQ(c.kda_head_dim, 16);
    EXPECT_EQ(c.short_conv_kernel_size, 4);
    EXPECT_THAT(c.unknown_keys, ElementsAre());
  }
  const std::string keyed =
      With("linear_num_heads", "linear_num_key_heads",
           With("linear_head_dim", "linear_key_head_dim", FlatForm("linear_attention")));
  EXPECT_EQ(
      MustParse(Plus("\"linear_value_head_dim\": 16, \"linear_num_value_heads\": 6", keyed)).kda_num_heads,
      6);
  ExpectRefused(Plus("\"linear_value_head_dim\": 32", keyed), {"linear_value_head_dim: is 32", "or 16"});
  ExpectRefused(Plus("\"linear_num_value_heads\": 12", keyed), {"linear_num_value_heads: is 12", "or 6"});
}

TEST(KimiLinearConfig, TwoNamesOfOneValueMustAgree) {
  MustParse(Plus("\"max_position_embeddings\": 4096, \"num_local_experts\": 8, \"linear_head_dim\": 16"));
  ExpectRefused(Plus("\"max_position_embeddings\": 8192"),
                {"model_max_length: is 4096, but max_position_embeddings", "is 8192"});
  ExpectRefused(Plus("\"n_routed_experts\": 9"), {"num_experts: is 8, but n_routed_experts", "is 9"});
  ExpectRefused(Plus("\"norm_topk_prob\": false"),
                {"moe_renormalize: is true, but norm_topk_prob", "is false"});
  ExpectRefused(Plus("\"linear_head_dim\": 32"), {"linear_attn_config.head_dim: is 16, but linear_head_dim"});
  ExpectRefused(Plus("\"dense_ffn_hidden\": 97"), {"intermediate_size: is 96, but dense_ffn_hidden"});
  ExpectRefused(
      Plus(R"("layer_types": ["linear_attention","full_attention","full_attention","linear_attention"])"),
      {"layer_types: entry 1", "kda_layers"});
  ExpectRefused(Plus(R"("mlp_layer_types": ["dense","dense","sparse","sparse"])"),
                {"mlp_layer_types: entry 1", "first_k_dense_replace"});
}

TEST(KimiLinearConfig, MoeLayersFollowTheTwoNumbers) {
  EXPECT_THAT(MustParse(With("\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2")).is_moe,
              ElementsAre(false, false, true, true));
  EXPECT_THAT(MustParse(With("\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2")).is_moe,
              ElementsAre(false, false, true, false));
  EXPECT_THAT(MustParse(With("\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 4")).is_moe,
              ElementsAre(false, false, false, false));
}

struct BadConfig {
  std::string json;
  std::vector<std::string> parts;
};

TEST(KimiLinearConfig, RefusesOtherModelsAndFeaturesByName) {
  for (const BadConfig& bad : std::vector<BadConfig>{
           {With("KimiLinearForCausalLM", "LlamaForCausalLM"),
            {"architectures: is [\"LlamaForCausalLM\"]", "accepted: [\"KimiLinearForCausalLM\"]"}},
           {With("[\"KimiLinearForCausalLM\"]", "\"KimiLinearForCausalLM\""),
            {"architectures: ", "list of strings"}},
           {With("\"kimi_linear\"", "\"kimi_k3\""),
            {"model_type: is \"kimi_k3\"", "accepted: \"kimi_linear\""}},
           {Plus(R"("text_config": {"model_type": "kimi_linear"})"), {"text_config: ", "Kimi-K3"}},
           {With("\"head_dim\"", "\"gate_lower_bound\": -5.0, \"head_dim\""),
            {"linear_attn_config.gate_lower_bound: is -5.0", "absent or null"}},
           {With("\"head_dim\"", "\"use_full_rank_gate\": true, \"head_dim\""),
            {"linear_attn_config.use_full_rank_gate: is true", "or false"}},
           {Plus("\"gate_lower_bound\": -5.0"), {"gate_lower_bound: is -5.0"}},
           {Plus("\"attn_res_block_size\": 12"), {"attn_res_block_size: is 12", "or 0"}},
           {Plus("\"routed_expert_hidden_size\": 3584"), {"routed_expert_hidden_size: is 3584"}},
           {Plus("\"latent_moe_use_norm\": true"), {"latent_moe_use_norm: is true"}},
           {Plus("\"mla_use_output_gate\": true"), {"mla_use_output_gate: is true"}},
           {Plus("\"activation_situ_beta\": 4.0"), {"activation_situ_beta: is 4.0"}},
           {Plus("\"activation_situ_linear_beta\": 25"), {"activation_situ_linear_beta: is 25"}},
           {With("\"silu\"", "\"situ\""), {"hidden_act: is \"situ\"", "accepted: \"silu\""}},
           {With("\"q_lora_rank\": null", "\"q_lora_rank\": 1536"), {"q_lora_rank: is 1536"}},
           {With("\"mla_use_nope\": true", "\"mla_use_nope\": false"),
            {"mla_use_nope: is false", "accepted: true"}},
           {With("\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1"),
            {"num_nextn_predict_layers: is 1", "or 0"}},
           {With("num_nextn_predict_layers\": 0", "num_mtp_layers\": 2"), {"num_mtp_layers: is 2"}},
           {Plus(R"("quantization_config": {"quant_method": "fp8"})"),
            {"quantization_config: ", "quantized checkpoints are not supported"}},
           {Plus(R"("quantization_config": {})"), {"quantization_config: "}},
           {Plus(R"("quantization": {"bits": 4})"), {"quantization: "}},
           {With("\"sigmoid\"", "\"softmax\""),
            {"moe_router_activation_func: is \"softmax\"", "accepted: \"sigmoid\""}},
           {With("\"num_expert_group\": 1", "\"num_expert_group\": 4"),
            {"num_expert_group: is 4", "accepted: 1"}},
           {With("\"num_expert_group\": 1", "\"n_group\": 4"), {"n_group: is 4"}},
           {With("\"topk_group\": 1", "\"topk_group\": 2"), {"topk_group: is 2", "accepted: 1"}},
           {With("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"),
            {"tie_word_embeddings: is true"}},
           {Plus("\"attention_bias\": true"), {"attention_bias: is true"}},
           {Plus("\"sliding_window\": 4096"), {"sliding_window: is 4096"}},
           {Plus("\"topk_method\": \"greedy\""), {"topk_method: is \"greedy\"", "noaux_tc"}},
           {Plus(R"("rope_scaling": {"type": "yarn", "factor": 4.0})"), {"rope_scaling.type: is \"yarn\""}},
           {Plus(R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0})"),
            {"rope_scaling.rope_type: is \"yarn\""}},
           {Plus(R"("rope_scaling": {"factor": 4.0})"),
            {"rope_scaling: is a nested value", "rope_type \"default\""}},
           {Plus(R"("rope_scaling": "linear")"), {"rope_scaling: is \"linear\""}},
       }) {
    SCOPED_TRACE(bad.json.substr(0, 120));
    ExpectRefused(bad.json, bad.parts);
  }
}

TEST(KimiLinearConfig, DefaultsOfRefusedFeaturesAreHarmless) {
  const KimiLinearConfig c = MustParse(Plus(
      R"("attn_res_block_size": 0, "mla_use_output_gate": false, "latent_moe_use_norm": false,)"
      R"("routed_expert_hidden_size": null, "quantization_config": null, "attention_bias": false,)"
      R"("rope_scaling": null, "topk_method": "noaux_tc", "sliding_window": null, "text_config": null)"));
  EXPECT_THAT(c.unknown_keys, ElementsAre());
}

TEST(KimiLinearConfig, RefusesWrongTypesAndSizes) {
  for (const BadConfig& bad : std::vector<BadConfig>{
           {With("\"hidden_size\": 64", "\"hidden_size\": 0"),
            {"hidden_size: is 0, expected an integer from 1 to"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": -64"), {"hidden_size: is -64"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": 64.0"), {"hidden_size: is 64.0"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": \"64\""), {"hidden_size: is \"64\""}},
           {With("\"hidden_size\": 64", "\"hidden_size\": true"), {"hidden_size: is true"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": [64]"), {"hidden_size: is [64]"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": {\"a\": 1}"), {"hidden_size: is a nested value"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": 9223372036854775807"),
            {"hidden_size: is 9223372036854775807"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": 18446744073709551616"), {"hidden_size: is 1"}},
           {With("\"hidden_size\": 64", "\"hidden_size\": null"), {"hidden_size: is null"}},
           {With("\"vocab_size\": 512", "\"vocab_size\": 4294967296"), {"vocab_size: is 4294967296"}},
           {With("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 1000000000"),
            {"num_hidden_layers: is 1000000000"}},
           {With("\"num_experts\": 8", "\"num_experts\": 100000"), {"num_experts: is 100000"}},
           {With("\"num_experts_per_token\": 3", "\"num_experts_per_token\": 9"),
            {"num_experts_per_token: is 9", "from 1 to 8"}},
           {With("\"num_shared_experts\": 2", "\"num_shared_experts\": -1"), {"num_shared_experts: is -1"}},
           {With("\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 5"),
            {"first_k_dense_replace: is 5"}},
           {With("\"moe_layer_freq\": 1", "\"moe_layer_freq\": 0"), {"moe_layer_freq: is 0"}},
           {With("\"moe_layer_freq\": 1", "\"moe_layer_freq\": [0, 1, 1, 1]"),
            {"moe_layer_freq: is [0, 1, 1, 1]"}},
           {With("1e-05", "0"), {"rms_norm_eps: is 0, expected a number above 0"}},
           {With("1e-05", "\"small\""), {"rms_norm_eps: is \"small\""}},
           {With("2.446", "-1.5"), {"routed_scaling_factor: is -1.5"}},
           {With("2.446", "1e300"), {"routed_scaling_factor: is 1e+300"}},
           {With("\"moe_renormalize\": true", "\"moe_renormalize\": 1"),
            {"moe_renormalize: is 1, expected true or false"}},
           {With("\"eos_token_id\": 2", "\"eos_token_id\": \"2\""), {"eos_token_id: is \"2\""}},
           {With("\"eos_token_id\": 2", "\"eos_token_id\": [2, -1]"), {"eos_token_id: is -1"}},
           {With("\"eos_token_id\": 2", "\"eos_token_id\": 4294967298"), {"eos_token_id: is 4294967298"}},
           {With("\"eos_token_id\": 2", "\"eos_token_id\": [[2]]"), {"eos_token_id: is a nested value"}},
       }) {
    SCOPED_TRACE(bad.parts[0]);
    ExpectRefused(bad.json, bad.parts);
  }
}

TEST(KimiLinearConfig, EveryLayerIsInExactlyOneList) {
  for (const BadConfig& bad : std::vector<BadConfig>{
           {With("[1, 2, 4]", "[1, 2]"), {"linear_attn_config.kda_layers: ", "layer 4 (1-based)"}},
           {With("[1, 2, 4]", "[1, 2, 3, 4]"),
            {"full_attn_layers: holds layer 3 (1-based)", "kda_layers holds already"}},
           {With("[1, 2, 4]", "[1, 2, 4, 4]"), {"kda_layers: holds layer 4"}},
           {With("[1, 2, 4]", "[0, 1, 2, 4]"), {"kda_layers: is 0, expected an integer from 1 to 4"}},
           {With("[1, 2, 4]", "[1, 2, 4, 5]"), {"kda_layers: is 5"}},
           {With("[1, 2, 4]", "[0, 1, 3]"), {"kda_layers: is 0"}},  // 0-based lists
           {With("[1, 2, 4]", "4"), {"kda_layers: is 4, expected a list"}},
           {With("[1, 2, 4]", "[1, \"2\", 4]"), {"kda_layers: is \"2\""}},
           {Plus(R"("layer_types": ["full_attention"])"), {"layer_types: has 1 entries", "4"}},
           {Plus(R"("layer_types": ["linear_attention","linear_attention","full_attention","mamba"])"),
            {"layer_types: entry 3 is \"mamba\"", "\"linear_attention\" or \"full_attention\""}},
           {Plus(R"("layer_types": [1, 2, 3, 4])"), {"layer_types: ", "list of strings"}},
       }) {
    SCOPED_TRACE(bad.parts[0]);
    ExpectRefused(bad.json, bad.parts);
  }
}

TEST(KimiLinearConfig, RefusesWhatIsNoJsonObject) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"a":)";
  for (const BadConfig& bad : std::vector<BadConfig>{
           {"", {"not valid JSON"}},
           {"[]", {"is a list"}},
           {"7", {"is no object"}},
           {"{", {"not valid JSON"}},
           {std::string(kSmall) + "x", {"not valid JSON"}},
           {std::string(kSmall) + '\0' + "x", {"NUL"}},
           {"{\"\xff\": 1}", {"not valid JSON"}},
           {"{\"rope_theta\": NaN}", {"not valid JSON"}},
           {deep, {"nested deeper than"}},
           {"{\"a\":" + std::string(100000, '['), {"nested deeper than"}},
           {Plus("\"hidden_size\": 64"), {"hidden_size", "twice"}},
           {Plus("\"linear_attn_config\": {}"), {"linear_attn_config", "twice"}},
       }) {
    SCOPED_TRACE(bad.parts[0]);
    ExpectRefused(bad.json, bad.parts);
  }
}

TEST(GenerationStopIds, OneOrAListOrNone) {
  const auto parse = [](std::string_view json) { return ParseGenerationStopIds(json, 10, "g.json"); };
  EXPECT_THAT(*parse(R"({"eos_token_id": 5, "max_length": 7})"), ElementsAre(5));
  EXPECT_THAT(*parse(R"({"eos_token_id": [5, 9]})"), ElementsAre(5, 9));
  EXPECT_THAT(*parse(R"({"eos_token_id": null})"), ElementsAre());
  EXPECT_THAT(*parse("{}"), ElementsAre());
  EXPECT_THAT(parse(R"({"eos_token_id": "5"})").status().message(),
              HasSubstr("g.json: eos_token_id: is \"5\""));
  EXPECT_THAT(parse(R"({"eos_token_id": -5})").status().message(), HasSubstr("is -5"));
  EXPECT_THAT(parse(R"({"eos_token_id": [9, 10]})").status().message(),
              HasSubstr("g.json: eos_token_id: is 10, expected an integer from 0 to 9"));
  EXPECT_FALSE(parse("[5]").ok());
}

TEST(GenerationStopIds, TheFileMayBeAbsentButNotBroken) {
  test::TempFolder folder;
  ASSERT_TRUE(ReadGenerationStopIds(folder.path(), 10).ok());
  EXPECT_THAT(*ReadGenerationStopIds(folder.path(), 10), ElementsAre());
  folder.Write("generation_config.json", R"({"eos_token_id": [3]})");
  EXPECT_THAT(*ReadGenerationStopIds(folder.path(), 10), ElementsAre(3));
  folder.Write("generation_config.json", R"({"eos_token_id": [3)");
  EXPECT_THAT(ReadGenerationStopIds(folder.path(), 10).status().message(),
              HasSubstr(folder.File("generation_config.json") + ": is not valid JSON"));
}

}  // namespace
}  // namespace perigee::model
