"""A load on a real fleet, with real Redis and worker processes, and its outcome in the plan's own terms."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from bench.core.redis import own_server
from bench.core.workers import workers
from bench.scheduling.feeding import drained, queue_settings, read_outcomes
from bench.scheduling.outcomes import Outcome
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.figures import Figures, figures
from streamfleet.operator.plan.measure import WORDS, MeasureOptions, measure_engine
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.operator.plan.simulate import RequestTimes, Run
from streamfleet.producer import Client

Environment = Mapping[str, object]
DRAIN_S = 300.0
WARM = 4
"""Requests before each load, for whatever is done once."""


def measured(environment: Environment, options: MeasureOptions) -> EngineProfile:
    """The profile of a worker with this environment, measured by `streamfleet plan measure`."""

    async def ask(url: str) -> EngineProfile:
        async with Client(url) as client:
            return await measure_engine(client, options)

    with own_server() as server, workers(server.url, environment=environment):
        return asyncio.run(ask(server.url))


def observed(environment: Environment, count: int, arrivals: Sequence[Arrival]) -> tuple[Figures, float]:
    """Run the load on so many workers.

    Returns:
        Its figures, without slots, and the delay in seconds of the latest request at its enqueueing.
    """
    with (
        own_server() as server,
        redis.Redis.from_url(server.url) as client,
        workers(server.url, count, environment=environment),
    ):
        late_s = asyncio.run(_sent(server.url, arrivals))
        outcomes = read_outcomes(client, (f"r{place}" for place in range(len(arrivals))))
    return figures(count, 1, [run_of(arrivals, outcomes)]), late_s


def run_of(arrivals: Sequence[Arrival], outcomes: Sequence[Outcome]) -> Run:
    """The real outcomes in the form of a simulated run."""
    ends_s = [
        arrival.at_s + (outcome.finished_ms - outcome.enqueued_ms) / 1000
        for arrival, outcome in zip(arrivals, outcomes, strict=True)
        if outcome.status == "succeeded"
    ]
    return Run(arrivals, [_times(outcome) for outcome in outcomes], max(ends_s, default=0.0), 0.0)


def _times(outcome: Outcome) -> RequestTimes:
    def since_s(moment_ms: float | None) -> float | None:
        return None if moment_ms is None else (moment_ms - outcome.enqueued_ms) / 1000

    answered = outcome.status == "succeeded"
    total_s = since_s(outcome.finished_ms) if answered else None
    return RequestTimes(since_s(outcome.started_ms), since_s(outcome.first_token_ms), total_s)


async def _sent(url: str, arrivals: Sequence[Arrival]) -> float:
    chance = random.Random(1)
    asks = [_ask(arrival, place, chance) for place, arrival in enumerate(arrivals)]
    async with Client(settings=queue_settings(url)) as warming:
        warm = [{"body": _body(8, 4, chance)} for _ in range(WARM)]
        async for result in warming.as_completed(await warming.enqueue_many(warm), timeout=DRAIN_S):
            result.raise_for_status()
    async with Client(settings=queue_settings(url), notify=False) as client:
        late_s = await _replay(client, arrivals, asks)
        await drained(client, DRAIN_S)
    return late_s


async def _replay(client: Client, arrivals: Sequence[Arrival], asks: Sequence[Mapping[str, Any]]) -> float:
    """Enqueue each request at its time; those that are due together in one call. Returns the largest delay, in s."""
    loop = asyncio.get_running_loop()
    start, at, latest_s = loop.time(), 0, 0.0
    while at < len(asks):
        await asyncio.sleep(max(0.0, start + arrivals[at].at_s - loop.time()))
        now_s = loop.time() - start
        latest_s = max(latest_s, now_s - arrivals[at].at_s)
        end = at + 1
        while end < len(asks) and arrivals[end].at_s <= now_s:
            end += 1
        await client.enqueue_many(asks[at:end])
        at = end
    return latest_s


def _ask(arrival: Arrival, place: int, chance: random.Random) -> dict[str, Any]:
    body = _body(arrival.prompt_tokens, arrival.output_tokens, chance)
    ask: dict[str, Any] = {"id": f"r{place}", "body": body, "lane": arrival.lane}
    if arrival.deadline_s is not None:
        ask["ttl_ms"] = round(arrival.deadline_s * 1000)
    return ask


def _body(prompt_tokens: int, output_tokens: int, chance: random.Random) -> dict[str, Any]:
    words = " ".join(chance.choices(WORDS, k=prompt_tokens))
    return {"prompt": words, "max_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
