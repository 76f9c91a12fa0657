"""Writes a Kimi-Linear folder of random weights from a small spec. Needs numpy only.

usage: random_model.py SPEC.json OUT_DIR [--seed N]

The spec: "config" (keys that differ from DEFAULTS below; kda_layers is 1-based, the other layers become full attention),
"dtype" (BF16, F16 or F32: what matrices are stored as; A_log, dt_bias and the router's bias are F32), "shards" (1 writes
model.safetensors, more write an index), "merges" (texts that become tokens after the 256 bytes), "max_rate" (the largest
exp(A_log); the smallest is 0.05) and "seed".

Weights are drawn so that activations keep their size, some KDA channels remember hundreds of tokens while others forget within
one, and attention picks few keys: what the model says depends strongly on the whole prompt.
"""
import argparse
import base64
import json
import pathlib
import shutil
import struct

import numpy as np

DEFAULTS = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16", "hidden_size": 64,
    "num_hidden_layers": 4, "intermediate_size": 96, "num_attention_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "initializer_range": 0.02, "tie_word_embeddings": False, "use_cache": True, "rope_theta": 10000.0, "rope_scaling": None,
    "model_max_length": 8192, "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "mla_use_nope": True, "kda_layers": [1, 2, 3], "kda_heads": 4, "kda_head_dim": 16, "conv_width": 4,
    "num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
    "routed_scaling_factor": 2.446, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1,
    "num_nextn_predict_layers": 0,
}
# Offset in the block of 256 specials after the ranks -> text, as in the released tokenizer.
SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>",
    17: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]",
}
DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
TEMPLATE = pathlib.Path(__file__).resolve().parents[2] / "models/tiny-kimi-linear/chat_template.jinja"


def full_config(spec, ranks):
    given = DEFAULTS | spec["config"]
    kda_layers = given.pop("kda_layers")
    config = {k: v for k, v in given.items() if k not in ("kda_heads", "kda_head_dim", "conv_width")}
    config["dtype"] = DTYPE_NAMES[spec["dtype"]]
    config["vocab_size"] = ranks + 256
    config["num_key_value_heads"] = given["num_attention_heads"]
    config.update(bos_token_id=ranks, eos_token_id=ranks + 2, pad_token_id=ranks + 255)
    config["linear_attn_config"] = {
        "kda_layers": kda_layers,
        "full_attn_layers": [l for l in range(1, given["num_hidden_layers"] + 1) if l not in kda_layers],
        "num_heads": given["kda_heads"], "head_dim": given["kda_head_dim"],
        "short_conv_kernel_size": given["conv_width"]}
    return config


