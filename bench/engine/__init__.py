"""One worker fed from Redis, beside bare `AsyncLLM.generate` and `vllm serve`, on real vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from bench.core.reports import Report, new_report
from bench.core.rounds import Sample, interleave
from bench.engine import front_end, tables
from bench.engine.bare import bare
from bench.engine.batch import Batch, check_output, check_same_work
from bench.engine.fed import fed
from bench.engine.served import served
from bench.engine.setup import EngineSetup, engine_setup
from bench.engine.work import Body, bodies


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement.

    Attributes:
        rounds: number of rounds; each starts every contender's engine once.
        batches: batches of every contender in a round.
        requests: requests in a batch.
        output_tokens: tokens of each answer.
        front_end_s: seconds for which the no-op worker is measured.
        warm_up: requests after a start and before any batch.
    """

    rounds: int
    batches: int
    requests: int
    output_tokens: int
    front_end_s: float
    warm_up: int = 4


QUICK_SIZES = Sizes(rounds=1, batches=2, requests=24, output_tokens=24, front_end_s=5.0)
FULL_SIZES = Sizes(rounds=3, batches=2, requests=64, output_tokens=48, front_end_s=30.0)


def run(quick: bool, _: Sequence[str] = ()) -> Report:
    """Run the measurement; `quick`: small sizes, as a quick check."""
    sizes, setup = QUICK_SIZES if quick else FULL_SIZES, engine_setup()
    batches: dict[str, list[Batch]] = {name: [] for name in tables.CONTENDERS}
    asked = [bodies(sizes.requests, sizes.output_tokens, seed) for seed in range(1, sizes.batches + 1)]
    warming = bodies(sizes.warm_up, 8, 0)
    starts: Mapping[str, Callable[[], Sample]] = {
        tables.BARE: lambda: _bare(setup, warming, asked, batches),
        tables.HTTP: lambda: _http(setup, warming, asked, batches),
        tables.WORKER: lambda: _worker(setup, warming, asked, batches),
    }
    samples = interleave(starts, sizes.rounds, title="round")
    for number in range(sizes.rounds * sizes.batches):
        check_same_work({name: found[number] for name, found in batches.items()})
    report = new_report("engine", {"quick": quick, **asdict(sizes), "engine_arguments": " ".join(setup.argv)})
    tables.fill(report, samples, batches, front_end.measure(sizes.front_end_s))
    return report


def _bare(
    setup: EngineSetup, warming: Sequence[Body], asked: Sequence[Sequence[Body]], batches: Mapping[str, list[Batch]]
) -> Sample:
    async def measure() -> list[Batch]:
        await engine.run(warming)
        return [_checked(await engine.run(part), part) for part in asked]

    with bare(setup) as engine:
        found = asyncio.run(measure())
    batches[tables.BARE].extend(found)
    return _means(found)


def _http(
    setup: EngineSetup, warming: Sequence[Body], asked: Sequence[Sequence[Body]], batches: Mapping[str, list[Batch]]
) -> Sample:
    """Whole answers and streamed ones by turns, from the same server."""

    async def measure() -> None:
        await server.run(warming)
        for number, part in enumerate(asked):
            for stream in (False, True) if number % 2 == 0 else (True, False):
                found = _checked(await server.run(part, stream=stream), part)
                batches[tables.STREAMED if stream else tables.HTTP].append(found)

    with served(setup) as server:
        asyncio.run(measure())
    streamed = _means(batches[tables.STREAMED][-len(asked) :])
    return {**streamed, **_means(batches[tables.HTTP][-len(asked) :]), "streamed_per_s": streamed["tokens_per_s"]}


def _worker(
    setup: EngineSetup, warming: Sequence[Body], asked: Sequence[Sequence[Body]], batches: Mapping[str, list[Batch]]
) -> Sample:
    async def measure() -> list[Batch]:
        await worker.run(warming)
        return [_checked(await worker.run(part), part) for part in asked]

    with fed(setup.worker_environment()) as worker:
        found = asyncio.run(measure())
    batches[tables.WORKER].extend(found)
    return _means(found)


def _checked(batch: Batch, asked: Sequence[Body]) -> Batch:
    check_output(batch, asked)
    return batch


def _means(batches: Sequence[Batch]) -> dict[str, float]:
    """Mean of every figure over the batches of one start."""
    figures = [batch.figures() for batch in batches]
    return {name: fmean(each[name] for each in figures) for name in figures[0]}
