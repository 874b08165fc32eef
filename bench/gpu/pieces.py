"""Measurements by engine: three starts for all of them.

The in-process worker runs behind a gateway on a Redis of its own and ends by SIGKILL. `vllm serve` is asked directly,
and by one worker for each batch size. Bare AsyncLLM is only asked. A further step registers its pieces in `pieces`,
with its tables in `bench.gpu.tables` and its number in `bench.gpu.__main__`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any, Protocol

from bench.engine.bare import bare
from bench.engine.batch import Batch, check_output
from bench.engine.either_way import by_application
from bench.engine.fed import Fed
from bench.engine.served import Served, served
from bench.engine.setup import EngineSetup
from bench.engine.work import Body, bodies
from bench.gateway.many import Load, read
from bench.gateway.stage import Stage, staged
from bench.gpu import nvidia, served_runs
from bench.gpu.schedule import Found, Piece
from streamfleet.cli.demo.model import MODEL_NAME
from streamfleet.worker.engine.engine_thread import alive, descendants

WORKER, SERVE, BARE = "the in-process worker", "vllm serve", "bare AsyncLLM"
ROUND = "the worker through vLLM's application"
ANSWERS, KILL, STREAMS, SIZES = "answers through Redis", "SIGKILL", "streams through the gateway", "batch sizes"
FREE_WITHIN_S = 60.0
SPARE_MIB = 100.0
"""Memory above that of before the start that counts as free: the driver's own varies."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement, and its expected duration.

    Attributes:
        start_s: start time of an engine.
        seconds: time of a piece, by its name; for `tokens_per_s`, of each engine.
        warm_up: requests after a start and before anything else, all at once.
        at_once: numbers of requests that are submitted at once.
        repeats: repeats of each of these.
        tokens: tokens of each answer.
        batches: requests in a run, by batch size.
        load: load of the gateway.
    """

    start_s: float
    seconds: Mapping[str, float]
    warm_up: int
    at_once: tuple[int, ...]
    repeats: int
    tokens: int
    batches: Mapping[int, int]
    load: Load


GPU_SIZES = Sizes(
    # Llama 3 8B's shape on an H100, as measured, with a margin.
    start_s=100,
    seconds={ANSWERS: 5, "tokens_per_s": 30, STREAMS: 40, KILL: 5, SIZES: 100},
    warm_up=64,
    at_once=(64, 256, 1024),
    repeats=3,
    tokens=64,
    batches={1: 24, 2: 24, 4: 32, 8: 64, 16: 128, 32: 256, 64: 512, 128: 512, 256: 1024},
    # The first stream must not end before the last one begins: beside 256 others, it gets 49 tokens/s.
    load=Load(streams=1000, tokens_per_s=14, tokens=300, workers=1, over_s=3, model=MODEL_NAME),
)
DRY_SIZES = Sizes(
    start_s=30,
    seconds={ANSWERS: 5, "tokens_per_s": 20, STREAMS: 20, KILL: 5, SIZES: 60},
    warm_up=4,
    # Two cores without AVX-512 make 4 to 10 tokens/s.
    at_once=(2, 4, 8),
    repeats=1,
    tokens=8,
    batches={1: 2, 4: 8, 16: 16},
    load=Load(streams=20, tokens_per_s=10, tokens=16, workers=1, over_s=1, model=MODEL_NAME),
)


class Contender(Protocol):
    """Protocol of a system that answers many requests at once."""

    async def run(self, asked: Sequence[Body]) -> Batch: ...


@dataclass(frozen=True)
class Killable:
    """The in-process worker, which a piece may kill.

    Attributes:
        stage: gateway, Redis and worker.
        before_mib: the GPU's memory in use before its start; None without a GPU.
    """

    stage: Stage
    before_mib: float | None

    @property
    def pid(self) -> int:
        return self.stage.pids["worker 1"]

    @property
    def fed(self) -> Fed:
        return Fed(self.stage.redis_url, self.pid)


def engines(setup: EngineSetup) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Functions that start each engine."""
    return {WORKER: partial(_worker, setup), SERVE: partial(served, setup), BARE: partial(bare, setup)}


@contextmanager
def _worker(setup: EngineSetup) -> Iterator[Killable]:
    before_mib = nvidia.memory_mib()
    with staged(setup.worker_environment(), module="bench.engine.either_way") as stage:
        yield Killable(stage, before_mib)


