"""Load of `streamfleet bench`: keeps so many requests running on a queue or an OpenAI server, and times the answers.

The load is a closed loop: each of so many senders sends its next request when its last one is answered. One failed
request ends everything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from secrets import token_hex
from typing import Any, TypeAlias

from streamfleet.cli.requests.bench_figures import Answer, Step, step_of
from streamfleet.common.errors import RequestFailed, SettingsError, StreamfleetError
from streamfleet.common.protocol import Lane, infer_endpoint
from streamfleet.common.settings import QueueSettings
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.commands.common import say
from streamfleet.operator.commands.plain import one_line
from streamfleet.operator.snapshot import read_workers
from streamfleet.producer.client import Client
from streamfleet.producer.events import Chunk
from streamfleet.worker.engine.base import EngineError, EngineRequest, EngineUnavailable
from streamfleet.worker.engine.sse_parser import says_something

Body: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[Body], Awaitable[Answer]]
"""Sends a body, and returns the answer when it is whole."""
TICK_S, TICKS_A_GPU, TELL_S = 0.02, 10, 10.0


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

        engine = OpenAIEngine(Upstream(url, most), api_key)
    except ModuleNotFoundError as error:
        raise SettingsError(f"--url needs {error.name}, which is not installed: pip install {error.name}") from None
    except ValueError as error:
        raise SettingsError(f"--url: {error}") from None

    async def ask(body: Body) -> Answer:
        chunks: list[bytes] = []
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
        read, told_s = gpu_reader(), began_s
        while True:
            for _ in range(TICKS_A_GPU):
                due_s = time.perf_counter() + TICK_S
                await asyncio.sleep(TICK_S)
                late_s.append(time.perf_counter() - due_s)
            gpus.append(await asyncio.to_thread(read))
            if time.perf_counter() - told_s >= TELL_S:
                told_s = time.perf_counter()
                say(f"{at_once} at once: {len(answers)} answers in {told_s - began_s:.0f} s, {left} requests to send")

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


def gpu_reader() -> Callable[[], list[int]]:
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
