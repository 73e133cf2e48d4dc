"""Measures an agent's short-term memory on a real Redis, and compares it with the limits.

python -m bench.episodes [--url redis://…] [--writers 4] [--count 500]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from proxy.memory import ShortTermMemoryManager
from tests.peers.redis_server import single

AGENT = "bench"
PATTERN = f"agent:{AGENT}*"
SAID = {"interaction_type": "posted_tweet", "content": "Just shipped a new AI feature! " * 5, "platform": "x"}


def p99(took: list[float]) -> float:
    """Returns the 99th percentile in milliseconds."""
    return sorted(took)[int(0.99 * len(took))] * 1000


async def latencies(url: str, count: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of each write, and of each read of 10 episodes."""
    memory = ShortTermMemoryManager(url, AGENT)
    await memory.connect()
    writes, reads = [], []
    for _ in range(count):
        began = time.perf_counter()
        await memory.add_interaction(**SAID)
        writes.append(time.perf_counter() - began)
    for _ in range(count):
        began = time.perf_counter()
        assert len(await memory.get_recent(limit=10)) == 10
        reads.append(time.perf_counter() - began)
    await memory.disconnect()
    return writes, reads


async def write_all(url: str, count: int) -> None:
    """Writes the episodes of one process."""
    memory = ShortTermMemoryManager(url, AGENT)
    for _ in range(count):
        await memory.add_interaction(**SAID)
    await memory.disconnect()


def writer(url: str, count: int) -> None:
    asyncio.run(write_all(url, count))


def rate(url: str, writers: int, count: int) -> float:
    """Returns the writes per second of several processes, including their start."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=writer, args=(url, count)) for _ in range(writers)]
    began = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("A writer failed.")
    return writers * count / (time.perf_counter() - began)


def size(url: str, count: int) -> float:
    """Returns the bytes of the server's memory that each entry takes, including its index."""
    with redis.Redis.from_url(url) as client:
        before = int(client.info("memory")["used_memory"])
        asyncio.run(write_all(url, count))
        return (int(client.info("memory")["used_memory"]) - before) / count


@contextlib.contextmanager
def served(url: str) -> Iterator[str]:
    """Yields the Redis at ``url``, or a new one."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder, single(Path(folder)) as server:
        yield f"{server.url}/0"


def forget(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(PATTERN):
            client.delete(key)


def main() -> None:
    """Prints a row for each requirement, and fails if one is not met."""
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="")
    options.add_argument("--writers", type=int, default=4)
    options.add_argument("--count", type=int, default=500)
    asked = options.parse_args()
    with served(asked.url) as url:
        try:
            each = size(url, asked.count)
            writes, reads = asyncio.run(latencies(url, asked.count))
            together = rate(url, asked.writers, asked.count)
        finally:
            forget(url)
    rows = [
        ("write, p99", p99(writes), "< 10 ms", p99(writes) < 10),
        ("read of 10, p99", p99(reads), "< 50 ms", p99(reads) < 50),
        ("entry", each, "< 1024 bytes", each < 1024),
        (f"{asked.writers} processes", together, ">= 100 writes/s", together >= 100),
    ]
    for name, measured, wanted, holds in rows:
        print(f"{name:20} {measured:10.2f}   {wanted:16} {'ok' if holds else 'MISSED'}")
    sys.exit(not all(holds for *_, holds in rows))


if __name__ == "__main__":
    main()
