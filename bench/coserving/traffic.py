"""One run: a fleet with patient work in every slot, and urgent requests that come at random times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import redis
from redis.asyncio import Redis as AsyncRedis

from bench.core.feeding import body, fill, queue_settings
from bench.core.redis import own_server
from bench.core.workers import workers
from bench.coserving.cases import (
    LANE_VARIABLE,
    PATIENT_LANE,
    PATIENT_QUEUE,
    SLOTS,
    URGENT_QUEUE,
    URGENT_TOKENS,
    Case,
    Contender,
)
from bench.coserving.observed import Log
from streamfleet.common.keys import Keys
from streamfleet.producer import Client

WAYS = ("client", "XADD")
"""Of urgent requests, by turns."""
LOOK_S = 0.2
AGAIN_S = 1.5
"""Time in which patient requests that were sent back run again, after the last urgent one is done."""
FIELDS = ("status", "enqueued_ms", "queued_ms", "waited_ms", "first_token_ms")
"""Of a result hash, as `Outcome.read` takes them."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one request, from its result hash.

    Attributes:
        status: terminal status; empty if there is no result.
        enqueued_ms: time at which its entry was added, epoch ms.
        first_token_ms: time of its first token, epoch ms; None if it had none.
    """

    status: str
    enqueued_ms: float
    first_token_ms: float | None

    @classmethod
    def read(cls, values: Sequence[bytes | None]) -> Outcome:
        """Returns the outcome in the reply to an HMGET of FIELDS."""
        status, enqueued, *later = values
        spans = [float(value) for value in later if value is not None]
        enqueued_ms = float(enqueued or 0)
        first_token_ms = enqueued_ms + sum(spans) if enqueued and len(spans) == len(later) else None
        return cls((status or b"").decode(), enqueued_ms, first_token_ms)


@dataclass(frozen=True)
class Urgent:
    """One urgent request.

    Attributes:
        way: one of `WAYS`.
        first_ms: time from its entry in the lane to its first token; if it had none, the time waited so far.
        answered: true if it was answered within the run.
    """

    way: str
    first_ms: float
    answered: bool


@dataclass(frozen=True)
class Seen:
    """One run; times in epoch seconds.

    Attributes:
        from_s, to_s: begin and end of the urgent traffic.
        stopped_s: time at which the workers were told to stop.
        urgent: all urgent requests.
        logs: the engines' logs.
        patient_lane: lane of the patient work.
    """

    from_s: float
    to_s: float
    stopped_s: float
    urgent: Sequence[Urgent]
    logs: Sequence[Log]
    patient_lane: str = PATIENT_LANE


def arrivals(case: Case, tokens_per_s: float) -> list[float]:
    """Seconds at which urgent requests come: at random, the same for all contenders; or one by one."""
    if case.every_s:
        return [case.every_s * number for number in range(1, math.ceil(case.seconds / case.every_s))]
    chance, at_s, found = random.Random(1), 0.0, list[float]()
    while (at_s := at_s + chance.expovariate(case.load * tokens_per_s / URGENT_TOKENS)) < case.seconds:
        found.append(at_s)
    return found


def run(
    case: Case, contender: Contender, engine: Mapping[str, object], tokens_per_s: float, *, quiet: bool = False
) -> Seen:
    """Start the fleet and its patient work, then send the urgent requests.

    Args:
        case: the load.
        contender: the way to run it.
        engine: the engine's settings.
        tokens_per_s: output tokens a second that the fleet's engines can write, without their reserve.
        quiet: true for patient work alone.
    """
    due_s = [] if quiet else arrivals(case, tokens_per_s)
    with tempfile.TemporaryDirectory() as folder, own_server() as server:
        with redis.Redis.from_url(server.url) as client:
            if contender.patient:
                left_s = case.patient_s + case.seconds + case.grace_s + AGAIN_S
                lengths = case.patient_tokens
                backlog = 2 * SLOTS * case.workers + int(2 * tokens_per_s * left_s / mean(lengths))
                for number in range(backlog):
                    content = _body(lengths[number % len(lengths)])
                    fill(client, case.running, 1, name=f"patient-{number}-", content=content)
            with _fleet(server.url, case, contender, {**engine, "BENCH_COSERVING_LOGS": folder}):
                time.sleep(case.patient_s if contender.patient else 0.5)
                from_s = time.time()
                queue = URGENT_QUEUE if contender.urgent_share else PATIENT_QUEUE
                asyncio.run(_send(server.url, queue, case.comes, due_s, case.seconds))
                to_s = time.time()
                urgent = _awaited(client, Keys(queue), case, len(due_s))
                if contender.patient:
                    time.sleep(AGAIN_S)
                stopped_s = time.time()
        logs = [Log.load(path) for path in sorted(Path(folder).glob("*.json"))]
    return Seen(from_s, to_s, stopped_s, urgent, logs, case.running)


@contextmanager
def _fleet(url: str, case: Case, contender: Contender, environment: Mapping[str, object]) -> Iterator[None]:
    given = {**environment, **contender.settings, "STREAMFLEET_DRAIN_MS": 50, LANE_VARIABLE: case.running}
    urgent = contender.urgent_share * case.workers
    module = "bench.coserving.worker"
    with contextlib.ExitStack() as stack:
        if urgent and urgent < 1:
            # Without requests beyond the slots: in front of the shared engine they would take the other part's.
            given |= {"BENCH_COSERVING_URGENT_SLOTS": round(urgent * SLOTS / case.workers), "STREAMFLEET_PREFETCH": 0}
            urgent = 0
        if urgent:
            stack.enter_context(workers(url, round(urgent), module=module, environment=given, queue=URGENT_QUEUE))
        stack.enter_context(workers(url, case.workers - round(urgent), module=module, environment=given))
        yield


def _body(tokens: int) -> str:
    return json.dumps(body(tokens))


async def _send(url: str, queue: str, name: str, due_s: Sequence[float], seconds: float) -> None:
    """Send every urgent request at its time, by client and by XADD in turn."""
    loop = asyncio.get_running_loop()
    settings = queue_settings(url, queue=queue)
    async with Client(settings=settings) as fleet, AsyncRedis.from_url(url) as plain, asyncio.TaskGroup() as group:
        lane, content = Keys(queue).lane(name), _body(URGENT_TOKENS)

        async def by_client(number: int) -> None:
            await fleet.enqueue(body(URGENT_TOKENS), lane=name, id=_id(number))

        async def by_xadd(number: int) -> None:
            await plain.xadd(lane, {"id": _id(number), "body": content})

        await fleet.broker.ensure_groups()
        began_s = loop.time()
        for number, at_s in enumerate(due_s):
            await asyncio.sleep(began_s + at_s - loop.time())
            group.create_task(by_client(number) if WAYS[number % 2] == "client" else by_xadd(number))
        await asyncio.sleep(began_s + seconds - loop.time())


def _awaited(client: redis.Redis, keys: Keys, case: Case, count: int) -> list[Urgent]:
    """Returns the urgent requests as soon as all are answered, or after the case's grace."""
    give_up = time.monotonic() + case.grace_s
    sent_ms = _sent_ms(client, keys.lane(case.comes))
    while True:
        pipe = client.pipeline(transaction=False)
        for number in range(count):
            pipe.hmget(keys.result(_id(number)), FIELDS)
        found = [Outcome.read(values) for values in pipe.execute()]
        if all(outcome.status for outcome in found) or time.monotonic() > give_up:
            break
        time.sleep(LOOK_S)
    now_ms = time.time() * 1000
    urgent = []
    for number, outcome in enumerate(found):
        first_ms = outcome.first_token_ms if outcome.status == "succeeded" else None
        since_ms = outcome.enqueued_ms or sent_ms[_id(number)]
        waited_ms = (now_ms if first_ms is None else first_ms) - since_ms
        urgent.append(Urgent(WAYS[number % 2], waited_ms, answered=first_ms is not None))
    return urgent


def _sent_ms(client: redis.Redis, lane: str) -> dict[str, float]:
    """Time at which each urgent request was enqueued, epoch ms; of answered ones the entry may be gone."""
    found: Any = client.xrange(lane)
    return {fields[b"id"].decode(): float(entry.partition(b"-")[0]) for entry, fields in found}


def _id(number: int) -> str:
    return f"urgent-{number}"
