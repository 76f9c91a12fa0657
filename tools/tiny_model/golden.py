"""Reference results of a Kimi-Linear folder, in float64 (reference.py). Needs numpy only.

usage: golden.py MODEL_DIR OUT.json (--cases CASES.json | --random LENGTH [LENGTH ...]) [options]

CASES.json is {"cases": [{"name", "text", "ids"}]}: make_cases.py writes it, and an earlier OUT.json serves too. --random draws ids
below the folder's number of ranks instead. Each case of OUT.json has name, text (if any), ids, greedy (the next ids), text_out, top
(the 20 best (id, log-probability) after the prompt) and logprobs (log-probability of ids[i] given ids[:i], first entry null).
"""
import argparse
import base64
import json
import pathlib
import struct

import numpy as np

from reference import Model


class Vocabulary:
    """The bytes of every id: tiktoken.model's ranks, then the named specials. `stops` are the ids that end a greedy continuation."""

    def __init__(self, folder):
        self.bytes = {}
        for line in (folder / "tiktoken.model").read_bytes().split(b"\n"):
            if line:
                token, rank = line.split()
                self.bytes[int(rank)] = base64.b64decode(token)
        self.ranks = len(self.bytes)
        named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
        self.bytes.update({int(i): entry["content"].encode() for i, entry in named.items()})
        self.stops = [int(i) for i, entry in named.items() if entry["content"] in ("[EOS]", "<|im_end|>")]

    def text(self, ids):
        return b"".join(self.bytes.get(i, b"") for i in ids).decode("utf-8", "replace")


def greedy(model, ids, steps, stops):
    """The most probable continuation, and the smallest lead that a chosen id had over the second best."""
    out, lead = [], np.inf
    while len(out) < steps and not (out and out[-1] in stops):
        logits = model.logits(ids + out)[-1]
        out.append(int(logits.argmax()))
        lead = min(lead, np.diff(np.sort(logits)[-2:])[0])
    return out, lead


def complete(model, vocabulary, case, steps, stops):
    """The case with its results; prints how much depends on the first token and how near a tie the greedy ids came."""
    ids = case["ids"]
    lp = model.log_probs(ids)
    # Long prompts get a short continuation: every step computes the whole prompt again.
    out, lead = greedy(model, ids, min(steps, 8) if len(ids) > 400 else steps, stops)
    best = np.argsort(-lp[-1], kind="stable")[:20]
    effect = first_token_effect(model, ids)
    print(f"{case['name']}: {len(ids)} tokens, first token moves the end by {effect:.2g}, smallest lead of a greedy id "
          f"{lead:.2g}", flush=True)
    return case | {
        "greedy": out, "text_out": vocabulary.text(out),
        "top": [[int(i), round(float(lp[-1, i]), 9)] for i in best],
        "logprobs": [None] + [round(float(lp[i - 1, ids[i]]), 9) for i in range(1, len(ids))]}


def first_token_effect(model, ids):
    """Largest change of the last position's log-probabilities when the first token is another one."""
    other = [(ids[0] + 1) % model.config["vocab_size"]] + ids[1:]
    return np.abs(model.log_probs(ids)[-1] - model.log_probs(other)[-1]).max()


def write_activations(path, model, ids):
    activations = {}
    model.logits(ids, activations)
    header, offset = {}, 0
    for name, x in activations.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [offset, offset + 4 * x.size]}
        offset += 4 * x.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(x.astype("<f4").tobytes() for x in activations.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--cases", type=pathlib.Path)
    source.add_argument("--random", type=int, nargs="+", metavar="LENGTH")
    parser.add_argument("--seed", type=int, default=1, help="of --random")
    parser.add_argument("--greedy", type=int, default=32, help="steps of the greedy continuation")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past [EOS] and <|im_end|>")
    parser.add_argument("--activations", type=pathlib.Path, help="float32 outputs of the first case's layers, as safetensors")
    args = parser.parse_args()

    model, vocabulary = Model(args.folder), Vocabulary(args.folder)
    if args.cases:
        cases = [{k: c[k] for k in ("name", "text", "ids") if k in c}
                 for c in json.loads(args.cases.read_text(encoding="utf-8"))["cases"]]
    else:
        random = np.random.default_rng(args.seed)
        cases = [{"name": f"random_{n}", "ids": random.integers(0, vocabulary.ranks, n).tolist()} for n in args.random]
    stops = () if args.ignore_eos else vocabulary.stops
    results = [complete(model, vocabulary, case, args.greedy, stops) for case in cases]
    print(f"smallest router gap {model.router_gap:.2g}")
    args.out.write_text(json.dumps({"model": args.folder.resolve().name, "arithmetic": "float64, token by token",
                                    "cases": results}, ensure_ascii=False), encoding="utf-8")
    if args.activations:
        write_activations(args.activations, model, cases[0]["ids"])


if __name__ == "__main__":
    main()
