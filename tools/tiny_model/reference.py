"""Kimi-Linear in numpy and float64: the reference that goldens and oracles are made of.

Written from the paper's formulas and apart from the server. It reads a HuggingFace folder (config.json, one or several
safetensors files in BF16, F16 or F32), takes the stored numbers as exact and computes every token of one prompt; only
the KDA recurrence runs token by token.
"""
import json
import pathlib

import numpy as np

STORED = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def read_safetensors(path):
    """name -> float32 array of the stored shape."""
    raw = np.fromfile(path, np.uint8)
    header_end = 8 + int(raw[:8].view("<u8")[0])
    tensors = {}
    for name, entry in json.loads(raw[8:header_end].tobytes()).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = raw[header_end + begin:header_end + end].view(STORED[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        tensors[name] = values.astype(np.float32).reshape(entry["shape"])
    return tensors


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Model:
    """A loaded folder. `router_gap` is the smallest distance seen between a chosen and a rejected expert's score:
    near zero, rounding decides the routing and nothing can be compared."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.weight = {}
        for path in sorted(folder.glob("*.safetensors")):
            self.weight.update({name: x.astype(np.float64) for name, x in read_safetensors(path).items()})
        self.router_gap = np.inf

    def logits(self, ids, activations=None):
        """[tokens, vocabulary]. Fills the dict `activations` with the embedding, each layer's output and the final norm."""
        kept = {} if activations is None else activations
        x = kept["embedding"] = self.weight["model.embed_tokens.weight"][np.asarray(ids)]
        for layer in range(self.config["num_hidden_layers"]):
            x = kept[f"layer.{layer}"] = self.layer(layer, x)
        x = kept["final_norm"] = rms_norm(x, self.weight["model.norm.weight"], self.config["rms_norm_eps"])
        return x @ self.weight["lm_head.weight"].T

    def log_probs(self, ids):
        return log_softmax(self.logits(ids))

    def layer(self, layer, x):
        prefix = f"model.layers.{layer}."
        eps = self.config["rms_norm_eps"]
        a = rms_norm(x, self.weight[prefix + "input_layernorm.weight"], eps)
        linear = layer + 1 in self.config["linear_attn_config"]["kda_layers"]
        x = x + (self.kda if linear else self.mla)(prefix + "self_attn.", a)
        m = rms_norm(x, self.weight[prefix + "post_attention_layernorm.weight"], eps)
        if layer < self.config["first_k_dense_replace"] or layer % self.config["moe_layer_freq"]:
            return x + self.mlp(prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"), m)
        return x + self.moe(prefix + "block_sparse_moe.", m)

    def kda(self, prefix, a):
        """S_t = (I - beta k k^T) Diag(exp(g)) S_{t-1} + beta k v^T,  o = S_t^T q, per head."""
        heads = self.config["linear_attn_config"]["num_heads"]
        width = self.config["linear_attn_config"]["head_dim"]
        split = lambda y: y.reshape(len(a), heads, -1)

        def short_conv(name):
            x = a @ self.weight[f"{prefix}{name}_proj.weight"].T
            taps = self.weight[f"{prefix}{name}_conv1d.weight"][:, 0]  # [channels, taps], the last is the current token
            reach = taps.shape[1] - 1
            padded = np.concatenate([np.zeros((reach, x.shape[1])), x])
            return split(silu(sum(padded[m:m + len(x)] * taps[:, m] for m in range(reach + 1))))

        def low_rank(gate):
            return split(a @ self.weight[f"{prefix}{gate}_a_proj.weight"].T @ self.weight[f"{prefix}{gate}_b_proj.weight"].T)

        unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6)
        q, k, v = unit(short_conv("q")) * width ** -0.5, unit(short_conv("k")), short_conv("v")
        dt_bias = self.weight[prefix + "dt_bias"].reshape(heads, width)
        decay = np.exp(-np.exp(self.weight[prefix + "A_log"].reshape(heads, 1)) * softplus(low_rank("f") + dt_bias))
        beta = sigmoid(a @ self.weight[prefix + "b_proj.weight"].T)
        state = np.zeros((heads, width, v.shape[-1]))
        o = np.empty_like(v)
        for t in range(len(a)):
            state *= decay[t][:, :, None]
            erased = k[t][:, None, :] @ state  # k^T S, [heads, 1, value]
            state += k[t][:, :, None] * (beta[t][:, None, None] * (v[t][:, None, :] - erased))
            o[t] = (q[t][:, None, :] @ state)[:, 0]
        o = rms_norm(o, self.weight[prefix + "o_norm.weight"], self.config["rms_norm_eps"]) * sigmoid(low_rank("g"))
        return o.reshape(len(a), -1) @ self.weight[prefix + "o_proj.weight"].T

    def mla(self, prefix, a):
        c = self.config
        heads, rank = c["num_attention_heads"], c["kv_lora_rank"]
        nope, rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        q = (a @ self.weight[prefix + "q_proj.weight"].T).reshape(len(a), heads, nope + rope)
        latent_and_key = a @ self.weight[prefix + "kv_a_proj_with_mqa.weight"].T
        # The model's own code builds this norm without the configured epsilon.
        latent = rms_norm(latent_and_key[:, :rank], self.weight[prefix + "kv_a_layernorm.weight"], 1e-6)
        kv = (latent @ self.weight[prefix + "kv_b_proj.weight"].T).reshape(len(a), heads, nope + c["v_head_dim"])
        shared = np.broadcast_to(latent_and_key[:, None, rank:], (len(a), heads, rope))
        k = np.concatenate([kv[..., :nope], shared], -1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(nope + rope)
        scores = np.where(np.tri(len(a), dtype=bool), scores, -np.inf)
        o = np.einsum("hij,jhd->ihd", np.exp(log_softmax(scores)), kv[..., nope:])
        return o.reshape(len(a), -1) @ self.weight[prefix + "o_proj.weight"].T

    def mlp(self, prefix, names, x):
        gate, up, down = (self.weight[f"{prefix}{name}.weight"] for name in names)
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def moe(self, prefix, x):
        c = self.config
        scores = sigmoid(x @ self.weight[prefix + "gate.weight"].T)
        biased = scores + self.weight[prefix + "gate.e_score_correction_bias"]
        order = np.argsort(-biased, -1, kind="stable")  # ties go to the lower index
        top_k = c["num_experts_per_token"]
        if top_k < c["num_experts"]:
            ranked = np.take_along_axis(biased, order, -1)
            self.router_gap = min(self.router_gap, (ranked[:, top_k - 1] - ranked[:, top_k]).min())
        chosen = order[:, :top_k]
        weights = np.take_along_axis(scores, chosen, -1)  # without the bias
        if c["moe_renormalize"]:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        weights = weights * c["routed_scaling_factor"]
        y = np.zeros_like(x)
        for expert in np.unique(chosen):
            rows, slot = np.nonzero(chosen == expert)
            out = self.mlp(f"{prefix}experts.{expert}.", ("w1", "w3", "w2"), x[rows])
            y[rows] += weights[rows, slot][:, None] * out
        if c["num_shared_experts"]:
            y += self.mlp(prefix + "shared_experts.", ("gate_proj", "up_proj", "down_proj"), x)
        return y
