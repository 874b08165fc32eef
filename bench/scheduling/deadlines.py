"""Earliest deadline first against first in, first out: the same bursty trace and workers, at the same time.

Each way has a Redis and workers of its own. First in, first out uses the same code without deadlines, so that a request
ranks by its arrival; misses are judged by the deadlines of the trace. Such a queue also runs requests whose caller has
given up, so there is a third way: callers cancel late requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.workers import workers
from bench.scheduling.feeding import drained, queue_settings, read_outcomes, replay
from bench.scheduling.outcomes import Outcome, cdf
from bench.scheduling.parts import Part, Say
from bench.scheduling.traces import Arrival, bursty, capacity_per_s
from streamfleet.producer import Client
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST as PROFILE

WORKERS, SLOTS, MEAN_TOKENS, PROMPT_TOKENS = 2, 32, 32, 2
REACHED = 0.85
"""Share of the nominal capacity that a simulated worker reaches: its timers are late by a little each step."""
ENVIRONMENT = {
    "STREAMFLEET_ENGINE": "simulated",
    "STREAMFLEET_SIMULATED_PROFILE": "fast",
    "STREAMFLEET_BATCH_SIZE": SLOTS,
}
WAYS = {
    "EDF": "earliest deadline first, as streamfleet does",
    "FIFO": "first in, first out; nobody knows the deadlines",
    "FIFO, callers cancel": "first in, first out; callers cancel what is too late",
}
CLASSES = {
    "life below 5 s": (0.0, 5_000.0),
    "life of 10 to 20 s": (5_000.0, 30_000.0),
    "life of a minute or more": (30_000.0, math.inf),
}


@dataclass(frozen=True)
class Run:
    """One way's outcomes, in the trace's order, and the delay of the latest request at its sending, in s."""

    outcomes: Sequence[Outcome]
    late_s: float


def measure(quick: bool, say: Say) -> Part:
    """Replay one trace in all ways at once."""
    seconds, seed = (30.0, 3) if quick else (110.0, 3)
    capacity = WORKERS * REACHED * capacity_per_s(PROFILE, SLOTS, MEAN_TOKENS, PROMPT_TOKENS)
    trace = bursty(seed, seconds, capacity)
    with contextlib.ExitStack() as stack:
        say("starting workers")
        urls = {way: stack.enter_context(own_server()).url for way in WAYS}
        for url in urls.values():
            stack.enter_context(workers(url, WORKERS, environment=ENVIRONMENT))
        say(f"{len(trace):,} requests in {seconds:.0f} s, three ways at once")
        runs = asyncio.run(_all_ways(urls, trace))
    return report(trace, runs, {"trace_seconds": seconds, "trace_requests": len(trace), "trace_seed": seed})


def report(trace: Sequence[Arrival], runs: dict[str, Run], settings: dict[str, float]) -> Part:
    """The figures of the runs."""
    missed = {way: missed_percent(trace, run.outcomes) for way, run in runs.items()}
    rows = [
        {
            "order": way,
            "": WAYS[way],
            "missed %": missed[way],
            **{f"missed of {name} %": missed_percent(*of_class(trace, run.outcomes, name)) for name in CLASSES},
            "latest sent ms": run.late_s * 1000,
        }
        for way, run in runs.items()
    ]
    title = f"Deadlines: one bursty trace of {len(trace):,} requests, {WORKERS} simulated workers of {SLOTS} slots"
    targets = [
        Target(
            "missed deadlines with EDF",
            missed["EDF"],
            0.5,
            "at most",
            "%",
            f"FIFO: {missed['FIFO']:.1f} %, with callers that cancel {missed['FIFO, callers cancel']:.1f} %",
        )
    ]
    data = {
        "missed_percent": missed,
        "missed_percent_by_life": {
            way: {name: missed_percent(*of_class(trace, run.outcomes, name)) for name in CLASSES}
            for way, run in runs.items()
        },
        "spare_ms_cdf": {way: cdf(spare_ms(trace, run.outcomes)) for way, run in runs.items()},
        "arrivals_per_s": per_second([arrival.at_s for arrival in trace]),
        "missed_per_s": {way: per_second(missed_times(trace, run.outcomes)) for way, run in runs.items()},
    }
    return Part([Table(title, list(rows[0]), rows)], targets, data, settings)


def missed_percent(trace: Sequence[Arrival], outcomes: Sequence[Outcome]) -> float:
    """Per cent of a trace's requests that ended after their deadline or did not succeed."""
    late = sum(outcome.missed(arrival.ttl_ms) for arrival, outcome in zip(trace, outcomes, strict=True))
    return 100 * late / len(trace) if trace else 0.0


def of_class(trace: Sequence[Arrival], outcomes: Sequence[Outcome], name: str) -> tuple[list[Arrival], list[Outcome]]:
    """The requests whose life is within a class, with their outcomes."""
    low, high = CLASSES[name]
    pairs = [pair for pair in zip(trace, outcomes, strict=True) if low <= (pair[0].ttl_ms or 0) < high]
    return [arrival for arrival, _ in pairs], [outcome for _, outcome in pairs]


def spare_ms(trace: Sequence[Arrival], outcomes: Sequence[Outcome]) -> list[float]:
    """Time from each request's end to its deadline; below 0 if it ended after it."""
    return [
        (arrival.ttl_ms or 0) - (outcome.finished_ms - outcome.enqueued_ms)
        for arrival, outcome in zip(trace, outcomes, strict=True)
        if outcome.status
    ]


def missed_times(trace: Sequence[Arrival], outcomes: Sequence[Outcome]) -> list[float]:
    """Arrival times of the missed requests, in s."""
    return [item.at_s for item, outcome in zip(trace, outcomes, strict=True) if outcome.missed(item.ttl_ms)]


def per_second(times_s: Sequence[float]) -> list[int]:
    """Number of times in each second."""
    counts = [0] * (int(max(times_s, default=0.0)) + 1)
    for at_s in times_s:
        counts[int(at_s)] += 1
    return counts


async def _all_ways(urls: dict[str, str], trace: Sequence[Arrival]) -> dict[str, Run]:
    runs = await asyncio.gather(*(_run(urls[way], trace, way) for way in WAYS))
    return dict(zip(WAYS, runs, strict=True))


async def _run(url: str, trace: Sequence[Arrival], way: str) -> Run:
    async with Client(settings=queue_settings(url), notify=False) as fleet:
        canceller = asyncio.create_task(_cancel_late(fleet, trace if way == "FIFO, callers cancel" else []))
        late_s = await replay(fleet, trace, deadlines=way == "EDF")
        await drained(fleet)
        canceller.cancel()
        await asyncio.gather(canceller, return_exceptions=True)
    with redis.Redis.from_url(url) as client:
        return Run(read_outcomes(client, (f"r{number}" for number in range(len(trace)))), late_s)


async def _cancel_late(fleet: Client, trace: Sequence[Arrival]) -> None:
    """Cancel each request of a trace at its deadline, even if it has ended."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for due_s, request_id in sorted((item.at_s + (item.ttl_ms or 0) / 1000, f"r{n}") for n, item in enumerate(trace)):
        await asyncio.sleep(max(0.0, start + due_s - loop.time()))
        await fleet.cancel(request_id)
