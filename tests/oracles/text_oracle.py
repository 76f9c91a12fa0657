"""What the text oracles share: the tool's protocol, the reference tokenizer, random texts."""
import base64
import json
import pathlib
import struct
import subprocess

import tiktoken

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models/tiny-kimi-linear"

# The model's own pattern, as its tokenizer code spells it.
PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])


class Tool:
    """The C++ side. Requests are collected and answered all at once."""

    def __init__(self, binary):
        self.binary, self.requests = binary, []

    def ask(self, kind, payload):
        if isinstance(payload, str):
            payload = payload.encode()
        self.requests.append(kind.encode() + struct.pack("<I", len(payload)) + payload)

    def answers(self):
        """(kind, payload) of each answer: ids for I, text for T and F."""
        done = subprocess.run([self.binary, str(MODEL)], input=b"".join(self.requests), capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"{self.binary} failed: {done.stderr.decode()}")
        self.requests, out, at = [], [], 0
        while at < len(done.stdout):
            kind, size = chr(done.stdout[at]), struct.unpack_from("<I", done.stdout, at + 1)[0]
            payload = done.stdout[at + 5:at + 5 + size]
            out.append((kind, list(struct.unpack(f"<{size // 4}i", payload)) if kind == "I" else payload.decode()))
            at += 5 + size
        return out


class Reference:
    """The reference tokenizer: tiktoken behind the cuts of its encode()."""

    def __init__(self):
        ranks = {}
        for line in (MODEL / "tiktoken.model").read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        added = json.loads((MODEL / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        first = len(ranks)
        names = {i: f"<|reserved_token_{i}|>" for i in range(first, first + 256)}
        names.update({int(i): entry["content"] for i, entry in added.items()})
        self.special = {name: i for i, name in names.items()}
        self.skipped = {i for i in names if added.get(str(i), {"special": True})["special"]}
        self.core = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special)

    @staticmethod
    def parts(text):
        for window in range(0, len(text), 400_000):
            start, run, was_space = window, 0, text[window].isspace()
            end = min(window + 400_000, len(text))
            for i in range(window, end):
                if text[i].isspace() != was_space:
                    run, was_space = 1, not was_space
                    continue
                run += 1
                if run > 25_000:
                    yield text[start:i]
                    start, run = i, 1
            yield text[start:end]

    def encode(self, text, recognise):
        parts = [text] if len(text) <= 25_000 else self.parts(text)
        if recognise:
            return [i for part in parts for i in self.core.encode(part, allowed_special="all")]
        return [i for part in parts for i in self.core.encode(part, disallowed_special=())]

    def decode(self, ids, skip):
        kept = [i for i in ids if not (skip and i in self.skipped)]
        return self.core.decode_bytes(kept).decode("utf-8", errors="replace")


# Scripts with and without case, marks, digits, white space, symbols, emoji.
RANGES = [(0x20, 0x7E)] * 6 + [
    (0x00, 0x1F), (0x80, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF),
    (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x13A0, 0x13FF),
    (0x1680, 0x1680), (0x1C80, 0x1CFF), (0x1D2C, 0x1DBF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218B),
    (0x2190, 0x2BFF), (0x2E80, 0x303F), (0x3040, 0x30FF), (0x3100, 0x33FF), (0x4E00, 0x9FFF), (0xA640, 0xA7FF),
    (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE6F), (0xFF00, 0xFFEF), (0x10400, 0x1044F),
    (0x16FE0, 0x16FFF), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF),
    (0x0, 0xD7FF), (0xE000, 0x10FFFF)]
PIECES = [" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "\u2028", "\x85", "\x1c", "'s", "'T", "'re", "'VE", "'m",
          "'lL", "'d", "'\u017f", "’s", "'", "the", "The", "THE", "iPhone", "123456", "3.14", "²½Ⅷ", "世界", "々〆〇",
          "ǅ", "ʰ", "e\u0301", "👩\u200d💻", "🙂", "\ufe0f", "...", "——", "//", "_", "$", "<|", "|>"]


def random_text(rng, specials, length):
    out = []
    for _ in range(rng.randrange(length)):
        pick = rng.random()
        if pick < 0.45:
            out.append(rng.choice(PIECES))
        elif pick < 0.97 or not specials:
            low, high = rng.choice(RANGES)
            out.append(chr(rng.randint(low, high)))
        else:
            out.append(rng.choice(specials))
    return "".join(out)
