"""Batch files whose lines share beginnings: cached prompt tokens, in the order of the file and in cache order.

    python -m bench.locality.batch_order

Real Redis, real workers in this process, `streamfleet batch`'s own code; the engine is simulated, with the prefix cache
and the KV cache of a measured one, and faster. `at most` is what one endless cache would find: each beginning is read
once.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from bench.core.redis import own_server
from streamfleet.common import logs
from streamfleet.common.protocol import Lane
from streamfleet.common.settings import LogSettings, QueueSettings, WorkerSettings, load
from streamfleet.producer import Client
from streamfleet.producer import batch as batch_module
from streamfleet.producer.batch import Batch, BatchOptions
from streamfleet.producer.batch_files import AppendFile
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU
from streamfleet.worker.worker import Worker

LINES, SHARED_TOKENS, SPEED, ROUNDS = 1_000, 1_000, 1_000.0, 3


def lines(groups: int, seed: int) -> list[str]:
    """A file's lines: of so many groups, each with a beginning of its own, shuffled."""
    bodies = []
    for number in range(LINES):
        system = f"{number % groups:04d}" * SHARED_TOKENS
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Question {number} of {LINES}?"},
        ]
        bodies.append({"messages": messages, "max_tokens": 16, "ignore_eos": True})
    texts = [
        json.dumps({"custom_id": f"c-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
        for number, body in enumerate(bodies)
    ]
    random.Random(seed).shuffle(texts)
    return texts


def as_in_the_file(lines: Iterable[Any], *_: object, **__: object) -> Iterator[Any]:
    """In place of `in_cache_order`: as they come."""
    yield from lines


async def cached_share(url: str, workers: int, window: int, texts: list[str]) -> float:
    """Share of the prompt tokens of a batch that came from prefix caches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_text("\n".join(texts) + "\n")
        out = folder / "out.jsonl"
        async with AsyncExitStack() as stack:
            queue = load(QueueSettings, redis_url=url)
            settings = load(WorkerSettings)
            made = [
                Worker(f"w{n}", queue, SimulatedEngine(SMOLLM2_135M_CPU, speed=SPEED), settings) for n in range(workers)
            ]
            lives = [asyncio.create_task(worker.run()) for worker in made]
            client = await stack.enter_async_context(Client(settings=queue))
            options = BatchOptions(f"job-{random.random()}", Lane.LOW, window=window)
            await Batch(client, folder / "in.jsonl", AppendFile(out), AppendFile(folder / "errors"), options).run()
            for worker in made:
                worker.ask_to_stop()
            await asyncio.gather(*lives)
        usages = [json.loads(text)["response"]["body"]["usage"] for text in out.read_bytes().split(b"\n") if text]
    if len(usages) != LINES:
        raise RuntimeError(f"{len(usages)} of {LINES} lines were answered")
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(cached / sum(usage["prompt_tokens"] for usage in usages))


async def measure(url: str) -> None:
    """Print a line for each case: medians of rounds, contenders by turns."""
    print("| groups | window | workers | file's order | cache order | at most |")
    print("|---:|---:|---:|---:|---:|---:|")
    for groups in (40, 200):
        for window in (200, 1_000):
            for workers in (1, 2):
                shares: dict[bool, list[float]] = {False: [], True: []}
                for seed in range(ROUNDS):
                    texts = lines(groups, seed)
                    with patch.object(batch_module, "in_cache_order", as_in_the_file):
                        shares[False].append(await cached_share(url, workers, window, texts))
                    shares[True].append(await cached_share(url, workers, window, texts))
                most = (1 - groups / LINES) * SHARED_TOKENS / (SHARED_TOKENS + 6)
                before, after = (f"{median(shares[which]):.1%}" for which in (False, True))
                print(f"| {groups} | {window} | {workers} | {before} | {after} | {most:.1%} |", flush=True)


if __name__ == "__main__":
    logs.configure(load(LogSettings, log_level="error"))
    with own_server() as server:
        asyncio.run(measure(server.url))
