"""The gateway beside a server that speaks HTTP itself, with the same engine and the same load: what it adds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import median

from bench.core.rounds import Sample, interleave, percentile
from bench.engine.batch import Batch, check_output
from bench.engine.processes import started
from bench.engine.served import HOST, Served, free_port, is_ready, served
from bench.engine.setup import EngineSetup
from bench.engine.work import PROMPT_WORDS, Body, bodies
from bench.gateway.stage import staged

DIRECT, GATEWAY = "direct", "gateway"
SHORT_WORDS = (8, 16)
Start = Callable[[], AbstractContextManager[Served]]


@dataclass(frozen=True)
class Work:
    """What every start is asked.

    Attributes:
        batch, batch_tokens: requests all at once, and the length of their answers.
        singles, single_tokens: requests one after the other, whole and then streamed, and the length of their answers.
        warm_up: requests before any of it.
    """

    batch: int
    batch_tokens: int
    singles: int
    single_tokens: int
    warm_up: int = 8

    def warming(self, model: str) -> list[Body]:
        """Requests before any of it."""
        return _of(model, bodies(self.warm_up, self.single_tokens, 0, SHORT_WORDS))

    def together(self, model: str) -> list[Body]:
        """Those all at once."""
        return _of(model, bodies(self.batch, self.batch_tokens, 1, PROMPT_WORDS))

    def alone(self, model: str) -> list[Body]:
        """Those one after the other."""
        return _of(model, bodies(self.singles, self.single_tokens, 2, SHORT_WORDS))


@dataclass(frozen=True)
class Figures:
    """What became of a batch, of single requests, and of the same streamed."""

    batch: Batch
    whole: Batch
    streamed: Batch

    def sample(self) -> dict[str, float]:
        """Name to figure."""
        return {
            "tokens_per_s": self.batch.figures()["tokens_per_s"],
            **_spread("whole_ms", [row.total_ms for row in self.whole.rows]),
            **_spread("first_ms", [row.first_ms for row in self.streamed.rows if row.first_ms is not None]),
            "front_ms": self.whole.front_s * 1000 / len(self.whole.rows),
        }


def _of(model: str, some: Sequence[Body]) -> list[Body]:
    return [{**body, "model": model} for body in some]


def measure(starts: Mapping[str, Start], work: Work, rounds: int, model: str) -> dict[str, list[Sample]]:
    """Start each in turn, never two at once, and ask it the same."""

    def one(start: Start) -> Sample:
        with start() as server:
            return asyncio.run(_ask(server, work, model))

    return interleave({name: lambda start=start: one(start) for name, start in starts.items()}, rounds, title="round")  # type: ignore[misc]


def with_vllm(setup: EngineSetup) -> dict[str, Start]:
    """`vllm serve`, and a gateway before a worker that hosts the same vLLM."""
    return {DIRECT: lambda: served(setup), GATEWAY: lambda: _behind(setup.worker_environment())}


def simulated() -> dict[str, Start]:
    """The simulated engine behind bare HTTP, and a gateway before a worker that hosts the same."""
    return {DIRECT: _bare, GATEWAY: lambda: _behind({"STREAMFLEET_ENGINE": "simulated"})}


@contextmanager
def _behind(environment: Mapping[str, object]) -> Iterator[Served]:
    with staged(environment) as stage:
        yield Served(stage.url, stage.pids["gateway"], stage.headers)


@contextmanager
def _bare() -> Iterator[Served]:
    port = free_port()
    url = f"http://{HOST}:{port}"
    with started(["-m", "bench.gateway.bare_server", str(port)], talks=False) as child:
        child.wait_until(lambda: is_ready(url))
        yield Served(url, child.pid)


async def _ask(server: Served, work: Work, model: str) -> dict[str, float]:
    for stream in (False, True):
        await server.run(work.warming(model), stream=stream, in_turn=True)
    together, alone = work.together(model), work.alone(model)
    batch = await server.run(together)
    whole = await server.run(alone, in_turn=True)
    streamed = await server.run(alone, stream=True, in_turn=True)
    for found, asked in ((batch, together), (whole, alone), (streamed, alone)):
        check_output(found, asked)
    return Figures(batch, whole, streamed).sample()


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p50": median(values), f"{name}_p95": percentile(values, 0.95)}
