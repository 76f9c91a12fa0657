#!/usr/bin/env python3
"""Mixed load on a running server, and what must hold during and after it.

Clients send prompts of all lengths: fresh ones, ones with a beginning in common, next turns of what was
answered, and streams that are dropped in the middle. With --golden the cases of a golden file are asked for
all the while beside the others: their log-probabilities must stay within the gate of their case and their
greedy answers must be those of the exact model. Afterwards every page must be free or cached, and all of them
free once the cache is flushed. Exits 1 when something did not hold. Needs Python's own library alone.

  tools/mixed_load.py --base-url http://127.0.0.1:30000 --seconds 600 --clients 128
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.parse

# Mean difference of log-probabilities that BF16 may make in a case of the bundled model: twice what rounding
# alone makes of it, and never less than LEAST_GATE. The noise is that of forward_cuda_test.
LEAST_GATE = 2e-3
NOISE = {"hello": 2.0e-4, "raw_text": 3.6e-2, "arithmetic": 7.3e-4, "emoji_repeat": 2.5e-3,
         "tool_call": 1.6e-4, "few_shot": 4.9e-4, "needle_700": 2.7e-2}


class Server:
    def __init__(self, base_url):
        url = urllib.parse.urlparse(base_url)
        self.host, self.port = url.hostname, url.port

    def call(self, method, path, body=None, timeout=600):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def drop(self, body, bytes_read):
        """Begins a stream and goes away after some bytes of it."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        try:
            connection.request("POST", "/generate", json.dumps(body | {"stream": True}),
                               {"Content-Type": "application/json"})
            if bytes_read == 0:
                return 200
            reply = connection.getresponse()
            reply.read(bytes_read)
            return reply.status
        finally:
            connection.close()

    def metrics(self):
        _, page = self.call("GET", "/metrics")
        values = {}
        for line in page.decode().splitlines():
            if match := re.fullmatch(r"(perigee_\S+) (\S+)", line):
                values[match[1]] = float(match[2])
        return values


