#!/usr/bin/env python3
"""Compares src/text with tiktoken under the model's own pattern: python3 tokenizer_oracle.py --binary TOOL

The tables of src/text are of Unicode 16.0, as are those of the pinned tiktoken, so every code point must be classed
alike, unassigned ones too.
"""
import argparse
import random
import struct
import sys
import time

from text_oracle import Reference, Tool, random_text


def compare(name, tool, cases, expected):
    answers = tool.answers()
    assert len(answers) == len(cases) == len(expected), f"{name}: {len(answers)} answers to {len(cases)} requests"
    wrong = [i for i, (kind, got) in enumerate(answers) if kind == "F" or got != expected[i]]
    for i in wrong[:5]:
        print(f"{name}: {cases[i]!r:.300}\n  perigee   {answers[i][1]!r:.300}\n  reference {expected[i]!r:.300}")
    if wrong:
        sys.exit(f"{name}: {len(wrong)} of {len(cases)} differ")
    print(f"{name}: {len(cases)} equal")


def check_classes(tool, reference):
    """Every code point among neighbours that show its class."""
    cases, expected = [], []
    code_points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for at in range(0, len(code_points), 64):
        text = "".join(f"a{c}bB{c}1{c}世{c} {c}." for c in map(chr, code_points[at:at + 64]))
        cases.append(text)
        expected.append(reference.encode(text, False))
        tool.ask("P", text)
    compare("code points, 64 at a time", tool, cases, expected)


def check_random(tool, reference, rng, count):
    specials = list(reference.special)
    cases, expected = [], []
    for i in range(count):
        text = random_text(rng, specials, 40)
        cases.append(text)
        expected.append(reference.encode(text, i % 4 != 0))
        tool.ask("EP"[i % 4 == 0], text)
    compare("random strings", tool, cases, expected)


def check_long(tool, reference, rng):
    """The cuts after 400,000 characters and in runs of 25,000."""
    specials = list(reference.special)
    cases, expected = [], []
    for i in range(24):
        text = ""
        while len(text) < 20_000 + i * 40_000:
            pick = rng.random()
            if pick < 0.1:
                text += rng.choice(["a", " ", "\n ", "世", "e\u0301", "!", " \x1c", "12"]) * rng.randrange(30_000)
            elif pick < 0.5:
                text += rng.choice(specials)
            else:
                text += random_text(rng, specials, 2_000)
        cases.append(text)
        expected.append(reference.encode(text, i % 4 != 0))
        tool.ask("EP"[i % 4 == 0], text)
    compare("long strings", tool, cases, expected)


def check_decoding(tool, reference, rng, count):
    cases, expected = [], []
    for i in range(count):
        size = rng.randrange(30)
        ids = [rng.randrange(256) if rng.random() < 0.6 else rng.randrange(2048) for _ in range(size)]
        cases.append(ids)
        expected.append(reference.decode(ids, i % 2 == 0))
        tool.ask("DS"[i % 2 == 0], struct.pack(f"<{size}i", *ids))
    compare("decodings", tool, cases, expected)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True, help="text_oracle_tool")
    parser.add_argument("--strings", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    start, rng = time.time(), random.Random(args.seed)
    tool, reference = Tool(args.binary), Reference()
    check_classes(tool, reference)
    check_random(tool, reference, rng, args.strings)
    check_long(tool, reference, rng)
    check_decoding(tool, reference, rng, args.strings // 4)
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
