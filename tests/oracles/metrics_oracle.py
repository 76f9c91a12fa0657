#!/usr/bin/env python3
"""/metrics as the official Prometheus library reads it: python3 metrics_oracle.py --program PERIGEE"""
import argparse
import json
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

import openai_client_test


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def page(url):
    with urllib.request.urlopen(url + "/metrics", timeout=30) as reply:
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", reply.headers
        families = list(text_string_to_metric_families(reply.read().decode()))
    types = {family.name: family.type for family in families}
    samples = {}
    for family in families:
        assert family.documentation and family.samples and family.type != "unknown", family
        assert family.name.startswith("perigee_"), family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return types, samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    with openai_client_test.running_server(parser.parse_args().program) as url:
        document = "A long document about ducks. " * 60
        usage = [post(url, "/v1/completions", {"prompt": document + end, "max_tokens": 8, "temperature": 0})["usage"]
                 for end in ("One.", "Two.")]
        types, samples = page(url)

    def value(name, **labels):
        return samples[(name, tuple(sorted(labels.items())))]

    # The library takes _total off the names of counters.
    for name in ("requests", "steps", "prompt_tokens", "cached_tokens", "generation_tokens", "preemptions",
                 "cancellations", "collective_elements", "planner_choices"):
        assert types["perigee_" + name] == "counter", name
    for name in ("num_requests_running", "num_requests_waiting", "kv_pages", "state_slots", "build_info"):
        assert types["perigee_" + name] == "gauge", name
    assert value("perigee_requests_total", outcome="finished") == 2
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
    assert cached > 0
    assert value("perigee_cached_tokens_total") == cached
    assert value("perigee_prompt_tokens_total") == sum(u["prompt_tokens"] for u in usage)
    assert value("perigee_generation_tokens_total") == sum(u["completion_tokens"] for u in usage)
    assert value("perigee_prefix_cache_hits_total") == 1
    for name, count in (("time_to_first_token", 2), ("e2e_request_latency", 2),
                        ("inter_token_latency", sum(u["completion_tokens"] - 1 for u in usage))):
        name = f"perigee_{name}_seconds"
        assert types[name] == "histogram", name
        assert value(name + "_count") == count, (name, value(name + "_count"))
        assert value(name + "_bucket", le="+Inf") == count
        assert value(name + "_sum") > 0
    print(f"{len(types)} families, {len(samples)} samples")
    return 0


if __name__ == "__main__":
    sys.exit(main())
