"""Puts backlogs into a queue."""

from __future__ import annotations

import json
from typing import Any

import redis

from streamfleet.common.keys import Keys
from streamfleet.common.settings import QueueSettings, load
from tests.broker import Broker

KEYS = Keys("default")
FILL_AT_ONCE = 5_000
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


async def stage_all(broker: Broker, *, at_once: int = 1_000) -> int:
    """Stage everything that has arrived, as the housekeeping does; returns the number of entries."""
    staged = 0
    while found := (await broker.pull("stager", 0, stage_entries=at_once)).staged:
        staged += found
    return staged
