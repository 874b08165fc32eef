"""One run: requests sent at their times whatever becomes of them, and how each ended, by the clock of Redis.

An open loop: were the next request sent when the last one is answered, a worker that stands still would be sent
nothing, and its pause would count once instead of for everybody who came meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from tests.hostile.bodies import Entry
from tests.hostile.catalogue import hostile
from tests.hostile.good import good

LANE = "{default}:lane:normal"
RESULT = "{default}:result:"
GOOD = "good"
FIRST_S = 1.0


@dataclass(frozen=True)
class Planned:
    """A request to send, so long after the beginning."""

    at_s: float
    id: str
    family: str
    entry: Entry


@dataclass(frozen=True)
class Ended:
    """End of one request: status, error code or empty, HTTP status, and ms from its enqueueing to its result."""

    family: str
    status: str
    code: str
    http_status: int
    ms: int


def plan(good_count: int, hostile_count: int, rate: float, seed: int, families: tuple[str, ...] = ()) -> list[Planned]:
    """Good ones at random times, ``rate`` a second; hostile ones, if any, over the same time.

    Two plans of one seed have the same good ones at the same times.
    """
    rng = random.Random(seed)
    at_s, planned = FIRST_S, []
    for number, body in enumerate(good(good_count, seed)):
        at_s += rng.expovariate(rate)
        planned.append(Planned(at_s, f"good-{number}", GOOD, Entry(json.dumps(body).encode())))
    rng = random.Random(seed + 1)
    for number, (family, entry) in enumerate(hostile(hostile_count, seed, families)):
        planned.append(Planned(rng.uniform(FIRST_S, at_s), f"{family}-{number}", family, entry))
    return sorted(planned, key=lambda one: one.at_s)


async def play(
    url: str, alive: Callable[[], bool], planned: Sequence[Planned], within_s: float, tell: Callable[[str], None]
) -> dict[str, Ended | None]:
    """Send everything, and wait for every end.

    Args:
        url: the Redis.
        alive: true while the worker lives.
        planned: what to send, in order.
        within_s: how long after the last was sent all must have ended.
        tell: gets a line of progress now and then.

    Returns:
        By id; None for what has not ended.
    """
    client: Any = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=None)
    async with client:
        return await _play(client, alive, planned, within_s, tell)


async def _play(
    client: Any, alive: Callable[[], bool], planned: Sequence[Planned], within_s: float, tell: Callable[[str], None]
) -> dict[str, Ended | None]:
    begin, told = time.monotonic(), 0.0
    ended: dict[str, Ended | None] = dict.fromkeys(one.id for one in planned)
    family_of = {one.id: one.family for one in planned}
    sent, last_s = 0, planned[-1].at_s
    while None in ended.values() and alive():
        now_s = time.monotonic() - begin
        if now_s > last_s + within_s:
            break
        while sent < len(planned) and planned[sent].at_s <= now_s:
            one = planned[sent]
            await client.xadd(LANE, {"id": one.id, "body": one.entry.body, **one.entry.more})
            sent += 1
        open_ids = [one.id for one in planned[:sent] if ended[one.id] is None]
        for identity, found in zip(open_ids, await _results(client, open_ids), strict=True):
            if found.get("status"):
                ended[identity] = _ended(family_of[identity], found)
        if now_s - told > 15:
            told = now_s
            tell(f"{now_s:4.0f} s: {sent} sent, {sum(end is not None for end in ended.values())} ended")
        next_s = planned[sent].at_s - (time.monotonic() - begin) if sent < len(planned) else 0.25
        await asyncio.sleep(min(0.25, max(0.0, next_s)))
    return ended


async def _results(client: Any, ids: list[str]) -> list[dict[str, str]]:
    async with client.pipeline(transaction=False) as pipe:
        for identity in ids:
            pipe.hmget(RESULT + identity, "status", "error", "http_status", "enqueued_ms", "finished_ms", "entry")
        names = ("status", "error", "http_status", "enqueued_ms", "finished_ms", "entry")
        return [dict(zip(names, values, strict=True)) for values in await pipe.execute()]


def _ended(family: str, found: dict[str, str]) -> Ended:
    code = ""
    if found["error"]:
        code = str(json.loads(found["error"])["error"].get("code"))
    took = int(found["finished_ms"]) - int(found["enqueued_ms"] or found["entry"].split(":")[1].split("-")[0])
    return Ended(family, found["status"], code, int(found["http_status"]), took)