class Weights:
    """Draws tensors under their checkpoint names; `small` holds the names that stay F32."""

    def __init__(self, config, seed, max_rate):
        self.c, self.random, self.max_rate = config, np.random.default_rng(seed), max_rate
        self.tensors, self.small = {}, set()

    def matrix(self, name, out, inner, gain=1.0):
        self.tensors[name + ".weight"] = self.random.normal(0, gain / np.sqrt(inner), (out, inner))

    def norm(self, name, n):
        self.tensors[name + ".weight"] = self.random.uniform(0.6, 1.4, n)

    def float32(self, name, values):
        self.tensors[name] = values
        self.small.add(name)

    def draw(self):
        c = self.c
        hidden = c["hidden_size"]
        self.tensors["model.embed_tokens.weight"] = self.random.normal(0, 1, (c["vocab_size"], hidden))
        for layer in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            self.norm(prefix + "input_layernorm", hidden)
            self.norm(prefix + "post_attention_layernorm", hidden)
            (self.kda if layer + 1 in c["linear_attn_config"]["kda_layers"] else self.mla)(prefix + "self_attn.")
            if layer >= c["first_k_dense_replace"] and layer % c["moe_layer_freq"] == 0:
                self.moe(prefix + "block_sparse_moe.")
            else:
                self.mlp(prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"), c["intermediate_size"])
        self.norm("model.norm", hidden)
        self.matrix("lm_head", c["vocab_size"], hidden, 2)
        return self.tensors

    def kda(self, prefix):
        linear, hidden = self.c["linear_attn_config"], self.c["hidden_size"]
        heads, width, taps = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
        for name in "qkv":
            self.matrix(f"{prefix}{name}_proj", heads * width, hidden, 1.5)
            self.tensors[f"{prefix}{name}_conv1d.weight"] = self.random.normal(0, 0.8, (heads * width, 1, taps))
        for gate in "fg":
            self.matrix(f"{prefix}{gate}_a_proj", width, hidden)
            self.matrix(f"{prefix}{gate}_b_proj", heads * width, width)
        self.matrix(prefix + "b_proj", heads, hidden)
        # Rates from slow heads to the fastest; softplus(dt_bias) in 0.001..0.1 as at initialisation.
        self.float32(prefix + "A_log", np.linspace(np.log(0.05), np.log(self.max_rate), heads).reshape(1, 1, heads, 1))
        dt = np.exp(self.random.uniform(np.log(0.001), np.log(0.1), heads * width))
        self.float32(prefix + "dt_bias", dt + np.log(-np.expm1(-dt)))
        self.norm(prefix + "o_norm", width)
        self.matrix(prefix + "o_proj", hidden, heads * width, 1.5)

    def mla(self, prefix):
        c = self.c
        heads, rank, nope, rope = (c[k] for k in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"))
        self.matrix(prefix + "q_proj", heads * (nope + rope), c["hidden_size"], 3)  # scores spread over about +-9
        self.matrix(prefix + "kv_a_proj_with_mqa", rank + rope, c["hidden_size"])
        self.norm(prefix + "kv_a_layernorm", rank)
        self.matrix(prefix + "kv_b_proj", heads * (nope + c["v_head_dim"]), rank)
        self.matrix(prefix + "o_proj", c["hidden_size"], heads * c["v_head_dim"], 1.5)

    def mlp(self, prefix, names, width, gain=1.5):
        gate, up, down = names
        self.matrix(prefix + gate, width, self.c["hidden_size"], 1.5)
        self.matrix(prefix + up, width, self.c["hidden_size"])
        self.matrix(prefix + down, self.c["hidden_size"], width, gain)

    def moe(self, prefix):
        c = self.c
        self.matrix(prefix + "gate", c["num_experts"], c["hidden_size"], 1.5)
        self.float32(prefix + "gate.e_score_correction_bias", self.random.normal(0, 0.2, c["num_experts"]))
        for expert in range(c["num_experts"]):
            self.mlp(f"{prefix}experts.{expert}.", ("w1", "w3", "w2"), c["moe_intermediate_size"])
        if c["num_shared_experts"]:
            self.mlp(prefix + "shared_experts.", ("gate_proj", "up_proj", "down_proj"),
                     c["num_shared_experts"] * c["moe_intermediate_size"])


def to_bytes(x, dtype):
    if dtype == "F32":
        return x.astype("<f4").tobytes()
    if dtype == "F16":
        return x.astype("<f2").tobytes()
    bits = x.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()  # round to nearest even


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def write_weights(folder, spec, weights):
    stored = {}
    for name, x in sorted(weights.draw().items()):
        dtype = "F32" if name in weights.small else spec["dtype"]
        stored[name] = (dtype, list(x.shape), to_bytes(x, dtype))
    if spec["shards"] == 1:
        write_safetensors(folder / "model.safetensors", stored)
        return
    total = sum(len(data) for _, _, data in stored.values())
    files, done = [{} for _ in range(spec["shards"])], 0
    for name, entry in stored.items():
        files[done * spec["shards"] // total][name] = entry
        done += len(entry[2])
    names = [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    for name, tensors in zip(names, files):
        write_safetensors(folder / name, tensors)
    write_json(folder / "model.safetensors.index.json", {
        "metadata": {"total_size": total},
        "weight_map": {tensor: name for name, tensors in zip(names, files) for tensor in tensors}}, indent=None)


def write_json(path, value, indent=2):
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(folder, merges, length):
    tokens = [bytes([i]) for i in range(256)] + [m.encode() for m in merges]
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    entry = lambda text: {"content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": "tool_call" not in text}
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "TikTokenTokenizer", "model_max_length": length, "clean_up_tokenization_spaces": False,
        "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
        "added_tokens_decoder": {str(len(tokens) + offset): entry(text) for offset, text in SPECIALS.items()}})
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")


def write_model(spec, folder, seed=None):
    folder.mkdir(parents=True, exist_ok=True)
    merges = spec.get("merges", [])
    config = full_config(spec, 256 + len(merges))
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")})
    write_tokenizer(folder, merges, config["model_max_length"])
    write_weights(folder, spec, Weights(config, spec["seed"] if seed is None else seed, spec["max_rate"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, help="in place of the spec's")
    args = parser.parse_args()
    write_model(json.loads(args.spec.read_text(encoding="utf-8")), args.out, args.seed)


if __name__ == "__main__":
    main()
