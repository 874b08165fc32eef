"""Load of `streamfleet bench`: keeps so many requests running on a queue or an OpenAI server, and times the answers.

The answers of a step become its figures; these become the table and the picture.

The load is a closed loop: each of so many senders sends its next request when its last one is answered. One failed
request ends everything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from streamfleet.common.errors import RequestFailed, SettingsError, StreamfleetError
from streamfleet.common.protocol import Lane, infer_endpoint
from streamfleet.common.settings import QueueSettings
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.commands.plain import one_line
from streamfleet.operator.plan.figures import at_share
from streamfleet.operator.snapshot import read_workers
from streamfleet.producer.client import Client
from streamfleet.producer.events import Chunk
from streamfleet.worker.engine.base import EngineError, EngineRequest, EngineUnavailable
from streamfleet.worker.engine.sse_parser import says_something

Body: TypeAlias = dict[str, Any]
Ask: TypeAlias = "Callable[[Body], Awaitable[Answer]]"
"""Sends a body, and returns the answer when it is whole."""
TICK_S, TICKS_A_GPU = 0.02, 10
Step: TypeAlias = Mapping[str, Any]
"""Figures of a step by name, as --json prints them; None where something cannot be known."""
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FULL_CPU_PERCENT, LATE_MS = 90.0, 50.0
"""Use of one core, and lateness of the event loop (p95), from which on the client is the limit."""
HEADS = {
    "concurrency": "at once",
    "requests_per_s": "requests/s",
    "tokens_per_s": "tokens/s",
    **{f"{name}_ms": f"{name} ms" for name in SHARES},
    **{f"first_token_{name}_ms": f"first {name} ms" for name in SHARES},
    "in_engine": "in engine",
    "gpu_percent": "GPU %",
    "client_cpu_percent": "client CPU %",
}


class Answer(NamedTuple):
    """One whole answer: the client's monotonic seconds, output tokens, seconds in the engine; None where unknown."""

    began_s: float
    first_s: float | None
    ended_s: float
    tokens: int | None
    engine_s: float | None = None


def step_of(at_once: int, answers: Sequence[Answer], gpu: float | None, cpu: float, late_s: Sequence[float]) -> Step:
    """Compute the figures of a step.

    Args:
        at_once: number of requests at once.
        answers: at least one.
        gpu: mean use of the busiest GPU, per cent.
        cpu: share of a core that the client used.
        late_s: lateness of the client's event loop, at many moments.
    """
    seconds = max(answer.ended_s for answer in answers) - min(answer.began_s for answer in answers)
    totals_ms = sorted((answer.ended_s - answer.began_s) * 1000 for answer in answers)
    firsts_ms = sorted((answer.first_s - answer.began_s) * 1000 for answer in answers if answer.first_s is not None)
    late_ms = at_share(sorted(late_s), 0.95) * 1000 if late_s else 0.0
    return {
        "concurrency": at_once,
        "requests": len(answers),
        "seconds": seconds,
        "requests_per_s": len(answers) / seconds,
        "tokens_per_s": _a_second([answer.tokens for answer in answers], seconds),
        **{f"{name}_ms": at_share(totals_ms, share) for name, share in SHARES.items()},
        **{f"first_token_{name}_ms": at_share(firsts_ms, at) if firsts_ms else None for name, at in SHARES.items()},
        "in_engine": _a_second([answer.engine_s for answer in answers], seconds),
        "gpu_percent": gpu,
        "client_cpu_percent": cpu * 100,
        "client_late_ms": late_ms,
        "client_limit": client_limit(cpu * 100, late_ms),
    }


def _a_second(values: Sequence[float | None], seconds: float) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / seconds if len(known) == len(values) else None


def client_limit(cpu_percent: float, late_ms: float) -> str | None:
    """Reason why the client was the limit; None if it was not."""
    if cpu_percent >= FULL_CPU_PERCENT:
        return f"it used {cpu_percent:.0f} % of a core"
    return f"its event loop was {late_ms:.0f} ms late" if late_ms >= LATE_MS else None


def render(steps: Sequence[Step]) -> RenderableType:
    """Render the steps without columns of which nothing is known, and a line for each step that the client limited."""
    known = [name for name in HEADS if any(step[name] is not None for step in steps)]
    heads = [HEADS[name] for name in known]
    table = FittedTable(*heads, right=heads)
    for step in steps:
        table.add_row(*(_cell(step[name]) for name in known))
    limited = [step for step in steps if step["client_limit"]]
    said = (
        "{concurrency} at once: this client was the limit ({client_limit}); others would see more. Run several of it."
    )
    return Group(table, *(Text(said.format_map(step)) for step in limited))


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"


