"""Measures the work between a request of 24 messages and the model: parsing, filters and composing.

python -m bench.chain [CONFIG] [--profile] [--cold MB]

Between two requests, a server does other work. With ``--cold``, this many megabytes are copied before each
measurement, so that its code and data are not in the processor's caches.
"""

import argparse
import cProfile
import json
import os
import pstats
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from filters.base import Context
from proxy.settings.build import build_runtime
from proxy.settings.load import load
from proxy.turn import chain, identity, request
from proxy.upstream.body import compose

ROUNDS, REPEAT = 200, 15


def body(messages: int = 24) -> bytes:
    """Returns a request of Agora in the middle of a call."""
    said = []
    for i in range(messages):
        user = i % 2 == 0
        metadata = {"source": "asr", "user": "u-1"} if user else {"source": "llm"}
        if i % 9 == 5:
            metadata |= {"interrupted": True, "original": "I was going to say that the weather is mild. " * 3}
        said.append(
            {
                "role": "user" if user else "assistant",
                "turn_id": i // 2,
                "timestamp": 1790000000000 + i * 2500,
                "metadata": metadata,
                "content": "please tell me about the größte Lissabon weather tomorrow morning " * 3,
            }
        )
    system = {"role": "system", "content": "You are a helpful voice assistant. Keep answers short. " * 3}
    call = {"model": "m", "messages": [system, *said], "stream": True, "turn_id": 12, "channel": "room"}
    return json.dumps(call, ensure_ascii=False).encode()


def microseconds(work: Callable[[], object]) -> float:
    """Returns the best median of several rounds of one piece of work."""
    took = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        for _ in range(ROUNDS):
            work()
        took.append((time.perf_counter() - start) / ROUNDS * 1e6)
    return statistics.median(took)


def coldly(megabytes: int, work: Callable[[], object]) -> float:
    """Returns the median of one piece of work, each time after this much memory was copied."""
    other, took = memoryview(os.urandom(megabytes << 20)), []
    for _ in range(ROUNDS // 2):
        other.tobytes()
        start = time.perf_counter()
        work()
        took.append((time.perf_counter() - start) * 1e6)
    return statistics.median(took)


def main() -> None:
    """Prints a row per stage."""
    options = argparse.ArgumentParser()
    options.add_argument("config", type=Path, nargs="?", default=Path("config/agora.yaml"))
    options.add_argument("--profile", action="store_true")
    options.add_argument("--cold", type=int, default=0, metavar="MB")
    asked = options.parse_args()
    measured = partial(coldly, asked.cold) if asked.cold else microseconds
    parts = build_runtime(load(asked.config, os.environ), os.environ)
    pipeline = parts.pipelines["default"]
    target = pipeline.targets[0]
    raw = body()
    call = request.read_request(raw, {}, {})
    context = Context(now=time.time())
    log = chain.FilterLog()
    messages = chain.run(pipeline.filters, call.messages, context, log)

    def whole() -> bytes:
        read = request.read_request(raw, {}, {})
        identity.identify(read, pipeline.id_places, "default")
        seen = chain.run(pipeline.filters, read.messages, context, log)
        fields = chain.set_fields(pipeline.filters, read.fields, context, log)
        return compose(target.provider, fields, seen)

    print(f"{len(call.messages)} messages, {len(raw)} bytes; microseconds")
    print(f"  read     {measured(lambda: request.read_request(raw, {}, {})):7.1f}")
    print(f"  identity {measured(lambda: identity.identify(call, pipeline.id_places, 'default')):7.1f}")
    for step in pipeline.filters:
        cost = measured(lambda step=step: step.apply(messages, context))
        print(f"    {type(step).__name__:20} {cost:7.1f}")
    print(f"  filters  {measured(lambda: chain.run(pipeline.filters, call.messages, context, log)):7.1f}")
    print(f"  compose  {measured(lambda: compose(target.provider, call.fields, messages)):7.1f}")
    print(f"  whole    {measured(whole):7.1f}")
    if asked.profile:
        with cProfile.Profile() as profile:
            for _ in range(ROUNDS * 5):
                whole()
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
