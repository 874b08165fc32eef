"""One run: requests through a real worker, with one batching policy, to a vLLM server that stays up between runs.

A worker that hosts vLLM itself would start a new engine for every policy. Here each policy gets a worker of its own,
with the engine `openai`, in front of the same server, so that every run meets one engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median

import httpx

from bench.core.redis import own_server
from bench.core.rounds import percentile
from bench.core.workers import workers
from bench.engine.fed import drained
from bench.engine.served import Served
from bench.engine.work import Body
from streamfleet.common.results import Result
from streamfleet.producer import Client

SLOTS = 128
"""Sequences that the server runs together: as many as the largest batch."""
STEPS, WRITTEN = "vllm:iteration_tokens_total_count", "vllm:generation_tokens_total"


@dataclass(frozen=True)
class Stay:
    """A request in the engine; times in seconds since the run's first one went in.

    Attributes:
        began_s, ended_s: start and end of that time.
        total_ms: time from enqueueing to its answer.
        tokens: number of tokens in its answer.
    """

    began_s: float
    ended_s: float
    total_ms: float
    tokens: int

    @property
    def run_ms(self) -> float:
        return (self.ended_s - self.began_s) * 1000


@dataclass(frozen=True)
class Run:
    """One run: requests through one worker with one policy.

    Attributes:
        stays: its requests, in the order in which they ended.
        steps: the engine's steps, by its own count.
        written: tokens written, by its own count.
    """

    stays: Sequence[Stay]
    steps: float
    written: float

    @property
    def span_s(self) -> float:
        """Time from the first request's start to the last one's end."""
        return max(stay.ended_s for stay in self.stays)

    def running(self, from_s: float = 0.0, to_s: float | None = None) -> float:
        """Mean number of requests in the engine."""
        until_s = self.span_s if to_s is None else to_s
        inside_s = sum(max(0.0, min(stay.ended_s, until_s) - max(stay.began_s, from_s)) for stay in self.stays)
        return inside_s / (until_s - from_s)

    def timeline(self, points: int = 60) -> list[tuple[float, float]]:
        """Requests in the engine over time, as pairs: the middle of each interval in seconds, and the mean in it."""
        width_s = self.span_s / points
        return [
            ((number + 0.5) * width_s, self.running(number * width_s, (number + 1) * width_s))
            for number in range(points)
        ]

    def figures(self) -> dict[str, float]:
        """Name to figure; `settled` is the second half of the requests, when an adaptive limit is steady."""
        settled = self.stays[len(self.stays) // 2 :]
        run_ms, total_ms = [stay.run_ms for stay in self.stays], [stay.total_ms for stay in self.stays]
        return {
            "tokens_per_s": sum(stay.tokens for stay in self.stays) / self.span_s,
            "run_ms_p50": median(run_ms),
            "run_ms_p95": percentile(run_ms, 0.95),
            "run_ms_p99": percentile(run_ms, 0.99),
            "total_ms_p50": median(total_ms),
            "total_ms_p99": percentile(total_ms, 0.99),
            "running": self.running(),
            "tokens_a_step": self.written / self.steps,
            "settled_run_ms_p50": median(stay.run_ms for stay in settled),
            "settled_run_ms_p99": percentile([stay.run_ms for stay in settled], 0.99),
            "settled_running": self._settled_running(settled),
        }

    def _settled_running(self, settled: Sequence[Stay]) -> float:
        """Mean number in the engine from the start of `settled` to the last start; after it the engine empties."""
        from_s, last_s = settled[0].ended_s, max(stay.began_s for stay in self.stays)
        return self.running(from_s, last_s) if last_s > from_s else self.running(0.0, from_s)


def run(
    server: Served,
    policy: Mapping[str, object],
    asked: Sequence[Body],
    *,
    slots: int = SLOTS,
    meanwhile: AbstractContextManager[object] | None = None,
) -> Run:
    """Start a worker with this policy and have it answer these requests, all enqueued at once.

    Args:
        server: the vLLM server.
        policy: settings of the worker, by the full names of their variables.
        asked: request bodies.
        slots: slots of the server.
        meanwhile: context that is open from the first submission to the last answer.

    Raises:
        RuntimeError: the number of tokens written is not the number asked for.
    """
    environment = {
        "STREAMFLEET_ENGINE": "openai",
        "VLLM_URL": server.url,
        "STREAMFLEET_REMOTE_SLOTS": slots,
        **policy,
    }
    with own_server() as redis, workers(redis.url, environment=environment):
        before = counters(server.url)
        with meanwhile or nullcontext():
            results = asyncio.run(_drain(redis.url, asked))
        after = counters(server.url)
    steps, written = (after[name] - before[name] for name in (STEPS, WRITTEN))
    found = Run(stays(results), steps, written)
    wanted, answered = sum(body["max_tokens"] for body in asked), sum(stay.tokens for stay in found.stays)
    if wanted != answered:
        raise RuntimeError(f"{answered} tokens were written where {wanted} were asked for")
    return found


def stays(results: Sequence[Result]) -> list[Stay]:
    """Each result's time in the engine."""
    found = []
    for result in results:
        times = result.timings
        total_ms = times.total_ms or 0.0
        run_ms = total_ms - (times.queued_ms or 0.0) - (times.waited_ms or 0.0)
        # Redis's clock at the claim plus the worker's time since: in fractions of ms, unlike `finished_ms`.
        ended_s = (int(result.fields["enqueued_ms"]) + total_ms) / 1000
        tokens = int((result.usage or {}).get("completion_tokens", 0))
        found.append((ended_s - run_ms / 1000, ended_s, total_ms, tokens))
    first_s = min(began_s for began_s, *_ in found)
    ordered = sorted(found, key=lambda stay: stay[1])
    return [
        Stay(began_s - first_s, ended_s - first_s, total_ms, tokens) for began_s, ended_s, total_ms, tokens in ordered
    ]


def counters(url: str) -> dict[str, float]:
    """Returns vLLM's counters so far: its steps, and the tokens that it wrote."""
    found = dict.fromkeys((STEPS, WRITTEN), 0.0)
    for line in httpx.get(f"{url}/metrics", timeout=30.0).text.splitlines():
        name, _, value = line.rpartition(" ")
        if (plain := name.partition("{")[0]) in found:
            found[plain] += float(value)
    return found


async def _drain(url: str, asked: Sequence[Body]) -> list[Result]:
    async with Client(url) as client:
        return await drained(client, asked)
