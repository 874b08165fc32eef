"""Raw entries of a lane: any fields, any names, any stream ids, and what each must come to."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz import bodies

LANES = ("critical", "high", "normal", "low")
GOOD_REPLY = "desk"
GOOD_BODY = json.dumps(bodies.VALID[0]).encode()
_USABLE = re.compile(rb"[\x21-\x7e]{1,256}")
_RESERVED = re.compile(rb"[A-Za-z]+:[0-9]+-[0-9]+")
ODD_NUMBERS = (
    b"nan", b"inf", b"-inf", b"1e400", b"1e3", b"-0", b"-1", b"0", b"0x10", b"9" * 16, b"9" * 17, b"9" * 400, b"1.5",
    b" 1", b"1 ", b"+1", b"\x00", b"1\x00", b"\xff", "١٢٣".encode(), b"", b"soon", b"1_000", b"9007199254740993",
)  # fmt: skip
ODD_BYTES = (
    b"", b"\x00", b"\xff\xfe", b"a b", b"\x7f", "ü😀".encode(), b"\xed\xa0\x80", b"a" * 256, b"a" * 257, b"x" * 5_000,
    b"{default}:dead", b"}{", b"*", b"a\nb", b"a\r\nb", b"%s", b"~", b"high:1-1", b"high:1-", b":1-1", b"A:0-0", b"1-1",
    b"../../x", b"__proto__", b"\x80abc", b"\xc0\x80", b"--", b"$", b">",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry to XADD.

    Attributes:
        lane: to which lane.
        fields: names and values, one after the other; names may repeat.
        stream_id: ``*`` or one of its own.
        good: nothing is wrong with it, and nobody else has its id: it has to succeed.
    """

    lane: str
    fields: tuple[bytes, ...]
    stream_id: bytes = b"*"
    good: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.fields))

    def effective_id(self, stream_id: bytes) -> bytes:
        """The name of its result, by docs/protocol.md: its own id where that is usable, else ``<lane>:<stream id>``."""
        given = dict(zip(self.fields[::2], self.fields[1::2], strict=True)).get(b"id", b"")
        usable = _USABLE.fullmatch(given) is not None and _RESERVED.fullmatch(given) is None
        return given if usable else self.lane.encode() + b":" + stream_id


class Entries:
    """An endless supply for a seed.

    Args:
        chance: the seeded source.
        name: part of the ids, so that runs do not share them.
        now_ms: epoch ms, for deadlines.
    """

    def __init__(self, chance: random.Random, name: str, now_ms: Callable[[], int]) -> None:
        self._chance, self._name, self._now_ms = chance, name, now_ms
        self._count = 0

    def next(self) -> Entry:
        """One entry; about one in ten is good."""
        self._count += 1
        if self._chance.random() < 0.1:
            return self._good()
        fields = self._fields()
        return Entry(self._chance.choice(LANES), tuple(fields), self._stream_id())

    def _good(self) -> Entry:
        flat = (b"id", f"good-{self._name}-{self._count}".encode(), b"body", GOOD_BODY, b"reply", GOOD_REPLY.encode())
        return Entry(self._chance.choice(LANES), flat, good=True)

    def _fields(self) -> list[bytes]:
        chance, pairs = self._chance, []
        if chance.random() < 0.96:
            pairs.append((b"body", bodies.body(chance)))
        for name, often, make in self._makers():
            if chance.random() < often:
                pairs.append((name, make()))
        if chance.random() < 0.15:
            pairs += self._strangers()
        if chance.random() < 0.05:  # a name twice: the last one counts
            pairs.append((chance.choice(pairs)[0] if pairs else b"body", chance.choice(ODD_BYTES)))
        if chance.random() < 0.3:
            chance.shuffle(pairs)
        return [part for pair in pairs or [(b"", b"")] for part in pair]

    def _makers(self) -> Sequence[tuple[bytes, float, Callable[[], bytes]]]:
        chance = self._chance
        return (
            (b"id", 0.7, self._id),
            (b"endpoint", 0.2, self._endpoint),
            (b"deadline", 0.15, self._deadline),
            (b"ttl", 0.15, self._ttl),
            (b"reply", 0.3, self._reply),
            (b"tenant", 0.1, lambda: chance.choice((b"acme", *ODD_BYTES))),
            (b"session", 0.1, lambda: chance.choice((b"s1", *ODD_BYTES))),
            (b"stream", 0.1, lambda: chance.choice((b"0", b"1", b"2", b"true", *ODD_NUMBERS))),
            (b"traceparent", 0.1, lambda: chance.choice((b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", *ODD_BYTES))),
            (b"meta", 0.1, lambda: chance.choice((b'{"a":1}', b"m" * 4_096, b"m" * 4_097, *ODD_BYTES))),
        )

    def _id(self) -> bytes:
        own = f"f-{self._name}-{self._count}".encode()
        pool = f"shared-{self._chance.randrange(50)}".encode()
        return self._chance.choices(
            (own, pool, self._chance.choice(ODD_BYTES), self._chance.randbytes(8)), (80, 5, 10, 5)
        )[0]

    def _endpoint(self) -> bytes:
        known = (
            b"/v1/chat/completions",
            b"/v1/completions",
            b"/v1/embeddings",
            b"/v1/rerank",
            b"/classify",
            b"/v1/score",
        )
        odd = (b"/v1/load_lora_adapter", b"http://evil/", b"/v1/chat/completions/", b"/../v1", b"/V1/COMPLETIONS")
        return self._chance.choice(known + odd + ODD_BYTES)

    def _deadline(self) -> bytes:
        ahead = str(self._now_ms() + self._chance.choice((-1_000, 0, 1, 50, 2_000, 600_000))).encode()
        return self._chance.choice((ahead, ahead, self._chance.choice(ODD_NUMBERS)))

    def _ttl(self) -> bytes:
        return self._chance.choice((b"1", b"50", b"600000", self._chance.choice(ODD_NUMBERS)))

    def _reply(self) -> bytes:
        return self._chance.choices(
            (f"r{self._chance.randrange(20)}".encode(), self._chance.choice(ODD_BYTES)), (3, 1)
        )[0]

    def _strangers(self) -> list[tuple[bytes, bytes]]:
        """Fields that nobody asked for; now and then hundreds of them."""
        chance = self._chance
        reserved = (b"_id", b"_status", b"_error", b"_entry", b"_attempts", b"_truncated", b"_", b"__id", b"_workers")
        other = (b"status", b"Body", b"BODY", b"body ", b"body\x00", b"ID", b"worker", b"attempt", b"notified:desk")
        count = chance.choices((1, 3, 30, 500), (60, 30, 8, 2))[0]
        names = [chance.choice((*reserved, *other, *ODD_BYTES, chance.randbytes(6))) for _ in range(count)]
        return [(name, chance.choice((b"x", b"succeeded", *ODD_BYTES))) for name in names]

    def _stream_id(self) -> bytes:
        """Sometimes one of its own, a little ahead of the clock; the server refuses those that are not the newest."""
        if self._chance.random() < 0.995:
            return b"*"
        return f"{self._now_ms() + self._chance.randrange(3)}-{self._chance.choice((0, 1, 2**32, 2**63))}".encode()
