#!/usr/bin/env python3
"""The official Python client against a server: python3 openai_client_test.py --base-url http://127.0.0.1:30000

With --program PERIGEE it starts `perigee serve` on the bundled model by itself, on a free port.
"""
import argparse
import contextlib
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import openai

QUESTION = [{"role": "user", "content": "Dan has 12 coins and gets 7 more. How many coins does Dan have?"}]
WEATHER = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}]


class OpenAiClient(unittest.TestCase):
    base_url = ""

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base_url + "/v1", api_key="none", max_retries=0, timeout=120)
        self.model = self.client.models.list().data[0].id
        self.addCleanup(self.client.close)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [self.model])
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("no-such-model")

    def chat(self, **options):
        return self.client.chat.completions.create(
            model=self.model, messages=QUESTION, temperature=0, max_tokens=40, **options)

    def test_chat(self):
        reply = self.chat()
        self.assertEqual(reply.object, "chat.completion")
        self.assertEqual(reply.choices[0].message.role, "assistant")
        self.assertTrue(reply.choices[0].message.content)
        self.assertIn(reply.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        self.assertLessEqual(reply.usage.completion_tokens, 40)

    def test_streaming_chat(self):
        whole = self.chat()
        text, finish, usage = "", [], []
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.usage is not None:
                self.assertEqual(chunk.choices, [])
                usage.append(chunk.usage)
                continue
            self.assertEqual(len(chunk.choices), 1)
            text += chunk.choices[0].delta.content or ""
            finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, [whole.choices[0].finish_reason])
        self.assertEqual(usage, [whole.usage])

    def test_chat_logprobs(self):
        reply = self.chat(logprobs=True, top_logprobs=3)
        content = reply.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(t.bytes) for t in content).decode(), reply.choices[0].message.content)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)  # greedy
            self.assertLessEqual(token.logprob, 0)

    def test_seeds(self):
        def texts(**options):
            reply = self.client.completions.create(
                model=self.model, prompt="Once upon a time", temperature=1.5, max_tokens=24, n=4, **options)
            self.assertEqual([c.index for c in reply.choices], [0, 1, 2, 3])
            return [c.text for c in reply.choices]
        self.assertEqual(texts(seed=7), texts(seed=7))
        self.assertGreater(len(set(texts(seed=7))), 1)
        self.assertNotEqual(texts(), texts())

    def test_completions(self):
        def complete(**options):
            return self.client.completions.create(model=self.model, temperature=0, **options)
        reply = complete(prompt="Question: 2 + 3?\nAnswer:")
        self.assertEqual(reply.object, "text_completion")
        self.assertLessEqual(reply.usage.completion_tokens, 16)
        streamed = "".join(c.choices[0].text for c in complete(prompt="Question: 2 + 3?\nAnswer:", stream=True))
        self.assertEqual(streamed, reply.choices[0].text)
        self.assertEqual(len(complete(prompt=["a", "b"]).choices), 2)
        self.assertEqual(len(complete(prompt=[[65, 66], [67]]).choices), 2)
        echoed = complete(prompt="The end", echo=True, logprobs=2, max_tokens=1).choices[0]
        self.assertTrue(echoed.text.startswith("The end"))
        self.assertIsNone(echoed.logprobs.token_logprobs[0])
        self.assertEqual(len(echoed.logprobs.tokens), len(echoed.logprobs.token_logprobs))
        stop = reply.choices[0].text[1:3]
        if stop:
            cut = complete(prompt="Question: 2 + 3?\nAnswer:", stop=stop).choices[0]
            self.assertEqual(cut.text, reply.choices[0].text[:reply.choices[0].text.index(stop)])
            self.assertEqual(cut.finish_reason, "stop")

    def test_tools(self):
        options = dict(model=self.model, temperature=0, max_tokens=80, tools=WEATHER,
                       messages=[{"role": "user", "content": "What is the weather in Oslo?"}])
        whole = self.client.chat.completions.create(**options).choices[0]
        calls, text = {}, ""
        for chunk in self.client.chat.completions.create(stream=True, **options):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for call in delta.tool_calls or []:
                calls[call.index] = (call.id, call.function.name, call.function.arguments)
        self.assertEqual(text, whole.message.content or "")
        expected = [(c.id, c.function.name, c.function.arguments) for c in whole.message.tool_calls or []]
        self.assertEqual([calls[i] for i in sorted(calls)], expected)
        self.assertNotIn("<|tool_call", whole.message.content or "")
        if not expected:
            return
        self.assertEqual(whole.finish_reason, "tool_calls")
        follow_up = options["messages"] + [whole.message.to_dict(), {
            "role": "tool", "tool_call_id": expected[0][0], "content": "sunny"}]
        answer = self.client.chat.completions.create(**{**options, "messages": follow_up})
        self.assertTrue(answer.choices[0].message.content or answer.choices[0].message.tool_calls)

    def test_errors(self):
        for options in ({"temperature": -1}, {"n": 0}, {"presence_penalty": 1}, {"max_tokens": 10**9}):
            for stream in (False, True):
                arguments = {"model": self.model, "messages": QUESTION, "stream": stream, **options}
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.client.chat.completions.create(**arguments)
                self.assertIn(next(iter(options)), caught.exception.body["param"])
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="no-such-model", messages=QUESTION)


@contextlib.contextmanager
def running_server(program):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([program, "serve", "--port", str(port)])
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(url + "/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the server did not start")
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--program")
    args = parser.parse_args()
    if bool(args.base_url) == bool(args.program):
        parser.error("give --base-url or --program")
    with running_server(args.program) if args.program else contextlib.nullcontext(args.base_url) as url:
        OpenAiClient.base_url = url.rstrip("/")
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(OpenAiClient)
        return 0 if unittest.TextTestRunner().run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
