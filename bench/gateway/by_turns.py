"""One server, asked directly and through a gateway by turns: what the gateway adds, whatever the engine does that day.

Two starts of one engine differ by more than what is to be seen here. Behind the gateway, the worker asks the same
server over HTTP, one hop more than a worker has that hosts its engine: what is measured is the most that is added.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.progress import track

from bench.core.rounds import Sample
from bench.engine.batch import Batch, check_output
from bench.engine.served import Served
from bench.gateway.beside import DIRECT, GATEWAY, Figures, Start, Work
from bench.gateway.stage import staged

BLOCK = 5
"""Requests one after the other before it is the other way's turn."""


def measure(start: Start, work: Work, rounds: int, model: str) -> dict[str, list[Sample]]:
    """Start a server, and a gateway and a worker before it; ask both ways the same, so many rounds."""
    with start() as server, _before(server, work.batch) as gateway:
        return asyncio.run(_ask({DIRECT: server, GATEWAY: gateway}, work, rounds, model))


@contextmanager
def _before(server: Served, slots: int) -> Iterator[Served]:
    environment = {
        "STREAMFLEET_ENGINE": "openai",
        "VLLM_URL": server.url,
        "STREAMFLEET_REMOTE_SLOTS": slots,
    }
    with staged(environment) as stage:
        yield Served(stage.url, stage.pids["gateway"], stage.headers)


async def _ask(ways: Mapping[str, Served], work: Work, rounds: int, model: str) -> dict[str, list[Sample]]:
    chance = random.Random(1)
    for server in ways.values():
        for stream in (False, True):
            await server.run(work.warming(model), stream=stream, in_turn=True)
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for _ in track(range(rounds), "round"):
        batches = {name: await ways[name].run(work.together(model)) for name in chance.sample(list(ways), len(ways))}
        whole = await _singles(ways, work, model, False, chance)
        streamed = await _singles(ways, work, model, True, chance)
        for name, batch in batches.items():
            check_output(batch, work.together(model))
            samples[name].append(Figures(batch, _joined(whole[name]), _joined(streamed[name])).sample())
    return samples


async def _singles(
    ways: Mapping[str, Served], work: Work, model: str, stream: bool, chance: random.Random
) -> dict[str, list[Batch]]:
    asked = work.alone(model)
    found: dict[str, list[Batch]] = {name: [] for name in ways}
    for at in range(0, len(asked), BLOCK):
        for name in chance.sample(list(ways), len(ways)):
            found[name].append(await ways[name].run(asked[at : at + BLOCK], stream=stream, in_turn=True))
    for blocks in found.values():
        check_output(_joined(blocks), asked)
    return found


def _joined(blocks: list[Batch]) -> Batch:
    rows = [row for block in blocks for row in block.rows]
    return Batch(rows, sum(block.wall_s for block in blocks), sum(block.front_s for block in blocks))
