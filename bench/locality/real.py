"""Conversations on two real vLLM workers: prompt tokens from their prefix caches, and times to the first token.

The oracle gives each worker half of the conversations from the start, through a queue of its own. All contenders have
the same conversations; each turn's prompt holds the answers before it. Users pause between turns.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import Sample, interleave, middle, percentile, ratio
from bench.core.workers import workers
from bench.engine.setup import engine_setup
from streamfleet.producer import Client

SESSIONS, TODAY, ORACLE = "sessions", "today: by deadline", "oracle: half of them each"
CONVERSATIONS, TURNS, ANSWER_TOKENS, WORKERS = 12, 5, 24, 2
PAUSE_S = 12.0
"""Longest pause of a user, who takes half of it on average: two workers on two cores are then 70 % busy."""
SYSTEM_WORDS, TURN_WORDS = 150, 90
PATIENCE_S = 300.0
WORDS = (
    "river",
    "stone",
    "lamp",
    "garden",
    "window",
    "paper",
    "morning",
    "harbour",
    "copper",
    "violin",
    "meadow",
    "salt",
)


@dataclass
class Seen:
    """Counts of one run."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    engine_s: float = 0.0


def measure(quick: bool, say: Say) -> Part:
    """Contenders by turns, each on new workers."""
    rounds = 1 if quick else 3
    say(f"{rounds} rounds of {CONVERSATIONS} conversations of {TURNS} turns, each on {WORKERS} new vLLM workers")
    environment = engine_setup("--enable-prefix-caching").worker_environment()
    measures: dict[str, Callable[[], Sample]] = {
        name: lambda name=name: run(name, environment)  # type: ignore[misc]
        for name in (ORACLE, TODAY, SESSIONS)
    }
    found = interleave(measures, rounds, title="real vLLM")
    rows = [{"contender": name, **{figure: middle(some, figure) for figure in some[0]}} for name, some in found.items()]
    against = 100 * ratio(found[SESSIONS], found[ORACLE], "cached, %")
    note = f"{rounds} rounds, {CONVERSATIONS * TURNS} turns each"
    target = Target("two real vLLM workers: cached tokens against the oracle's", against, 95.0, "at least", "%", note)
    return Part([Table("Two real vLLM workers", list(rows[0]), rows)], [target], data={"rounds": found})


def run(contender: str, environment: Mapping[str, object]) -> Sample:
    """Figures of one contender: per cent cached, times to the first token, and how busy workers were."""
    queues = [f"half-{number}" for number in range(WORKERS)] if contender == ORACLE else ["default"]
    each = WORKERS // len(queues)
    with own_server() as server, ExitStack() as stack:
        for place, queue in enumerate(queues):
            own = partial(_on_its_core, first=place * each)
            stack.enter_context(workers(server.url, each, environment=environment, own=own, queue=queue))
        seconds, seen = asyncio.run(_talk(contender, server.url, queues))
    return {
        "cached, %": 100 * seen.cached_tokens / seen.prompt_tokens,
        "prompt tokens": seen.prompt_tokens,
        "first token p50, s": percentile(seen.first_token_s, 0.5),
        "first token p99, s": percentile(seen.first_token_s, 0.99),
        "requests at once, of a worker": seen.engine_s / seconds / WORKERS,
        "seconds": seconds,
    }


def _on_its_core(number: int, first: int) -> Mapping[str, str]:
    # Each vLLM would run a thread on every core, and those of two would wait for each other at each step.
    cores = sorted(os.sched_getaffinity(0))
    return {"VLLM_CPU_OMP_THREADS_BIND": str(cores[(first + number) % len(cores)])}


async def _talk(contender: str, url: str, queues: list[str]) -> tuple[float, Seen]:
    seen, loop = Seen(), asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(url, queue=queue)) for queue in queues]
        began = loop.time()
        talks = (
            _conversation(contender, clients[number % len(clients)], number, seen) for number in range(CONVERSATIONS)
        )
        await asyncio.gather(*talks)
        return loop.time() - began, seen


async def _conversation(contender: str, client: Client, number: int, seen: Seen) -> None:
    chance = random.Random(number)
    messages: list[dict[str, Any]] = [{"role": "system", "content": _text(chance, SYSTEM_WORDS)}]
    for turn in range(TURNS):
        await asyncio.sleep(chance.uniform(0, PAUSE_S))
        messages.append({"role": "user", "content": _text(chance, TURN_WORDS)})
        if contender == TODAY:
            # The chat template leaves names out, but no two bodies begin alike, so that no worker becomes a home.
            messages[0]["name"] = f"{number}-{turn}"
        body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
        handle = await client.enqueue(body, session=f"s{number}" if contender == SESSIONS else None)
        result = (await handle.result(timeout=PATIENCE_S)).raise_for_status()
        timings = result.timings
        assert result.usage is not None
        assert None not in (timings.queued_ms, timings.first_token_ms, timings.total_ms)
        seen.prompt_tokens += result.usage["prompt_tokens"]
        seen.cached_tokens += result.cached_tokens
        seen.first_token_s.append(((timings.queued_ms or 0) + (timings.first_token_ms or 0)) / 1000)
        seen.engine_s += ((timings.total_ms or 0) - (timings.queued_ms or 0)) / 1000
        messages.append({"role": "assistant", "content": result.text})


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))
