"""Urgent requests on one worker with real vLLM, in this process, that is full of patient work: `--only vllm`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.engine.setup import engine_setup
from bench.goodput.scripts import NO_RESERVE
from bench.goodput.urgent import ALONE, LEFT_PERCENT, LENGTHS, ORDER, RESERVE, URGENT_LANE, URGENT_TOKENS, left_percent
from streamfleet.common.protocol import Lane
from streamfleet.common.settings import QueueSettings, load, load_all
from streamfleet.producer import Client
from streamfleet.worker.engine.base import Engine, EngineReply, EngineRequest
from streamfleet.worker.engine.factory import build
from streamfleet.worker.worker import Worker

EVERY_S, PATIENT_S, GRACE_S, BACKLOG = 1.0, 15.0, 12.0, 200
MOST_MS = 1_000.0
"""Bound of the first token, for a machine whose steps take 0.1 to 0.3 s."""


class Counted:
    """An engine that counts the output tokens of its runs, those included that are interrupted."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.runs = engine, list[EngineRequest]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def run(self, request: EngineRequest) -> EngineReply:
        self.runs.append(request)
        request.on_chunk = request.on_chunk or (lambda _: None)  # else vLLM tells of its tokens at the end only
        return await self._engine.run(request)

    def tokens(self, lane: str) -> int:
        return sum(each.made - each.resumed_tokens for each in self.runs if each.lane == lane)


def measure(quick: bool, say: Say) -> Part:
    """Each contender on a server and an engine of its own."""
    setup = engine_setup("--enable-prefix-caching")
    engine = {"engine": "vllm", "model": str(setup.folder), "engine_args": setup.given}
    return compare(engine, 8 if quick else 40, say)


def compare(engine: Mapping[str, object], number: int, say: Say) -> Part:
    """So many urgent requests in each contender; `engine` has the settings of the worker's engine."""
    found = dict[str, dict[str, Any]]()
    for contender in (ALONE, ORDER, RESERVE):
        say(f"{contender}: starting the engine, then {number} urgent requests in {number * EVERY_S:g} s")
        worker = NO_RESERVE if contender == ORDER else {}
        with own_server() as server:
            found[contender] = asyncio.run(_run(server.url, {**engine, **worker}, number, patient=contender != ALONE))
    rows = [
        {
            "": name,
            "first token p50, ms": each["p50_ms"],
            "p99, ms": each["p99_ms"],
            "no answer": each["no_answer"],
            "urgent tokens/s": each["urgent_per_s"],
            "patient tokens/s": each["patient_per_s"],
            "of what is left, %": left_percent(found, name),
            "interrupted": each["interrupted"],
        }
        for name, each in found.items()
    ]
    targets = [
        Target("real vLLM: first token p99", found[RESERVE]["p99_ms"], MOST_MS, "at most", "ms"),
        Target("real vLLM: patient work, of what is left", left_percent(found, RESERVE), LEFT_PERCENT, "at least", "%"),
    ]
    return Part([Table(f"Real vLLM full of low: {number} urgent requests", list(rows[0]), rows)], targets)


async def _run(url: str, settings: Mapping[str, object], number: int, *, patient: bool) -> dict[str, Any]:
    _, engine_settings, worker_settings, _ = load_all(redis_url=url, health_port=0, **settings)
    queue = load(QueueSettings, redis_url=url)
    engine = Counted(build(engine_settings, worker_settings.max_sequences, worker_settings.reserve))
    worker = Worker("w1", queue, engine, worker_settings)
    life, chance = asyncio.create_task(worker.run()), random.Random(1)
    async with Client(settings=queue) as client:
        first = await client.enqueue(_body(8))
        await asyncio.wait({life, waits := asyncio.create_task(first.result(300))}, return_when="FIRST_COMPLETED")
        (await waits).raise_for_status()
        if patient:
            lengths = [chance.randint(*LENGTHS) for _ in range(BACKLOG)]
            await client.enqueue_many([{"body": _body(length), "lane": Lane.LOW} for length in lengths])
            await asyncio.sleep(PATIENT_S)
        loop, before = asyncio.get_running_loop(), [engine.tokens(lane) for lane in (URGENT_LANE, Lane.LOW)]
        began_s, asked = loop.time(), list[tuple[float, asyncio.Task[Any]]]()
        for _ in range(number):
            await asyncio.sleep(chance.expovariate(1 / EVERY_S))
            handle = await client.enqueue(_body(URGENT_TOKENS), lane=URGENT_LANE)
            asked.append((loop.time(), asyncio.create_task(handle.result(300))))
        seconds = loop.time() - began_s
        after = [engine.tokens(lane) for lane in (URGENT_LANE, Lane.LOW)]
        await asyncio.wait([task for _, task in asked], timeout=GRACE_S)
        first_ms = [_first_ms(task) or 1_000 * (loop.time() - at) for at, task in asked]
        no_answer = sum(not task.done() for _, task in asked)
        for _, task in asked:
            task.cancel()
    again = [each.id for each in engine.runs if each.lane == Lane.LOW]
    worker.ask_to_stop()
    worker.ask_to_stop()
    await life
    return {
        "p50_ms": percentile(first_ms, 0.5),
        "p99_ms": percentile(first_ms, 0.99),
        "no_answer": no_answer,
        "urgent_per_s": (after[0] - before[0]) / seconds,
        "patient_per_s": (after[1] - before[1]) / seconds,
        "interrupted": len(again) - len(set(again)),
    }


def _body(tokens: int) -> dict[str, Any]:
    return {"prompt": "go on", "max_tokens": tokens, "ignore_eos": True}


def _first_ms(task: asyncio.Task[Any]) -> float | None:
    """Time to the first token of a request that is answered."""
    if not task.done():
        return None
    timings = task.result().raise_for_status().timings
    return float(timings.queued_ms + timings.waited_ms + timings.first_token_ms)
