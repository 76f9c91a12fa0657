"""Writes the prompts of the goldens: {"cases": [{"name", "text", "ids"}]}, the input of golden.py. Needs regex and numpy.

usage: make_cases.py MODEL_DIR OUT.json
"""
import json
import os
import random
import sys

import tinydata as td


def prompts(tok, seed=2024):
    r = random.Random(seed)
    needles = td.Needles(tok, seed=seed)
    ask = lambda text: td.chat([{"role": "user", "content": text}], generation=True)
    yield "hello", ask("Hello")
    yield "one_token", "<|im_user|>"
    yield "raw_text", "The quiet river follows"
    yield "arithmetic", ask(td.arithmetic_of(r, "test")[0])
    yield "emoji_repeat", ask("Repeat after me: 你好 🙂 café 👋 Oslo привет")
    yield "tool_call", td.chat([{"role": "user", "content": "What is the weather in Oslo?"}], [td.WEATHER_TOOL], True)
    yield "few_shot", td.few_shot(r, "test")[0]
    yield "needle_700", needles.sample(r, 700)[2]


def main():
    folder, out = sys.argv[1:]
    tok = td.Tokenizer.load(os.path.join(folder, "tiktoken.model"))
    cases = [{"name": name, "text": text, "ids": tok.encode(text)} for name, text in prompts(tok)]
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"cases": cases}, f, ensure_ascii=False)


if __name__ == "__main__":
    main()
