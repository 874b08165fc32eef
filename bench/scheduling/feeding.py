"""Puts traces and backlogs into a queue, and reads their outcomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from bench.scheduling.outcomes import FIELDS, Outcome
from bench.scheduling.traces import Arrival
from streamfleet.common.keys import Keys
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Client
from tests.broker import Broker

KEYS = Keys("default")
LOOK_AGAIN_S = 0.05
FILL_AT_ONCE = 5_000
READ_AT_ONCE = 2_000
# A script, so that a million entries take seconds. `deadline` spreads the entries at random over an hour from ARGV[4],
# so that they are not taken in the order of arrival; without it they have no deadlines.
FILL = """
math.randomseed(tonumber(ARGV[5]))
for i = 1, tonumber(ARGV[1]) do
  local fields = {'id', ARGV[2] .. (tonumber(ARGV[5]) + i), 'body', ARGV[3]}
  if ARGV[4] ~= '' then
    fields[5], fields[6] = 'deadline', string.format('%.0f', tonumber(ARGV[4]) + math.random(3600000))
  end
  redis.call('XADD', KEYS[1], '*', unpack(fields))
end
"""


def body(tokens: int, prompt: str = "go on") -> dict[str, Any]:
    """A body that asks for exactly so many tokens."""
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}


def padded_body(size: int) -> bytes:
    """JSON text of a body, padded to so many bytes."""
    empty = len(json.dumps(body(16, ""), separators=(",", ":")))
    return json.dumps(body(16, "x" * (size - empty)), separators=(",", ":")).encode()


def queue_settings(url: str, **more: Any) -> QueueSettings:
    """Default settings, on the given Redis, for lanes of any length."""
    return load(QueueSettings, redis_url=url, lane_limit=10_000_000, **more)


def fill(
    client: redis.Redis,
    lane: str,
    count: int,
    *,
    name: str,
    content: bytes | str | None = None,
    first_deadline_ms: int | None = None,
    queue: str = "default",
) -> list[str]:
    """XADD so many entries, ids ``<name>1`` and up; returns the ids.

    Args:
        client: the server.
        lane: their lane.
        count: number of entries.
        name: beginning of the ids.
        content: the body; None for a short one of 16 tokens.
        first_deadline_ms: start of the hour in which deadlines lie at random, epoch ms; None for no deadlines.
        queue: the queue.
    """
    text = json.dumps(body(16)) if content is None else content
    deadline = "" if first_deadline_ms is None else str(first_deadline_ms)
    for start in range(0, count, FILL_AT_ONCE):
        number = min(FILL_AT_ONCE, count - start)
        client.eval(FILL, 1, Keys(queue).lane(lane), number, name, text, deadline, start)
    return [f"{name}{number}" for number in range(1, count + 1)]


async def replay(
    client: Client,
    trace: Sequence[Arrival],
    *,
    speed: float = 1.0,
    deadlines: bool = True,
) -> float:
    """Enqueue every request of a trace at its time, as ``r0``, ``r1``, …; those that are due together go in one call.

    Args:
        client: an open client.
        trace: in order of time.
        speed: factor over the trace's own time; lives shrink with it.
        deadlines: true if requests carry their deadlines.

    Returns:
        Delay of the latest request at its sending, in seconds of real time.
    """
    loop = asyncio.get_running_loop()
    start, at, latest_s = loop.time(), 0, 0.0
    while at < len(trace):
        due_s = trace[at].at_s / speed
        await asyncio.sleep(max(0.0, start + due_s - loop.time()))
        now_s = loop.time() - start
        latest_s = max(latest_s, now_s - due_s)
        end = at + 1
        while end < len(trace) and trace[end].at_s / speed <= now_s:
            end += 1
        asks = [_ask(trace[number], number, speed, deadlines) for number in range(at, end)]
        await client.enqueue_many(asks)
        at = end
    return latest_s


def _ask(arrival: Arrival, number: int, speed: float, deadlines: bool) -> dict[str, Any]:
    ask: dict[str, Any] = {"id": f"r{number}", "body": body(arrival.tokens), "lane": arrival.lane}
    if deadlines and arrival.ttl_ms is not None:
        ask["ttl_ms"] = max(1, round(arrival.ttl_ms / speed))
    return ask


async def stage_all(broker: Broker, *, at_once: int = 1_000) -> int:
    """Stage everything that has arrived, as the housekeeping does; returns the number of entries."""
    staged = 0
    while found := (await broker.pull("stager", 0, stage_entries=at_once)).staged:
        staged += found
    return staged


async def drained(client: Client, within_s: float = 120.0) -> None:
    """Wait until nothing is outstanding.

    Raises:
        TimeoutError: something still is.
    """
    async with asyncio.timeout(within_s):
        while (await Broker.of(client.broker).audit()).outstanding:  # noqa: ASYNC110 - the wait is for other processes
            await asyncio.sleep(LOOK_AGAIN_S)


def read_outcomes(client: redis.Redis, ids: Iterable[str]) -> list[Outcome]:
    """Outcome of each id; with an empty status if there is no result."""
    names, found = list(ids), []
    for start in range(0, len(names), READ_AT_ONCE):
        pipe = client.pipeline(transaction=False)
        for request_id in names[start : start + READ_AT_ONCE]:
            pipe.hmget(KEYS.result(request_id), FIELDS)
        found += [Outcome.read(values) for values in pipe.execute()]
    return found
