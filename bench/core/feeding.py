"""Puts backlogs into a queue."""

from __future__ import annotations

import json
from typing import Any

from streamfleet.common.settings import QueueSettings, load
from tests.broker import Broker

FILL_AT_ONCE = 5_000


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


async def stage_all(broker: Broker, *, at_once: int = 1_000) -> int:
    """Stage everything that has arrived, as the housekeeping does; returns the number of entries."""
    staged = 0
    while found := (await broker.pull("stager", 0, stage_entries=at_once)).staged:
        staged += found
    return staged
