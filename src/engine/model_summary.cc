#include "engine/model_summary.h"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/strings.h"
#include "model/checkpoint_check.h"
#include "model/kimi_linear/config.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace perigee::engine {
namespace {

using model::KimiLinearConfig;
using model::ModelCounts;

constexpr uint64_t kFloatBytes = 4;  // what the CPU backend keeps latents, conv tails and states in
constexpr uint64_t kHalfBytes = 2;

// "label            text": one line of the summary.
void AddLine(std::string& out, std::string_view label, std::string_view text) {
  constexpr size_t kLabelWidth = 18;
  out += label;
  out.append(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ');
  out += StrCat(text, "\n");
}

std::string Bytes(uint64_t n) {
  return StrCat(WithThousands(n), " bytes (", HumanBytes(n), ")");
}

// The layers whose entry is `kind`, as runs, and how many: "0-2, 4 (4 layers)". 0-based.
std::string Layers(const std::vector<bool>& kinds, bool kind) {
  std::string out;
  size_t count = 0;
  for (size_t begin = 0; begin < kinds.size();) {
    size_t end = begin;
    while (end < kinds.size() && kinds[end] == kinds[begin]) ++end;
    if (kinds[begin] == kind) {
      out += StrCat(out.empty() ? "" : ", ", begin);
      if (end > begin + 1) out += StrCat("-", end - 1);
      count += end - begin;
    }
    begin = end;
  }
  if (count == 0) return "no layers";
  return StrCat(out, " (", count, count == 1 ? " layer)" : " layers)");
}

void AddShape(const KimiLinearConfig& c, std::string& out) {
  AddLine(out, "layers", StrCat(c.num_hidden_layers, ", hidden size ", c.hidden_size));
  AddLine(out, "  KDA", Layers(c.is_kda, true));
  AddLine(out, "",
          StrCat(c.kda_num_heads, " heads of ", c.kda_head_dim, ", convolution over ",
                 c.short_conv_kernel_size, " tokens"));
  AddLine(out, "  MLA", Layers(c.is_kda, false));
  AddLine(out, "",
          StrCat(c.num_attention_heads, " heads, latent ", c.kv_lora_rank, " + ", c.qk_rope_head_dim,
                 ", keys ", c.qk_head_dim(), ", values ", c.v_head_dim));
  AddLine(out, "  dense MLP", Layers(c.is_moe, false));
  AddLine(out, "", StrCat("width ", c.intermediate_size));
  AddLine(out, "  MoE", Layers(c.is_moe, true));
  AddLine(out, "",
          StrCat(c.num_experts, " experts of width ", c.moe_intermediate_size, ", ", c.num_experts_per_token,
                 " a token and ", c.num_shared_experts, " shared"));
  AddLine(out, "vocabulary", WithThousands(static_cast<uint64_t>(c.vocab_size)));
  AddLine(out, "context", StrCat(WithThousands(static_cast<uint64_t>(c.model_max_length)), " tokens"));
}

void AddStoredBytes(const std::map<DType, uint64_t>& by_dtype, std::string& out) {
  uint64_t total = 0;
  std::string parts;
  for (const auto& [dtype, bytes] : by_dtype) {
    total += bytes;
    parts += StrCat(parts.empty() ? "" : ", ", DTypeName(dtype), " ", WithThousands(bytes));
  }
  AddLine(out, "stored weights", StrCat(Bytes(total), ": ", parts));
}

void AddMemory(const KimiLinearConfig& c, const ModelCounts& n, std::string& out) {
  const uint64_t state = n.state_floats_per_sequence * kFloatBytes;
  const uint64_t fixed = state + n.conv_floats_per_sequence * kFloatBytes;
  const uint64_t token = n.latent_floats_per_token * kFloatBytes;
  const uint64_t half_token = n.latent_floats_per_token * kHalfBytes;
  const uint64_t context = static_cast<uint64_t>(c.model_max_length);
  AddLine(out, "memory a token", StrCat(Bytes(token), " of latents in F32; ", Bytes(half_token), " in BF16"));
  AddLine(out, "memory a sequence",
          StrCat(Bytes(fixed), ": states ", WithThousands(state), ", conv tails ",
                 WithThousands(fixed - state), ", both in F32"));
  AddLine(out, "",
          StrCat(Bytes(state + n.conv_floats_per_sequence * kHalfBytes), " with conv tails in BF16"));
  AddLine(
      out, "  full context",
      StrCat(HumanBytes(fixed + token * context), " with latents in F32; ",
             HumanBytes(state + n.conv_floats_per_sequence * kHalfBytes + half_token * context), " in BF16"));
}

std::string Summarize(std::string_view title, const KimiLinearConfig& c,
                      const std::map<DType, uint64_t>& stored) {
  const ModelCounts n = model::CountModel(c);
  std::string out;
  AddLine(out, "model", title);
  AddShape(c, out);
  AddLine(out, "parameters", WithThousands(n.parameters));
  AddLine(out, "  active", StrCat(WithThousands(n.active_gemm_weights), " weights multiplied a token"));
  AddStoredBytes(stored, out);
  AddMemory(c, n, out);
  return out;
}

}  // namespace

StatusOr<std::string> SummarizeFolder(const std::string& folder) {
  PERIGEE_ASSIGN_OR_RETURN(const KimiLinearConfig config, model::ReadKimiLinearConfig(folder));
  PERIGEE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  PERIGEE_RETURN_IF_ERROR(model::CheckCheckpoint(checkpoint, model::ExpectedTensors(config)));

  std::map<DType, uint64_t> stored;
  std::set<std::string> files;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    stored[tensor.dtype] += tensor.bytes.size();
    files.insert(tensor.file);
  }
  std::string out = Summarize(folder, config, stored);
  AddLine(out, "checkpoint",
          StrCat(checkpoint.tensors().size(), " tensors in ", files.size(), " file",
                 files.size() == 1 ? "" : "s", "; names and shapes are those of config.json"));
  if (!config.unknown_keys.empty()) AddLine(out, "keys not used", StrJoin(config.unknown_keys, ", "));
  return out;
}

StatusOr<std::string> SummarizeShape(std::string_view name) {
  PERIGEE_ASSIGN_OR_RETURN(const KimiLinearConfig config, model::NamedShape(name));
  const ModelCounts n = model::CountModel(config);
  // A BF16 checkpoint stores dt_bias and A_log in F32: two bytes more for each of their elements.
  const uint64_t floats = (n.bf16_checkpoint_bytes - kHalfBytes * n.parameters) / (kFloatBytes - kHalfBytes);
  const std::map<DType, uint64_t> stored = {{DType::kF32, floats * kFloatBytes},
                                            {DType::kBF16, (n.parameters - floats) * kHalfBytes}};
  std::string out = Summarize(StrCat(name, " (published shape, no weights)"), config, stored);
  AddLine(out, "checkpoint", StrCat(model::ExpectedTensors(config).size(), " tensors expected"));
  return out;
}

}  // namespace perigee::engine
