"""Kimi-Linear in plain PyTorch: KDA + NoPE MLA + sigmoid-routed MoE, with the official checkpoint's tensor names.

`forward(..., exact=True)` runs the token-by-token KDA recurrence in the parameters' dtype. The default path uses FLA's
chunked kernel, for training on a GPU. The reference of the goldens is reference.py, in numpy.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
    "vocab_size": 2048, "hidden_size": 192, "num_hidden_layers": 6, "intermediate_size": 512, "head_dim": 48,
    "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "initializer_range": 0.02, "tie_word_embeddings": False, "use_cache": True, "rope_theta": 10000.0, "rope_scaling": None,
    "model_max_length": 131072, "max_position_embeddings": 131072,
    "bos_token_id": 1792, "eos_token_id": 1794, "pad_token_id": 2047,
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True,
    "linear_attn_config": {"kda_layers": [1, 2, 3, 5], "full_attn_layers": [4, 6], "num_heads": 4, "head_dim": 128,
                           "short_conv_kernel_size": 4},
    "num_experts": 16, "num_experts_per_token": 4, "num_shared_experts": 1, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 2.446,
    "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
}


class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n)); self.eps = eps

    def forward(self, x):
        y = x.double() if x.dtype == torch.float64 else x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.to(y.dtype)).to(x.dtype)


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class ShortConv(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, 1, k) * k ** -0.5)

    def forward(self, x):  # [B, T, n], causal, SiLU
        w = self.weight[:, 0].to(x.dtype)
        k = w.shape[1]
        y = x * w[:, k - 1]
        for j in range(1, k):
            y = y + F.pad(x, (0, 0, j, 0))[:, :x.shape[1]] * w[:, k - 1 - j]
        return F.silu(y)


class KDA(nn.Module):
    def __init__(self, c):
        super().__init__()
        la, d = c["linear_attn_config"], c["hidden_size"]
        self.h, self.d = la["num_heads"], la["head_dim"]
        n = self.h * self.d
        self.q_proj, self.k_proj, self.v_proj = linear(d, n), linear(d, n), linear(d, n)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (ShortConv(n, la["short_conv_kernel_size"]) for _ in range(3))
        self.A_log = nn.Parameter(torch.log(torch.empty(1, 1, self.h, 1).uniform_(1, 16)))
        dt = torch.exp(torch.rand(n) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.f_a_proj, self.f_b_proj = linear(d, self.d), linear(self.d, n)
        self.b_proj = linear(d, self.h)
        self.g_a_proj, self.g_b_proj = linear(d, self.d), linear(self.d, n)
        self.o_norm = RMSNorm(self.d, c["rms_norm_eps"])
        self.o_proj = linear(n, d)

    def forward(self, x, exact):
        B, T, _ = x.shape
        heads = lambda t: t.view(B, T, self.h, self.d)
        q, k, v = heads(self.q_conv1d(self.q_proj(x))), heads(self.k_conv1d(self.k_proj(x))), heads(self.v_conv1d(self.v_proj(x)))
        f = heads(self.f_b_proj(self.f_a_proj(x)))
        hi = torch.float64 if x.dtype == torch.float64 else torch.float32
        g = -self.A_log.to(hi).exp() * F.softplus(f.to(hi) + self.dt_bias.to(hi).view(self.h, self.d))
        beta = self.b_proj(x).to(hi).sigmoid()
        if exact:
            q, k, v = q.to(hi), k.to(hi), v.to(hi)
            q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * self.d ** -0.5
            k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
            S = torch.zeros(B, self.h, self.d, self.d, dtype=hi, device=x.device)  # [key, value]
            o = torch.empty_like(v)
            for t in range(T):
                S = S * g[:, t].exp()[..., None]
                err = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S)
                S = S + torch.einsum("bhk,bhv->bhkv", k[:, t] * beta[:, t, :, None], err)
                o[:, t] = torch.einsum("bhk,bhkv->bhv", q[:, t], S)
            o = o.to(x.dtype)
        else:
            from fla.ops.kda import chunk_kda
            o, _ = chunk_kda(q.bfloat16(), k.bfloat16(), v.bfloat16(), g, beta, use_qk_l2norm_in_kernel=True)
        gate = heads(self.g_b_proj(self.g_a_proj(x)))
        o = (self.o_norm(o).to(hi) * gate.to(hi).sigmoid()).to(x.dtype)
        return self.o_proj(o.reshape(B, T, -1))


class MLA(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.r, self.dn, self.dr, self.dv = c["num_attention_heads"], c["kv_lora_rank"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        d = c["hidden_size"]
        self.q_proj = linear(d, self.h * (self.dn + self.dr))
        self.kv_a_proj_with_mqa = linear(d, self.r + self.dr)
        self.kv_a_layernorm = RMSNorm(self.r, 1e-6)  # the official code leaves the class default here
        self.kv_b_proj = linear(self.r, self.h * (self.dn + self.dv))
        self.o_proj = linear(self.h * self.dv, d)

    def forward(self, x, exact):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.h, -1).transpose(1, 2)
        c, kr = self.kv_a_proj_with_mqa(x).split([self.r, self.dr], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(c)).view(B, T, self.h, -1).transpose(1, 2)
        kn, v = kv.split([self.dn, self.dv], -1)
        k = torch.cat([kn, kr[:, None].expand(-1, self.h, -1, -1)], -1)
        scale = (self.dn + self.dr) ** -0.5
        if exact:
            s = (q @ k.transpose(-1, -2)) * scale
            s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            o = s.softmax(-1) @ v
        else:
            o = F.scaled_dot_product_attention(q, k, F.pad(v, (0, self.dn + self.dr - self.dv)), is_causal=True, scale=scale)[..., :self.dv]
        return self.o_proj(o.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(d, n), linear(d, n), linear(n, d)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """All experts computed densely and weighted by the routing: exact, and cheap at this size."""

    def __init__(self, c):
        super().__init__()
        self.e, self.k, self.i, d = c["num_experts"], c["num_experts_per_token"], c["moe_intermediate_size"], c["hidden_size"]
        self.scale = c["routed_scaling_factor"]
        self.gate = linear(d, self.e)
        self.gate.register_buffer("e_score_correction_bias", torch.zeros(self.e))
        self.w1, self.w3 = nn.Parameter(torch.randn(self.e * self.i, d) * 0.02), nn.Parameter(torch.randn(self.e * self.i, d) * 0.02)
        self.w2 = nn.Parameter(torch.randn(self.e, d, self.i) * 0.02)
        self.shared_experts = MLP(d, self.i * c["num_shared_experts"])

    def forward(self, x):
        hi = torch.float64 if x.dtype == torch.float64 else torch.float32
        with torch.autocast("cuda", enabled=False):
            s = (x.to(hi) @ self.gate.weight.to(hi).t()).sigmoid()
        top = (s + self.gate.e_score_correction_bias.to(hi)).topk(self.k, -1).indices
        w = torch.zeros_like(s).scatter(-1, top, s.gather(-1, top))
        self.load = (w.detach() > 0).to(torch.float32).flatten(0, -2).mean(0)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * self.scale
        h = F.silu(F.linear(x, self.w1.to(x.dtype))) * F.linear(x, self.w3.to(x.dtype))
        h = h * w.to(x.dtype).repeat_interleave(self.i, -1)
        return F.linear(h, self.w2.to(x.dtype).permute(1, 0, 2).reshape(x.shape[-1], -1)) + self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        d = c["hidden_size"]
        self.self_attn = KDA(c) if i + 1 in c["linear_attn_config"]["kda_layers"] else MLA(c)
        self.dense = i < c["first_k_dense_replace"]
        if self.dense:
            self.mlp = MLP(d, c["intermediate_size"])
        else:
            self.block_sparse_moe = MoE(c)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(d, c["rms_norm_eps"]), RMSNorm(d, c["rms_norm_eps"])

    def forward(self, x, exact):
        x = x + self.self_attn(self.input_layernorm(x), exact)
        return x + (self.mlp if self.dense else self.block_sparse_moe)(self.post_attention_layernorm(x))


class KimiLinear(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = linear(c["hidden_size"], c["vocab_size"])
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02 if isinstance(m, nn.Embedding) else m.weight.shape[1] ** -0.5)

    def hidden(self, ids, exact=False):
        x = self.model.embed_tokens(ids)
        for l in self.model.layers:
            x = l(x, exact)
        return self.model.norm(x)

    def forward(self, ids, exact=False):
        return self.lm_head(self.hidden(ids, exact))

    # ------------------------------------------------------------ official tensor names
    def export(self):
        """name -> tensor, bf16 but for A_log, dt_bias and the router bias (float32)."""
        out = {}
        for n, t in self.state_dict().items():
            t = t.detach().cpu()
            if ".block_sparse_moe.w" in n:
                p, w = n.rsplit(".", 1)
                t = t.view(self.c["num_experts"], -1, self.c["hidden_size"]) if w != "w2" else t
                for e in range(t.shape[0]):
                    out[f"{p}.experts.{e}.{w}.weight"] = t[e].bfloat16().contiguous()
            elif n.endswith(("A_log", "dt_bias", "e_score_correction_bias")):
                out[n] = t.float().contiguous()
            else:
                out[n] = t.bfloat16().contiguous()
        return out

    def load_export(self, tensors):
        sd = self.state_dict()
        for n, t in sd.items():
            if ".block_sparse_moe.w" in n:
                p, w = n.rsplit(".", 1)
                src = torch.stack([tensors[f"{p}.experts.{e}.{w}.weight"] for e in range(self.c["num_experts"])])
                t.copy_(src.reshape(t.shape))
            else:
                t.copy_(tensors[n])
        return self
