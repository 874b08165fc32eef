"""One run: requests through a real worker, with one batch size, to a vLLM server that stays up between runs.

A worker that hosts vLLM itself would start a new engine for every size. Here each size gets a worker of its own, with
the engine `openai`, in front of the same server, so that every run meets one engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from bench.core.processes import workers
from bench.core.redis import own_server
from bench.core.rounds import percentile
from bench.engine.fed import drained
from bench.engine.served import Served
from bench.engine.work import Body
from streamfleet.common.results import Result
from streamfleet.producer import Client

PROMPT_WORDS = (8, 16, 32)


@dataclass(frozen=True)
class Stay:
    """A request in the engine; times in seconds since the run's first one went in.

    Attributes:
        began_s, ended_s: start and end of that time.
        tokens: number of tokens in its answer.
    """

    began_s: float
    ended_s: float
    tokens: int

    @property
    def run_ms(self) -> float:
        return (self.ended_s - self.began_s) * 1000


def run(
    server: Served, batch_size: int, asked: Sequence[Body], *, slots: int, meanwhile: AbstractContextManager[object]
) -> dict[str, float]:
    """Start a worker with this batch size and have it answer these requests, all enqueued at once.

    Args:
        server: the vLLM server.
        batch_size: requests that the worker gives the server at once, at most.
        asked: request bodies.
        slots: slots of the server.
        meanwhile: context that is open from the first submission to the last answer.

    Returns:
        Name to figure; see `figures`.

    Raises:
        RuntimeError: the number of tokens written is not the number asked for.
    """
    environment = {
        "STREAMFLEET_ENGINE": "openai",
        "VLLM_URL": server.url,
        "STREAMFLEET_REMOTE_SLOTS": slots,
        "STREAMFLEET_BATCHING": "continuous",
        "STREAMFLEET_BATCH_SIZE": batch_size,
    }
    with own_server() as redis, workers(redis.url, environment=environment), meanwhile:
        found = stays(asyncio.run(_drain(redis.url, asked)))
    wanted, answered = sum(body["max_tokens"] for body in asked), sum(stay.tokens for stay in found)
    if wanted != answered:
        raise RuntimeError(f"{answered} tokens were written where {wanted} were asked for")
    return figures(found)


def figures(found: Sequence[Stay]) -> dict[str, float]:
    """Throughput, percentiles of the time in the engine, and "running": the mean number of requests in the engine."""
    run_ms, span_s = [stay.run_ms for stay in found], max(stay.ended_s for stay in found)
    return {
        "tokens_per_s": sum(stay.tokens for stay in found) / span_s,
        "run_ms_p50": median(run_ms),
        "run_ms_p95": percentile(run_ms, 0.95),
        "run_ms_p99": percentile(run_ms, 0.99),
        "running": sum(run_ms) / 1000 / span_s,
    }


def stays(results: Sequence[Result]) -> list[Stay]:
    """Each result's time in the engine, in the order of the ends."""
    found = []
    for result in results:
        times = result.timings
        total_ms = times.total_ms or 0.0
        run_ms = total_ms - (times.queued_ms or 0.0) - (times.waited_ms or 0.0)
        # Redis's clock at the claim plus the worker's time since: in fractions of ms, unlike `finished_ms`.
        ended_s = (int(result.fields["enqueued_ms"]) + total_ms) / 1000
        found.append((ended_s - run_ms / 1000, ended_s, int((result.usage or {}).get("completion_tokens", 0))))
    first_s = min(began_s for began_s, *_ in found)
    ordered = sorted(found, key=lambda stay: stay[1])
    return [Stay(began_s - first_s, ended_s - first_s, tokens) for began_s, ended_s, tokens in ordered]


async def _drain(url: str, asked: Sequence[Body]) -> list[Result]:
    async with Client(url) as client:
        return await drained(client, asked)