def draw(steps: Sequence[Step], path: Path) -> None:
    """Draw throughput and latencies by concurrency, as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 2.9), layout="constrained")
    whole, at = [f"{name}_ms" for name in SHARES], [step["concurrency"] for step in steps]
    panels = {
        "throughput": ["tokens_per_s"],
        "whole answer": whole,
        "first token": [f"first_token_{it}" for it in whole],
    }
    for axes, (title, names) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name in names:
            values = [float("nan") if step[name] is None else step[name] for step in steps]
            axes.plot(at, values, marker="o", label=HEADS[name])
        axes.set(title=title, xlabel="requests at once", xscale="log", ylim=(0, None))
        axes.set_xticks(at, map(str, at))
        axes.minorticks_off()
        axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})


class BenchFailed(StreamfleetError):
    """Nobody can answer, or a request failed; the message tells why."""


@asynccontextmanager
async def queue_asker(settings: QueueSettings, lane: Lane) -> AsyncIterator[Ask]:
    """Asks the workers of a queue. Raises BenchFailed if none takes requests."""
    async with Client(settings=settings) as client:
        workers = await read_workers(OperatorBroker.of(client.broker))
        if not any(worker.takes_requests for worker in workers):
            whys = "".join(f"; {worker.name}: {worker.why_not}" for worker in workers if worker.alive)
            raise BenchFailed(
                f"no worker of queue {settings.queue} takes requests{one_line(whys)}: start `streamfleet worker`, and "
                "wait until `streamfleet workers` shows it as ready"
            )

        async def ask(body: Body) -> Answer:
            began_s, first_s = time.perf_counter(), None
            handle = await client.enqueue(body, lane=lane, stream=True)
            try:
                with suppress(RequestFailed):  # the result has the error
                    async with aclosing(handle.stream(restarts="tell")) as events:
                        async for event in events:
                            if first_s is None and isinstance(event, Chunk) and _has_token(event):
                                first_s = time.perf_counter()
                ended_s, result = time.perf_counter(), await handle.result()
            except BaseException:
                with suppress(StreamfleetError):
                    await handle.cancel()
                raise
            if not result.ok:
                raise BenchFailed(f"a request {result.status}: {_message(result.error)}")
            queued_ms, waited_ms, _, total_ms = result.timings
            engine_s = None if total_ms is None else (total_ms - (queued_ms or 0.0) - (waited_ms or 0.0)) / 1000
            return Answer(began_s, first_s, ended_s, _tokens(result.usage), engine_s)

        yield ask


@asynccontextmanager
async def server_asker(url: str, api_key: str | None, most: int) -> AsyncIterator[Ask]:
    """Asks an OpenAI server, at most so many requests at once, as the engine `openai` of a worker does.

    Raises:
        BenchFailed: it does not answer, or has no models.
        SettingsError: the URL is not one, or httpx is missing.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
    try:
        from streamfleet.worker.engine.openai import OpenAIEngine, Upstream

        engine = OpenAIEngine(Upstream(url, most), (lambda: api_key) if api_key else None)
    except ModuleNotFoundError as error:
        raise SettingsError(f"--url needs {error.name}, which is not installed: pip install {error.name}") from None
    except ValueError as error:
        raise SettingsError(f"--url: {error}") from None

    async def ask(body: Body) -> Answer:
        chunks: list[object] = []
        # Of this lane and deadline, vLLM's priority is 0, as without one.
        request = EngineRequest(token_hex(8), infer_endpoint(body), body, Lane.CRITICAL, 0, on_chunk=chunks.append)
        began_s = time.perf_counter()
        reply = await _engine(engine.run(request))
        ended_s, answer = time.perf_counter(), json.loads(reply.body)
        if reply.status != 200:
            raise BenchFailed(f"the server answers {reply.status}: {_message(answer.get('error'))}")
        if not chunks:
            raise BenchFailed("the server does not stream its answers (SSE), so that no first token can be timed")
        first_s = None if reply.first_token_ms is None else began_s + reply.first_token_ms / 1000
        return Answer(began_s, first_s, ended_s, _tokens(answer.get("usage")))

    try:
        await _engine(engine.start())
        yield ask
    finally:
        await engine.stop()


async def _engine(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except EngineError as error:
        said = f": {error.said}" if isinstance(error, EngineUnavailable) and error.said else ""
        key = str(error).partition(" answers ")[2][:3] in {"401", "403"}
        tip = "; --api-key-variable names the variable with the key" if key else ""
        raise BenchFailed(one_line(f"{error}{said}{tip}")) from None


def _has_token(chunk: Chunk) -> bool:
    return any(isinstance(choice, dict) and says_something(choice) for choice in chunk.data.get("choices") or ())


def _message(error: Any) -> str:
    return one_line(str(error.get("message") if isinstance(error, dict) else error)[:300])


def _tokens(usage: Any) -> int | None:
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return counted if isinstance(counted, int) else None


async def run_step(
    ask: Ask, at_once: int, bodies: Iterator[Body], requests: int, seconds: float, timeout_s: float
) -> Step:
    """Keep so many requests running until all are sent or the seconds are over; wait for the answers, each so long.

    Raises:
        BenchFailed: a request failed, or has no answer in time.
    """
    answers: list[Answer] = []
    late_s: list[float] = []
    gpus: list[list[int]] = []
    left = requests
    began_s, cpu_s = time.perf_counter(), time.process_time()

    async def send() -> None:
        nonlocal left
        while left > 0 and time.perf_counter() - began_s < seconds:
            left -= 1
            try:
                async with asyncio.timeout(timeout_s):
                    answers.append(await ask(next(bodies)))
            except TimeoutError:
                raise BenchFailed(f"a request had no whole answer after {timeout_s:g} s (--timeout)") from None

    async def watch() -> None:
        read = _gpu_reader()
        while True:
            for _ in range(TICKS_A_GPU):
                due_s = time.perf_counter() + TICK_S
                await asyncio.sleep(TICK_S)
                late_s.append(time.perf_counter() - due_s)
            gpus.append(await asyncio.to_thread(read))

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(send())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        watching.cancel()
    cpu = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
    busiest = max((sum(gpu) / len(gpu) for gpu in zip(*gpus, strict=True)), default=None)
    return step_of(at_once, answers, busiest, cpu, late_s)


def _gpu_reader() -> Callable[[], list[int]]:
    """A function that reads the use of each GPU of this machine, per cent; of none without NVML."""
    with suppress(Exception):  # no package, no driver, or a GPU that does not tell
        import pynvml

        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]

        def read() -> list[int]:
            return [int(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu) for gpu in gpus]

        read()
        return read
    return list
