#!/usr/bin/env python3
"""Compares `perigee score` with the float64 reference on fresh random models: reference_oracle.py --program PERIGEE [--seeds N ...]

A seed decides the shape, the weights and the prompts. The committed goldens only show that nothing changed since they were made;
this shows agreement where nobody looked before. It also computes the short goldens of the bundled model again.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/tiny_model"))
from random_model import write_model  # noqa: E402
from reference import Model  # noqa: E402

# Log-probabilities, prompts of up to 300 tokens. A few random models magnify rounding so much that no fp32 program could
# meet it; they get this many times what one rounding of the embedding does to the reference itself.
BOUND = 1e-4
NOISE_FACTOR = 10
LENGTHS = (1, 3, 17, 64, 100, 193, 300)
# A routing nearer to a tie than this may fall the other way in fp32.
ROUTER_GAP = 1e-5


def random_spec(seed):
    r = np.random.default_rng(seed)
    pick = lambda low, high: int(r.integers(low, high + 1))
    layers = pick(3, 6)
    order = r.permutation(layers) + 1
    experts = pick(2, 12)
    return {
        "config": {
            "hidden_size": pick(24, 96), "num_hidden_layers": layers, "intermediate_size": pick(16, 128),
            "kda_layers": sorted(order[:pick(1, layers - 1)].tolist()), "kda_heads": pick(1, 8), "kda_head_dim": pick(4, 40),
            "conv_width": pick(2, 5), "num_attention_heads": pick(1, 8), "kv_lora_rank": pick(8, 72),
            "qk_nope_head_dim": pick(4, 40), "qk_rope_head_dim": pick(1, 24), "v_head_dim": pick(4, 48),
            "num_experts": experts, "num_experts_per_token": pick(1, experts), "num_shared_experts": pick(0, 3),
            "moe_intermediate_size": pick(4, 40), "first_k_dense_replace": pick(0, 2), "moe_layer_freq": pick(1, 2),
            "moe_renormalize": bool(pick(0, 1)), "routed_scaling_factor": 1 + r.random()},
        "dtype": ("BF16", "F16", "F32")[pick(0, 2)], "shards": pick(1, 3), "max_rate": float(10 ** r.uniform(0.5, 2.3)),
        "merges": ["th", "in", "the"][:pick(0, 3)], "seed": seed}


def prompts(model, seed):
    """(ids, the reference's log-probabilities after every token, bound) of random prompts whose routing is clear."""
    r = np.random.default_rng(seed)
    found = []
    for length in LENGTHS:
        for _ in range(20):
            ids = r.integers(0, model.config["vocab_size"], length).tolist()
            model.router_gap = np.inf
            log_probs = model.log_probs(ids)
            if model.router_gap > ROUTER_GAP:
                found.append((ids, log_probs, max(BOUND, NOISE_FACTOR * rounding_noise(model, ids, log_probs))))
                break
    return found


def rounding_noise(model, ids, log_probs):
    """What relative changes of 2^-24 in the embedding do to the log-probabilities."""
    name = "model.embed_tokens.weight"
    exact = model.weight[name]
    model.weight[name] = exact * (1 + 2.0 ** -24 * np.random.default_rng(0).choice([-1, 1], exact.shape))
    noise = np.abs(model.log_probs(ids) - log_probs).max()
    model.weight[name] = exact
    return noise


def score(program, folder, prompts_ids, work):
    (work / "in.json").write_text(json.dumps({"cases": [{"ids": ids} for ids in prompts_ids]}), encoding="utf-8")
    subprocess.run([program, "score", "--model-path", folder, "--input", work / "in.json", "--output", work / "out.json"],
                   check=True, stderr=subprocess.PIPE)
    return json.loads((work / "out.json").read_text(encoding="utf-8"))["cases"]


def difference(case, ids, log_probs):
    """Largest difference of the prompt's own log-probabilities, of those in `top`, and of `top` from the 20 best by rank."""
    assert case["ids"] == ids
    own = [abs(got - log_probs[i, ids[i + 1]]) for i, got in enumerate(case["logprobs"][1:])]
    assert len(own) == len(ids) - 1 and len(case["top"]) == 20
    best = np.sort(log_probs[-1])[::-1]
    top = [abs(value - log_probs[-1, i]) for i, value in case["top"]]
    by_rank = [abs(value - best[rank]) for rank, (_, value) in enumerate(case["top"])]
    return max(own + top + by_rank)


def check_random_model(program, seed):
    spec = random_spec(seed)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_model(spec, work / "model")
        cases = prompts(Model(work / "model"), seed)
        results = score(program, work / "model", [ids for ids, _, _ in cases], work)
    worst = [difference(case, ids, log_probs) for case, (ids, log_probs, _) in zip(results, cases, strict=True)]
    bounds = [bound for _, _, bound in cases]
    print(f"seed {seed}: {spec['dtype']}, {spec['config']['num_hidden_layers']} layers, {len(cases)} prompts, "
          f"largest difference {max(worst):.2g}, bound {max(bounds):.2g}", flush=True)
    if len(cases) >= len(LENGTHS) - 1 and all(w <= b for w, b in zip(worst, bounds)):
        return True
    pairs = ", ".join(f"{w:.2g} (bound {b:.2g})" for w, b in zip(worst, bounds))
    print(f"  {pairs}: {json.dumps(spec)}")
    return False


def check_goldens():
    """The committed goldens of at most 30 tokens are still what the reference says."""
    golden = json.loads((ROOT / "tests/data/golden/tiny-kimi-linear.json").read_text(encoding="utf-8"))
    model = Model(ROOT / "models/tiny-kimi-linear")
    worst, count = 0, 0
    for case in golden["cases"]:
        ids = case["ids"]
        if len(ids) > 30:
            continue
        log_probs = model.log_probs(ids)
        worst = max([worst] + [abs(value - log_probs[i, ids[i + 1]]) for i, value in enumerate(case["logprobs"][1:])]
                    + [abs(value - log_probs[-1, i]) for i, value in case["top"]])
        assert log_probs[-1].argmax() == case["greedy"][0], case["name"]
        count += 1
    print(f"{count} goldens of the bundled model: largest difference {worst:.2g}")
    return count > 0 and worst <= 1e-8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args()
    good = [check_goldens()] + [check_random_model(args.program, seed) for seed in args.seeds]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
