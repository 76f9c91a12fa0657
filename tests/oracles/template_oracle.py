#!/usr/bin/env python3
"""Compares native chat rendering with jinja2 on the model's own template: python3 template_oracle.py --binary TOOL

jinja2 runs as transformers runs it: sandboxed, trim_blocks, lstrip_blocks, its own tojson; tools are sorted beforehand
as the model's tokenizer code does.
"""
import argparse
import json
import math
import random
import struct
import sys
import time

import jinja2.sandbox

from text_oracle import MODEL, Reference, Tool, random_text


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def sort_keys(value):
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value


class Conversations:
    """Random ones; `specials` may occur in every text."""

    def __init__(self, rng, specials):
        self.rng, self.specials = rng, specials

    def text(self, length=25):
        text = random_text(self.rng, self.specials, length)
        return text if self.specials else text.replace("<|", "")

    def number(self):
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            return rng.randint(-100, 100)
        if kind == 1:
            return rng.randint(-10**40, 10**40)
        if kind == 2:
            return round(rng.uniform(-100, 100), rng.randrange(6))
        if kind == 3:
            return float(10 ** rng.randint(0, 30))
        if kind == 4:
            return rng.uniform(-1, 1) * 10.0 ** rng.randint(-20, 20)
        while True:
            value = struct.unpack("<d", rng.randbytes(8))[0]
            if math.isfinite(value):
                return value

    def json(self, depth):
        kind = self.rng.randrange(7 if depth > 0 else 5)
        if kind < 2:
            return self.number()
        if kind < 4:
            return self.text(8)
        if kind == 4:
            return self.rng.choice([None, True, False])
        if kind == 5:
            return [self.json(depth - 1) for _ in range(self.rng.randrange(4))]
        return {self.text(5): self.json(depth - 1) for _ in range(self.rng.randrange(5))}

    def message(self):
        rng = self.rng
        role = rng.choice(["user", "assistant", "system", "tool", "developer", "ipython", self.text(4) or "x"])
        message = {"role": role}
        if rng.random() < 0.3:
            message["name"] = rng.choice(["", "mira", self.text(5)])
        pick = rng.random()
        if pick < 0.8:
            message["content"] = self.text()
        elif pick < 0.9:
            message["content"] = None
        elif pick < 0.95:
            message["content"] = [{"type": "text", "text": self.text()} for _ in range(rng.randrange(3))]
        if role == "tool":
            message["tool_call_id"] = f"functions.{self.text(4)}:{rng.randrange(9)}"
        if role == "assistant" and rng.random() < 0.5:
            message["tool_calls"] = [self.call() for _ in range(rng.randrange(3))]
        return message

    def call(self):
        arguments = self.json(3)
        if not isinstance(arguments, dict):
            arguments = self.text()
        return {"id": f"functions.{self.text(4)}:{self.rng.randrange(9)}", "type": "function",
                "function": {"name": "f", "arguments": arguments}}

    def conversation(self):
        rng = self.rng
        return {"messages": [self.message() for _ in range(rng.randrange(6))],
                "tools": [self.json(4) for _ in range(rng.choice([0, 0, 1, 2, 3]))],
                "add_generation_prompt": rng.random() < 0.7}


def as_request(conversation, rng):
    """The conversation as the server hands it to src/text."""
    messages = json.loads(json.dumps(conversation["messages"]))
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part["text"] for part in message["content"])
        for call in message.get("tool_calls", []):
            if not isinstance(call["function"]["arguments"], str):
                call["function"]["arguments_json"] = json.dumps(call["function"].pop("arguments"))
    spacing = {"indent": rng.choice([None, 2]), "ensure_ascii": rng.random() < 0.5}
    return json.dumps({"messages": messages, "tools": json.dumps(conversation["tools"], **spacing),
                       "add_generation_prompt": conversation["add_generation_prompt"]})


def fail(what, request, got, expected):
    sys.exit(f"{what} differs\n  request   {request!r:.2000}\n  perigee   {got!r:.2000}\n  reference {expected!r:.2000}")


def check_conversations(tool, reference, rng, count):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    template = environment.from_string((MODEL / "chat_template.jinja").read_text(encoding="utf-8"))
    cases = []
    for i in range(count):
        plain = i % 2 == 0
        conversation = Conversations(rng, [] if plain else list(reference.special)).conversation()
        text = template.render(messages=conversation["messages"], tools=sort_keys(conversation["tools"]),
                               add_generation_prompt=conversation["add_generation_prompt"])
        request = as_request(conversation, rng)
        cases.append((plain, request, text))
        tool.ask("C", request)
    answers = tool.answers()
    assert len(answers) == 2 * count, answers[:5]
    for (plain, request, text), rendered, encoded in zip(cases, answers[0::2], answers[1::2]):
        if rendered[1] != text:
            fail("rendering", request, rendered[1], text)
        # A client's special strings are text for us and control ids for the reference.
        ids = reference.encode(text, True) if plain else None
        if plain and encoded[1] != ids:
            fail("ids", request, encoded[1], ids)
        if reference.decode(encoded[1], False) != text:
            fail("decoded ids", request, encoded[1], text)
    print(f"conversations: {count} equal")


def check_json(tool, rng, count):
    made = Conversations(rng, [])
    texts = [json.dumps(made.json(4), indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5)
             for _ in range(count)]
    texts += [json.dumps(made.number()) for _ in range(10 * count)]
    for text in texts:
        tool.ask("J", text)
    for text, (kind, got) in zip(texts, tool.answers(), strict=True):
        expected = json.dumps(json.loads(text), ensure_ascii=False)
        if kind != "T" or got != expected:
            fail("JSON", text, got, expected)
    print(f"JSON texts: {len(texts)} equal")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True, help="text_oracle_tool")
    parser.add_argument("--conversations", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    start, rng = time.time(), random.Random(args.seed)
    tool, reference = Tool(args.binary), Reference()
    check_conversations(tool, reference, rng, args.conversations)
    check_json(tool, rng, args.conversations)
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
