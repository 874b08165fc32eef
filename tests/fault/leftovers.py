"""Reads what a queue's keys hold once all requests have ended: no more than `ORIGINS` says, however many there were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from streamfleet.common.keys import ORIGINS, UNTIL, Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES

SIZE_OF = {"stream": "XLEN", "zset": "ZCARD", "hash": "HLEN", "list": "LLEN", "string": "EXISTS"}
TENANTS, SESSIONS = 5, 28
"""Most names in one run: tenants, '' and `other` too; 7 sessions of each of three tenants, and a gateway's callers."""
AT_ONCE = 500
_limits = QueueLimits()


class Leftover(NamedTuple):
    """The keys of one kind, and their sizes.

    Attributes:
        kind: name in `ORIGINS`; empty for keys that it does not know.
        keys: their number.
        largest: items in the largest.
        wrong: those that hold more than they may, or live for ever, and their sizes.
    """

    kind: str
    keys: int
    largest: int
    wrong: Mapping[str, int]


def bounds(fallen: int) -> dict[str, int]:
    """Most items of a key by its name in `ORIGINS`, which says the same in words; `fallen`: killed workers."""
    lanes = len(LANES)
    return {
        "turns": TENANTS,
        "lane_states": 6 * lanes + 3,
        "counts": 10,
        "served": 2 * TENANTS + 2 * lanes + 4,
        "sessions": SESSIONS + 2 * fallen + 1,
        **dict.fromkeys(("loads", "workers", "waiting", "watch"), fallen),
        "clock": int(ORIGINS["clock"].left.split()[0]),
        "pace": 1,
        "wake": _limits.watchers,
        "cancels": _limits.notices_cap + 100,
        "dead_parts": 3 + _limits.dead_bytes // 2**24,
        "arrivals": TENANTS * lanes + 2,
        "entries": 1,
        "dead": _limits.dead_cap + 100,
        "tenants": TENANTS,
        "meta": len(fields(QueueLimits)),
    }


async def leftovers(redis: Any, keys: Keys, fallen: int) -> list[Leftover]:
    """Everything that is left, by kind."""
    found: dict[str, list[str]] = defaultdict(list)
    async for raw in redis.scan_iter(f"{keys.base}*", count=5_000):
        found[_kind(keys, raw.decode())].append(raw.decode())
    most = bounds(fallen)
    return [await _look(redis, kind, names, most.get(kind, 0)) for kind, names in sorted(found.items())]


def _kind(keys: Keys, key: str) -> str:
    for name in ORIGINS:
        known = getattr(keys, name)
        if key == known if isinstance(known, str) else key.startswith(known("")):
            return name
    return ""


async def _look(redis: Any, kind: str, names: Sequence[str], most: int) -> Leftover:
    expires = bool(kind) and ORIGINS[kind].left == UNTIL
    verb = SIZE_OF[ORIGINS[kind].type] if kind else "EXISTS"
    sizes: list[int] = []
    lives: list[int] = []
    for first in range(0, len(names), AT_ONCE):
        async with redis.pipeline(transaction=False) as pipe:
            for name in names[first : first + AT_ONCE]:
                pipe.execute_command(verb, name)
                pipe.pttl(name)
            replies = await pipe.execute()
        sizes += replies[::2]
        lives += replies[1::2]
    wrong = {
        name: size
        for name, size, life in zip(names, sizes, lives, strict=True)
        if (life == -1 if expires else size > most)
    }
    return Leftover(kind, len(names), max(sizes), wrong)