class Load:
    def __init__(self, server, options):
        self.server = server
        self.options = options
        self.lock = threading.Lock()
        self.counts = {"answers": 0, "dropped": 0, "prompt_tokens": 0, "cached_tokens": 0, "generated": 0}
        self.mistakes = {}  # how often, by text
        self.golden = {}
        self.end = time.monotonic() + options.seconds
        self.random = random.Random(options.seed)
        self.documents = [self.ids(self.random, self.length(self.random)) for _ in range(32)]

    def ids(self, rng, count):
        return [rng.randrange(self.options.max_id) for _ in range(count)]

    def length(self, rng):
        return max(1, min(self.options.max_prompt, int(rng.lognormvariate(self.options.log_length, 1.2))))

    def wrong(self, text):
        with self.lock:
            self.mistakes[text] = self.mistakes.get(text, 0) + 1

    def prompt(self, rng, history):
        kind = rng.random()
        if kind < 0.3:
            document = rng.choice(self.documents)
            return document[: rng.randint(1, len(document))] + self.ids(rng, rng.randint(1, 100))
        if kind < 0.55 and history and len(history) < self.options.max_prompt:
            return history + self.ids(rng, rng.randint(1, 100))
        return self.ids(rng, self.length(rng))

    def client(self, number):
        rng = random.Random(self.options.seed * 1000 + number)
        history = []
        while time.monotonic() < self.end:
            prompt = self.prompt(rng, history)
            count = rng.randint(1, self.options.max_new)
            body = {"input_ids": prompt,
                    "sampling_params": {"max_new_tokens": count, "ignore_eos": True,
                                        "temperature": rng.choice([0, 1])}}
            try:
                if rng.random() < 0.15:
                    status = self.server.drop(body, rng.choice([0, 1, 100, 1000]))
                    if status != 200:
                        self.wrong(f"a dropped stream: status {status}")
                    with self.lock:
                        self.counts["dropped"] += 1
                    continue
                status, reply = self.server.call("POST", "/generate", body)
                if status != 200:
                    self.wrong(f"{len(prompt)} tokens: status {status}: {reply[:200]!r}")
                    continue
                answer = json.loads(reply)
                meta = answer["meta_info"]
                if meta["completion_tokens"] != count or meta["prompt_tokens"] != len(prompt):
                    self.wrong(f"asked {len(prompt)} + {count}, got {meta}")
                history = prompt + answer["output_ids"]
                with self.lock:
                    self.counts["answers"] += 1
                    self.counts["prompt_tokens"] += len(prompt)
                    self.counts["cached_tokens"] += meta["cached_tokens"]
                    self.counts["generated"] += count
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                self.wrong(f"{type(error).__name__}: {error}")

    def check_case(self, case):
        wanted = case["logprobs"][1:]
        body = {"input_ids": case["ids"], "return_logprob": True, "logprob_start_len": 0,
                "sampling_params": {"max_new_tokens": len(case["greedy"]), "temperature": 0, "ignore_eos": True}}
        status, reply = self.server.call("POST", "/generate", body)
        if status != 200:
            return self.wrong(f"{case['name']}: status {status}: {reply[:200]!r}")
        answer = json.loads(reply)
        found = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]
        mean = sum(abs(a - b) for a, b in zip(found, wanted, strict=True)) / max(1, len(wanted))
        gate = max(LEAST_GATE, 2 * NOISE.get(case["name"], 0))
        if not mean <= gate:
            self.wrong(f"{case['name']}: mean difference {mean:.2e}, gate {gate:.2e}")
        # Once more from the cache, without the prompt's log-probabilities.
        del body["logprob_start_len"]
        status, reply = self.server.call("POST", "/generate", body)
        again = json.loads(reply) if status == 200 else {"output_ids": reply[:200]}
        for which, output in (("computed", answer["output_ids"]), ("reused", again["output_ids"])):
            if output != case["greedy"]:
                self.wrong(f"{case['name']}, prompt {which}: {output} instead of {case['greedy']}")
        with self.lock:
            seen = self.golden.setdefault(case["name"], [0, 0.0, gate])
            seen[0] += 1
            seen[1] = max(seen[1], mean)

    def golden_client(self):
        with open(self.options.golden, encoding="utf-8") as file:
            cases = [case for case in json.load(file)["cases"] if len(case["ids"]) > 1]
        while time.monotonic() < self.end:
            for case in cases:
                self.check_case(case)

    def watch(self, samples):
        begin = time.monotonic()
        while time.monotonic() < self.end:
            values = self.server.metrics()
            samples.append((time.monotonic() - begin, values["perigee_num_requests_running"],
                            values["perigee_num_requests_waiting"], values["perigee_preemptions_total"], gpu_mib()))
            time.sleep(self.options.sample)

    def run(self):
        samples = []
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.options.clients)]
        threads.append(threading.Thread(target=self.watch, args=(samples,)))
        if self.options.golden:
            threads.append(threading.Thread(target=self.golden_client))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.check_rest()
        return samples

    def pages(self, values):
        return {state: values[f'perigee_kv_pages{{state="{state}"}}'] for state in ("used", "cached", "free")}

    def check_rest(self):
        patience = time.monotonic() + 60
        while time.monotonic() < patience:
            values = self.server.metrics()
            if values["perigee_num_requests_running"] + values["perigee_num_requests_waiting"] == 0:
                break
            time.sleep(0.05)
        else:
            self.wrong("requests are still there a minute after the last")
        before = self.pages(values)
        self.server.call("POST", "/flush_cache")
        after = self.pages(self.server.metrics())
        if before["used"] != 0:
            self.wrong(f"pages without an owner: {before}")
        if after["free"] != sum(before.values()):
            self.wrong(f"pages after the flush: {after}, before: {before}")
        print(f"pages at the end {before}, after the flush {after}")


def gpu_mib():
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True).stdout
        return int(text.split()[0])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--max-id", type=int, default=1700, help="prompt ids are below this")
    parser.add_argument("--max-prompt", type=int, default=16000)
    parser.add_argument("--log-length", type=float, default=6.5, help="mean of the logarithm of the lengths")
    parser.add_argument("--max-new", type=int, default=200)
    parser.add_argument("--golden", help="a golden file of the served model")
    parser.add_argument("--sample", type=float, default=10, help="seconds between two looks at the server")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    load = Load(Server(options.base_url), options)
    for at, running, waiting, preempted, mib in load.run():
        print(f"{at:7.1f} s  running {running:.0f}, waiting {waiting:.0f}, preempted {preempted:.0f}, GPU {mib} MiB")
    print(json.dumps(load.counts))
    for name, (times, worst, gate) in load.golden.items():
        print(f"{name}: {times} times, worst mean difference {worst:.2e}, gate {gate:.2e}")
    for mistake, times in sorted(load.mistakes.items(), key=lambda item: -item[1])[:20]:
        print(f"WRONG, {times} times: {mistake}")
    print(f"{sum(load.mistakes.values())} mistakes")
    return 1 if load.mistakes or not load.counts["answers"] else 0


if __name__ == "__main__":
    sys.exit(main())
