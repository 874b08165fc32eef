"""A gateway's cache of API keys: when it is used, and when Redis is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import cast

import pytest
import structlog

from streamfleet.common.errors import BrokerUnavailable, NotPermitted
from streamfleet.common.protocol import Lane
from streamfleet.gateway import key_cache
from streamfleet.gateway.api_keys import KeyRecord, digest_of
from streamfleet.gateway.broker.api_keys import Admission, GatewayBroker, Left, Verdict
from streamfleet.gateway.key_cache import EXPIRES_SOON_MS, MAX_AGE_S, MAX_SILENCE_S, READ_AGAIN_S, KeyCache
from streamfleet.gateway.open_calls import OpenCall, OpenCalls
from tests.clocks import HandClock
from tests.waiting import eventually

KEY, OTHER = "sf-a", "sf-b"
LIMITED = Left(5, 4, 1_000)


class Redis:
    """A cache's broker, from memory.

    Attributes:
        told: what the blocking reads answer, in turn: whether there was a change, or an error.
        positions: from where each of them went on.
        asked: keys that were looked up.
        admission: what is said of each.
        looking: lets looks go on.
        records: what is stored by now, by digest.
        read_digests: those that were read again.
        clock_ms: Redis's clock.
        failing: what a reading raises.
    """

    def __init__(self) -> None:
        self.told: asyncio.Queue[bool | Exception] = asyncio.Queue()
        self.positions: list[str] = []
        self.asked: list[str] = []
        self.admission = Admission(Verdict.LET_IN, KeyRecord("1", "name", "tenant"))
        self.looking = asyncio.Event()
        self.looking.set()
        self.records: dict[str, KeyRecord] = {}
        self.read_digests: list[str] = []
        self.clock_ms = 0
        self.failing: Exception | None = None

    async def read(self, digests: Sequence[str]) -> list[KeyRecord | None]:
        self.read_digests += digests
        if isinstance(self.failing, Exception):
            raise self.failing
        return [self.records.get(digest) for digest in digests]

    async def now_ms(self) -> int:
        return self.clock_ms

    async def changes(self, last_id: str, block_ms: int) -> tuple[str, bool]:
        assert block_ms == key_cache.LISTEN_MS
        self.positions.append(last_id)
        told = await self.told.get()
        if isinstance(told, Exception):
            raise told
        return f"{len(self.positions)}-0", told

    async def admit(self, secret: str, requests: int = 1) -> Admission:
        assert requests == 1
        self.asked.append(secret)
        admission = self.admission
        await self.looking.wait()
        return admission


class Stage:
    """Keys of a gateway that listens, with a clock that a test moves."""

    def __init__(self) -> None:
        self.redis, self.clock = Redis(), HandClock()
        self.followed: list[KeyRecord] = []
        self.calls = OpenCalls()
        self.keys = KeyCache(cast("GatewayBroker", self.redis), self.clock, self.followed.append, self.calls)

    async def hear(self, told: bool | Exception = False) -> None:
        """A blocking read ends, and the next one begins."""
        before = len(self.redis.positions)
        await self.redis.told.put(told)
        await eventually(lambda: len(self.redis.positions) > before)

    async def ask(self, *secrets: str) -> int:
        """Number of these requests that were asked for in Redis."""
        before = len(self.redis.asked)
        for secret in secrets:
            assert await self.keys.admit(secret) is self.redis.admission
        return len(self.redis.asked) - before


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(key_cache, "RETRY_S", 0)
    stage = Stage()
    stage.keys.start()
    await eventually(lambda: stage.redis.positions == ["0-0"])
    await stage.hear()
    yield stage
    await stage.keys.close()


async def test_a_key_is_asked_for_once(stage: Stage) -> None:
    assert await stage.ask(KEY, KEY, OTHER, KEY, OTHER) == 2


async def test_what_is_known_is_believed_for_some_seconds_only(stage: Stage) -> None:
    assert await stage.ask(KEY) == 1
    for _ in range(4):
        stage.clock.seconds += MAX_AGE_S / 4 - 0.01
        await stage.hear()
    assert await stage.ask(KEY) == 0
    stage.clock.seconds += 0.1
    assert await stage.ask(KEY, KEY) == 1


async def test_records_of_keys_that_were_seen_are_followed_when_keys_change(stage: Stage) -> None:
    """Also those of keys whose requests only wait by now."""
    before = stage.redis.admission.record
    await stage.ask(KEY, KEY, OTHER)
    assert stage.followed == [before, before]
    changed = KeyRecord("1", "name", "tenant", weight=3.0, set_ms=5)
    stage.redis.records[digest_of(KEY)] = changed
    await stage.hear(True)
    assert stage.followed == [before, before, changed]


def opened(stage: Stage, digest: str, lane: Lane | None = None) -> list[str | None]:
    """A call with this key; the codes of the errors that it ends with."""
    codes: list[str | None] = []
    stage.calls.add(OpenCall(digest, lane, lambda error: codes.append(error.code)))
    return codes


async def test_open_calls_end_with_their_key_and_no_others(stage: Stage) -> None:
    record = KeyRecord("1", "name", "tenant", lanes=(Lane.HIGH, Lane.LOW))
    stage.redis.records = {"mine": record, "other": record}
    mine, reads, other = opened(stage, "mine", Lane.LOW), opened(stage, "mine"), opened(stage, "other", Lane.HIGH)
    await stage.hear(True)
    assert mine + reads + other == []
    stage.redis.records["other"] = replace(record, lanes=(Lane.LOW,))
    await stage.hear(True)
    assert (mine, other) == ([], ["lane_not_allowed"])
    del stage.redis.records["mine"]
    await stage.hear(True)
    assert mine == reads == ["invalid_api_key"]


@pytest.mark.parametrize("how", ["deleted", "expired"])
async def test_calls_of_keys_that_end_without_a_word_end_soon(stage: Stage, how: str) -> None:
    stage.redis.records["mine"] = KeyRecord("1", "name", "tenant", expires_ms=5_000 if how == "expired" else None)
    codes, others = opened(stage, "mine"), [opened(stage, "mine") for _ in range(50)]
    await stage.hear()
    if how == "deleted":
        stage.redis.records.clear()
    stage.redis.clock_ms = 5_000
    before = len(stage.redis.read_digests)
    stage.clock.seconds += READ_AGAIN_S
    await stage.hear()
    assert codes == ["invalid_api_key"]
    assert all(others)
    assert stage.redis.read_digests[before:] == ["mine"], "once for all of its calls"


async def test_a_reading_that_fails_ends_no_call_and_not_the_listening(stage: Stage) -> None:
    codes = opened(stage, "mine")
    stage.redis.failing = BrokerUnavailable("gone")
    await stage.hear(True)
    stage.redis.failing = None
    assert codes == []
    await stage.hear(True)
    assert codes == ["invalid_api_key"]


async def test_a_call_that_ended_is_forgotten(stage: Stage) -> None:
    call = OpenCall("mine", None, lambda _: None)
    stage.calls.add(call)
    assert stage.calls.digests == ["mine"]
    stage.calls.remove(call)
    stage.calls.remove(call)
    assert stage.calls.digests == []


async def test_a_key_that_has_ended_is_not_followed(stage: Stage) -> None:
    stage.redis.admission = Admission(Verdict.ENDED, KeyRecord("1", "name", "tenant", weight=3.0))
    await stage.ask(KEY)
    await stage.hear(True)
    assert not stage.followed


async def test_what_was_asked_before_a_change_is_not_learned_after_it(stage: Stage) -> None:
    stage.redis.looking.clear()
    asking = asyncio.create_task(stage.keys.admit(KEY))
    await eventually(lambda: stage.redis.asked == [KEY])
    await stage.hear(True)
    stage.redis.looking.set()
    await asking
    assert await stage.ask(KEY) == 1


async def test_nothing_is_believed_without_a_sign_of_life(stage: Stage) -> None:
    assert await stage.ask(KEY) == 1
    stage.clock.seconds += MAX_SILENCE_S - 0.1
    assert await stage.ask(KEY) == 0
    stage.clock.seconds += 0.1
    assert await stage.ask(KEY, KEY) == 2, "the line may be dead without a word"


async def test_a_gateway_that_does_not_listen_asks_each_time() -> None:
    stage = Stage()
    assert await stage.ask(KEY, KEY) == 2
    await stage.keys.close()


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), NotPermitted("+xread is missing"), RuntimeError("odd")])
async def test_a_lost_line_makes_it_ask_again_and_listen_from_the_beginning(stage: Stage, error: Exception) -> None:
    assert await stage.ask(KEY) == 1
    with structlog.testing.capture_logs() as logs:
        await stage.hear(error)
        assert await stage.ask(KEY, KEY) == 2
        await stage.hear(error)
    assert [line["event"] for line in logs] == ["key_cache_off"], "told once"
    assert stage.redis.positions[-2:] == ["0-0", "0-0"], "another server may have given out other ids"
    await stage.hear()
    assert await stage.ask(KEY, KEY) == 1


@pytest.mark.parametrize(
    "admission",
    [
        Admission(Verdict.LET_IN, KeyRecord("1", "name", "tenant"), requests=LIMITED),
        Admission(Verdict.LET_IN, KeyRecord("1", "name", "tenant"), tokens=LIMITED),
        Admission(Verdict.NO_REQUEST_LEFT, KeyRecord("1", "name", "tenant"), requests=LIMITED),
        Admission(Verdict.ENDED, KeyRecord("1", "name", "tenant")),
        Admission(Verdict.UNKNOWN),
    ],
    ids=["requests", "tokens", "none left", "ended", "unknown"],
)
async def test_what_is_counted_or_refused_is_asked_for_each_time(stage: Stage, admission: Admission) -> None:
    stage.redis.admission = admission
    assert await stage.ask(KEY, KEY, KEY) == 3


async def test_when_a_key_ends_is_for_redis_to_say(stage: Stage) -> None:
    ends_ms = stage.clock.now_ms() + EXPIRES_SOON_MS + 1_000
    stage.redis.admission = Admission(Verdict.LET_IN, KeyRecord("1", "name", "tenant", expires_ms=ends_ms))
    assert await stage.ask(KEY, KEY) == 1
    await stage.hear(True)
    stage.clock.seconds += 1
    assert await stage.ask(KEY, KEY, KEY) == 3


async def test_no_more_than_so_many_are_remembered(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_cache, "MOST_KEYS", 3)
    secrets = [f"sf-{number}" for number in range(10)]
    assert await stage.ask(*secrets) == 10
    assert len(stage.keys._entries) <= 3
    assert await stage.ask(secrets[-1]) == 0
