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
from functools import partial
from statistics import fmean
from typing import Any

from bench.core.reports import Report, new_report
from bench.core.rounds import Sample, interleave
from bench.engine.batch import check_output
from bench.engine.either_way import by_application
from bench.engine.fed import Fed, fed
from bench.engine.setup import EngineSetup, engine_setup
from bench.engine.work import Body, bodies
from bench.front_end.tables import RENDERING, STEP_S, WHOLE, fill, key, paced
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

# Not in the stub: whoever imports that imports torch and vLLM, six seconds of CPU.
PACE_VARIABLE = "BENCH_FRONT_END_PACE"
"""Duration of a step: its base in µs, and what a prompt token and a sequence add to it in ns."""
ARGUMENTS = (
    "--distributed-executor-backend=bench.front_end.stub.StubExecutor",
    "--load-format=dummy",
    "--max-num-seqs=1024",
    "--max-num-batched-tokens=8192",
    "--enable-chunked-prefill",
)
PROMPT_WORDS = (46,)  # 492 bytes of JSON
PARTS = ("bursts", "paced")


def run(quick: bool, parts: Sequence[str] = PARTS, sizes: Sizes | None = None) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        parts: some of `PARTS`.
        sizes: other sizes.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sizes = sizes or (QUICK_SIZES if quick else FULL_SIZES)
    report = new_report("front_end", {"quick": quick, **asdict(sizes)})
    setup = engine_setup(*ARGUMENTS)
    if "bursts" in parts:
        fill(report, _bursts(setup, sizes), sizes)
    if "paced" in parts:
        paced(report, _paced(setup, sizes), sizes)
    return report


def _paced(setup: EngineSetup, sizes: Sizes) -> list[Sample]:
    """Many streams at the pace of a reader."""
    with fed({**setup.worker_environment(), PACE_VARIABLE: f"{STEP_S * 1e6:.0f},0,0"}) as worker:
        return [_whole(worker, sizes.paced, sizes.paced_tokens, streamed=True) for _ in range(sizes.rounds)]


def _bursts(setup: EngineSetup, sizes: Sizes) -> dict[str, list[Sample]]:
    """Bursts, answered each way."""
    from streamfleet.worker.engine.vllm import VllmEngine

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
        for count in sizes.streamed_at_once:
            name = key(WHOLE[ENGINE], count, sizes.tokens, streamed=True)
            measures[name] = partial(_whole, worker, count, sizes.tokens, streamed=True)
        collect_rarely()  # as a worker does once its engine has started
        for measure in measures.values():
            measure()  # the first time costs more
        return interleave(measures, sizes.rounds)


def _in_process(runner: asyncio.Runner, engine: Any, sizes: Sizes) -> dict[str, Callable[[], Sample]]:
    """Each way with each burst, and the part of them that all share."""
    found: dict[str, Callable[[], Sample]] = {
        RENDERING: partial(rendering, engine, bodies(sizes.least, sizes.tokens, 0, PROMPT_WORDS))
    }
    for streamed, at_once in ((False, sizes.at_once), (True, sizes.streamed_at_once)):
        for name, way in ways(engine, streamed=streamed).items():
            for count in at_once:
                seeds = range(math.ceil(sizes.least / count))
                asked = [bodies(count, sizes.tokens, seed, PROMPT_WORDS) for seed in seeds]
                found[key(name, count, sizes.tokens, streamed)] = partial(_mean, runner, engine, way, asked)
    return found


def _mean(runner: asyncio.Runner, engine: Any, way: Way, asked: Sequence[Sequence[Body]]) -> Sample:
    """The means of several bursts."""
    found = [runner.run(burst(engine, way, each)) for each in asked]
    return {figure: fmean(each[figure] for each in found) for figure in found[0]}


def _whole(worker: Fed, count: int, tokens: int, streamed: bool = False) -> Sample:
    """A burst through Redis."""
    asked = bodies(count, tokens, 1, PROMPT_WORDS)
    batch = asyncio.run(worker.run(asked, streamed=streamed))
    check_output(batch, asked)
    first_ms = min(row.first_ms for row in batch.rows if row.first_ms is not None)
    return {"process_us": batch.front_s / count * 1e6, "first_token_ms": first_ms, "wall_s": batch.wall_s}


def _whole_over_asgi(worker: Fed, count: int, tokens: int) -> Sample:
    """The same burst through vLLM's application."""
    with by_application(worker.pid):
        return _whole(worker, count, tokens)
