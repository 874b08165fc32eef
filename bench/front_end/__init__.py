"""CPU of the front end for a request: a worker beside bare AsyncLLM and vLLM's own server, with a simulated model.

All of it runs in one process with one engine core, by turns. The core is vLLM's; a stub in place of the model answers
at the pace of an H100, so no GPU is needed. A whole worker, fed from Redis, has a core of its own.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from statistics import fmean
from typing import Any

from bench.core.machine import describe
from bench.core.reports import Report
from bench.core.rounds import Sample, interleave
from bench.engine.batch import check_output
from bench.engine.either_way import by_application
from bench.engine.fed import Fed, fed
from bench.engine.setup import engine_setup
from bench.engine.work import Body, bodies
from bench.front_end.tables import RENDERING, WHOLE, fill, key
from bench.front_end.ways import (
    ASGI,
    ENGINE,
    FULL_SIZES,
    QUICK_SIZES,
    Sizes,
    Way,
    burst,
    goes_directly,
    rendering,
    ways,
)
from streamfleet.common.garbage import collect_rarely

ARGUMENTS = (
    "--distributed-executor-backend=bench.front_end.stub.StubExecutor",
    "--load-format=dummy",
    "--max-num-seqs=1024",
    "--max-num-batched-tokens=8192",
    "--enable-chunked-prefill",
)
PROMPT_WORDS = (46,)  # 492 bytes of JSON


def run(quick: bool, rounds: int | None = None, sizes: Sizes | None = None) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        rounds: number of rounds instead of the size's own.
        sizes: other sizes.
    """
    from streamfleet.worker.engine.vllm import VllmEngine

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sizes = sizes or (QUICK_SIZES if quick else FULL_SIZES)
    sizes = Sizes(**{**asdict(sizes), "rounds": rounds or sizes.rounds})
    setup = engine_setup(*ARGUMENTS)
    engine = VllmEngine(str(setup.folder), setup.given)
    with asyncio.Runner() as runner, ExitStack() as stack:
        stack.callback(lambda: runner.run(engine.stop()))
        runner.run(engine.start())
        measures = _in_process(runner, engine, sizes)
        worker = stack.enter_context(fed(setup.worker_environment(), "bench.engine.either_way"))
        by_way = {ENGINE: _whole, ASGI: _whole_over_asgi} if goes_directly(engine) else {ENGINE: _whole}
        for name, measure_whole in by_way.items():
            for count in sizes.at_once:
                measures[key(WHOLE[name], count, sizes.tokens)] = partial(measure_whole, worker, count, sizes.tokens)
        collect_rarely()  # as a worker does once its engine has started
        for measure in measures.values():
            measure()  # the first time costs more
        samples = interleave(measures, sizes.rounds)
    report = Report("front_end", datetime.now(UTC).date().isoformat(), describe(), {"quick": quick, **asdict(sizes)})
    fill(report, samples, sizes)
    return report


def _in_process(runner: asyncio.Runner, engine: Any, sizes: Sizes) -> dict[str, Callable[[], Sample]]:
    """Each way with each burst, and the part of them that all share."""
    short = (sizes.short_at_once, sizes.short_tokens)
    found: dict[str, Callable[[], Sample]] = {
        RENDERING: partial(rendering, engine, bodies(sizes.least, sizes.tokens, 0, PROMPT_WORDS))
    }
    for streamed, at_once in ((False, sizes.at_once), (True, sizes.streamed_at_once)):
        for name, way in ways(engine, streamed=streamed).items():
            for count, tokens in (*((each, sizes.tokens) for each in at_once), short):
                asked = [bodies(count, tokens, seed, PROMPT_WORDS) for seed in range(math.ceil(sizes.least / count))]
                found[key(name, count, tokens, streamed)] = partial(_mean, runner, engine, way, asked)
    return found


def _mean(runner: asyncio.Runner, engine: Any, way: Way, asked: Sequence[Sequence[Body]]) -> Sample:
    """The means of several bursts."""
    found = [runner.run(burst(engine, way, each)) for each in asked]
    return {figure: fmean(each[figure] for each in found) for figure in found[0]}


def _whole(worker: Fed, count: int, tokens: int) -> Sample:
    """A burst through Redis."""
    asked = bodies(count, tokens, 1, PROMPT_WORDS)
    batch = asyncio.run(worker.run(asked))
    check_output(batch, asked)
    first_ms = min(row.first_ms for row in batch.rows if row.first_ms is not None)
    return {"process_us": batch.front_s / count * 1e6, "first_token_ms": first_ms, "wall_s": batch.wall_s}


def _whole_over_asgi(worker: Fed, count: int, tokens: int) -> Sample:
    """The same burst through vLLM's application."""
    with by_application(worker.pid):
        return _whole(worker, count, tokens)