def pieces(sizes: Sizes) -> list[Piece]:
    """All pieces: those of an engine in a row, and the worker's end as its last one."""
    took = sizes.seconds
    speed = partial(tokens_per_s, sizes=sizes)
    return [
        Piece(ANSWERS, 1, WORKER, took[ANSWERS], lambda worker: answers(worker.fed, sizes.warm_up)),
        Piece(speed_of(WORKER), 2, WORKER, took["tokens_per_s"], lambda worker: speed(worker.fed)),
        Piece(speed_of(ROUND), 2, WORKER, took["tokens_per_s"], lambda worker: round_about(worker, speed)),
        Piece(STREAMS, 6, WORKER, took[STREAMS], lambda worker: streams(worker.stage, sizes.load)),
        Piece(KILL, 1, WORKER, took[KILL], killed),
        Piece(speed_of(SERVE), 2, SERVE, took["tokens_per_s"], speed),
        Piece(SIZES, 3, SERVE, took[SIZES], partial(batch_sizes, sizes=sizes)),
        Piece(speed_of(BARE), 2, BARE, took["tokens_per_s"], speed),
    ]


def round_about(worker: Killable, measured: Callable[[Contender], Found]) -> Found:
    """The same figures of the same worker, whose requests go through vLLM's HTTP application meanwhile."""
    with by_application(worker.pid):
        return measured(worker.fed)


def speed_of(engine: str) -> str:
    """The name of an engine's piece of step 2."""
    return f"tokens/s of {engine}"


def answers(contender: Contender, count: int) -> Found:
    """Send requests all at once; each must get an answer of the right length."""
    asked = bodies(count, 8, 0)
    batch = asyncio.run(contender.run(asked))
    check_output(batch, asked)
    return {"asked": len(asked), "answered": len(batch.rows), "wall_s": batch.wall_s}


def tokens_per_s(contender: Contender, sizes: Sizes) -> Found:
    """Figures of each batch, and the tokens that were read and written, by the number of requests at once."""

    async def measure() -> Found:
        await contender.run(bodies(sizes.warm_up, 8, 0))
        found: Found = {}
        for count in sizes.at_once:
            found[str(count)] = [await sample(bodies(count, sizes.tokens, seed)) for seed in range(sizes.repeats)]
        return found

    async def sample(asked: Sequence[Body]) -> dict[str, float]:
        batch = await contender.run(asked)
        check_output(batch, asked)
        read_tokens = sum(row.prompt_tokens for row in batch.rows)
        return {**batch.figures(), "prompt_tokens": read_tokens, "output_tokens": len(asked) * sizes.tokens}

    return {"at_once": asyncio.run(measure())}


def batch_sizes(server: Served, sizes: Sizes) -> Found:
    """Figures of continuous batching by batch size, with the GPU's mean utilisation."""
    most, found = max(sizes.batches), {}
    for size, count in sizes.batches.items():
        busy: list[float] = []
        asked = bodies(count, sizes.tokens, size, served_runs.PROMPT_WORDS)
        figures = served_runs.run(server, size, asked, slots=most, meanwhile=nvidia.watching(busy))
        found[str(size)] = {**figures, "utilisation": fmean(busy) if busy else None}
    return {"sizes": found}


def streams(stage: Stage, load: Load) -> Found:
    """Many streams at once through the gateway, from the real engine."""
    return asdict(read(stage, load))


def killed(worker: Killable) -> Found:
    """SIGKILL the worker, and check that its processes end and the GPU's memory is freed."""
    itself = {process for process in descendants(os.getpid()) if process.pid == worker.pid}
    processes, with_mib = itself | descendants(worker.pid), nvidia.memory_mib()
    os.kill(worker.pid, signal.SIGKILL)
    found = freed(lambda: sum(map(alive, processes)), nvidia.memory_mib, worker.before_mib)
    return {"before_mib": worker.before_mib, "with_mib": with_mib, "processes": len(processes), **found}


def freed(
    left: Callable[[], int],
    memory_mib: Callable[[], float | None],
    before_mib: float | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Found:
    """Wait until no process is left and memory is as before, for at most `FREE_WITHIN_S`; returns the last state.

    Args:
        left: returns the number of processes that still run.
        memory_mib: returns the memory in use; None without a GPU.
        before_mib: memory in use before the start.
    """
    began = clock()
    while True:
        processes, now_mib, waited_s = left(), memory_mib(), clock() - began
        over_mib = None if now_mib is None or before_mib is None else now_mib - before_mib
        if waited_s >= FREE_WITHIN_S or (not processes and (over_mib is None or over_mib <= SPARE_MIB)):
            return {"left": processes, "after_mib": now_mib, "over_mib": over_mib, "free_s": round(waited_s, 2)}
        sleep(0.1)
