"""Garbage for everything beside the lanes: replies, dead letters, cancels, wake-ups, and who is alive."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.fuzz.entries import ODD_BYTES, ODD_NUMBERS

BASE = b"{default}:"
SILENT: tuple[dict[str, Any], ...] = (
    {},
    {"seen_ms": 0},
    {"seen_ms": "x"},
    {"seen_ms": None},
    {"seen_ms": [1]},
    {"seen_ms": 1e300},
)
ODD_DESCRIPTIONS = (
    b"", b"null", b"[]", b"7", b"NaN", b'"x"', b"{", b"\xff", b'{"seen_ms":1e999}', b'{"models":7}',
    b'{"models":{"a":1}}',
    b'{"models":[null,[],"\\u001b[31m"]}', b'{"slots":1e99}', b'{"state":"\\u001b]0;x\\u0007"}', b"[" * 2_000, b"\x00",
    b'{"running":"many","state":[],"engine":{}}', b'{"a":' * 500 + b"1" + b"}" * 500, b'{"seen_ms":99999999999999}',
)  # fmt: skip


def command(chance: random.Random, ids: Sequence[bytes]) -> list[bytes]:
    """One command as anybody with a Redis client could send it.

    Args:
        chance: the seeded source.
        ids: request ids that exist, to be cancelled now and then.
    """
    named = chance.choice([*ids[-50:], *ODD_BYTES])
    stream = chance.choice((b"reply:r1", b"reply:desk", b"reply:" + chance.choice(ODD_BYTES), b"cancels", b"wake"))
    commands = (
        [b"XADD", BASE + stream, b"*", *_fields(chance)],
        [b"XADD", BASE + b"dead", b"*", *letter(chance, named)],
        [b"XADD", BASE + b"cancels", b"*", *_fields(chance), b"id", named],
        [b"XADD", BASE + b"cancel_requests", b"*", *_fields(chance), *_wish(chance, named)],
        [b"RPUSH", BASE + b"wake:w1", chance.choice(ODD_BYTES)],
        [b"HSET", BASE + b"workers", b"ghost-%d" % chance.randrange(30) + named[:8], description(chance)],
    )
    return chance.choice(commands)


def description(chance: random.Random) -> bytes:
    """Returns a value for a worker's description of itself, mostly a broken one."""
    return chance.choice((*ODD_DESCRIPTIONS, json.dumps(chance.choice(SILENT)).encode()))


def _fields(chance: random.Random) -> list[bytes]:
    names = (b"id", b"status", b"t", *ODD_BYTES)
    return [chance.choice((*names, *ODD_NUMBERS)) for _ in range(2 * chance.choice((1, 1, 2, 20)))]


def _wish(chance: random.Random, named: bytes) -> list[bytes]:
    return [b"id", named, b"reason", chance.choice(ODD_BYTES)] if chance.random() < 0.7 else []


def letter(chance: random.Random, named: bytes) -> list[bytes]:
    odd = (*ODD_NUMBERS, *ODD_BYTES)
    flat = [b"_id", named, b"_status", chance.choice((b"failed", b"dead", *odd)), b"_attempts", chance.choice(odd)]
    flat += [b"_error", chance.choice((b'{"error":{"message":7}}', b'{"error":[]}', b"[]", b"{" * 2_000, *odd))]
    flat += [b"_entry", chance.choice((b"high:1-1", b"high:x-y", b"low", b"high:", b"high:-", *odd))]
    return [*flat, b"_workers", chance.choice(odd), *_fields(chance)]
