"""gateway_admit.lua and the scripts of reservations: who is let in, and what is left to them; all gateways share it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.connection import Connection
from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.api_keys import GatewayNames, KeyRecord, digest_of, id_of, make_record
from streamfleet.gateway.broker.api_keys import Admission, GatewayBroker, Held, ReserveCode, Reserved, Verdict
from tests.scripts.mutants import fails_without
from tests.waiting import eventually

NOW = 1_790_000_000_000
SECRET = "sf-" + "a" * 43
DIGEST = digest_of(SECRET)
ID = id_of(DIGEST)
MINUTE = 60_000


class Keys:
    """The gateways' part of Redis, with a clock that stands still."""

    def __init__(self, url: str) -> None:
        self.now_ms = NOW
        self.url = url
        self.opened: list[GatewayBroker] = []
        self.broker = self.another()

    def another(self, requests: int = 0, tokens: int = 0) -> GatewayBroker:
        """Of another gateway, with limits of its own for keys without."""
        broker = GatewayBroker(Connection(self.url), GatewayNames(), requests, tokens, lambda: self.now_ms)
        self.opened.append(broker)
        return broker

    async def add(self, requests: int | None = None, tokens: int | None = None, **options: Any) -> KeyRecord:
        record = make_record(DIGEST, "name", "tenant", limits=(requests, tokens), **options)
        await self.broker.add(DIGEST, record)
        return record


@pytest.fixture
async def keys(any_redis_url: str) -> AsyncIterator[Keys]:
    keys = Keys(any_redis_url)
    yield keys
    for broker in keys.opened:
        await broker.close()


@contextlib.asynccontextmanager
async def emptied(url: str) -> AsyncIterator[Keys]:
    """The same for a test that also runs without a guard, with no fixtures but this URL."""
    keys = Keys(url)
    await keys.broker.connection.command("FLUSHALL")
    try:
        yield keys
    finally:
        await keys.broker.close()


async def test_who_has_a_key_is_let_in_and_nobody_else(keys: Keys) -> None:
    assert await keys.broker.admit(SECRET) == Admission(Verdict.UNKNOWN)
    record = await keys.add()
    found = await keys.broker.admit(SECRET)
    assert (found.verdict, found.record) == (Verdict.LET_IN, record)
    assert (found.requests.limit, found.tokens.limit) == (0, 0)
    assert await keys.broker.admit("sf-" + "b" * 43) == Admission(Verdict.UNKNOWN)
    assert await keys.broker.revoke(ID)
    assert await keys.broker.admit(SECRET) == Admission(Verdict.UNKNOWN)
    assert not await keys.broker.revoke(ID)


async def test_gateways_are_told_of_keys_that_are_changed_or_revoked(
    keys: Keys, any_raw_redis: redis.asyncio.Redis
) -> None:
    await keys.add()
    assert await keys.broker.changes("0-0", 1) == ("0-0", False), "nobody remembers what was not there"
    await keys.add(requests=1)
    changed, told = await keys.broker.changes("0-0", 1)
    assert told
    assert await keys.broker.changes(changed, 1) == (changed, False)
    waiting = asyncio.create_task(keys.another().changes(changed, 5_000))
    await eventually(lambda: blocked(any_raw_redis))
    await keys.broker.revoke(ID)
    revoked, told = await waiting
    assert told
    assert ID not in str(await any_raw_redis.xrange("{gateway}/key_changes")), "whose they are, is nobody's business"
    assert await keys.broker.changes(revoked, 1) == (revoked, False)


async def test_a_key_is_revoked_though_nobody_can_be_told(keys: Keys, any_raw_redis: redis.asyncio.Redis) -> None:
    await keys.add()
    await any_raw_redis.config_set("maxmemory", 1)
    try:
        assert await keys.broker.revoke(ID)
    finally:
        await any_raw_redis.config_set("maxmemory", 0)
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.UNKNOWN


async def test_keys_are_changed_and_revoked_though_another_type_stands_where_that_is_told(
    keys: Keys, any_raw_redis: redis.asyncio.Redis
) -> None:
    await any_raw_redis.set("{gateway}/key_changes", "by hand")
    await keys.add()
    await keys.add(requests=1)
    assert (await keys.broker.admit(SECRET)).requests.limit == 1
    assert await keys.broker.revoke(ID)
    assert not await any_raw_redis.exists(f"{{gateway}}/left:{ID}")


async def test_a_key_is_revoked_by_an_operator_with_the_rules_of_an_older_release(
    keys: Keys, any_raw_redis: redis.asyncio.Redis
) -> None:
    await keys.add()
    await any_raw_redis.execute_command("ACL", "SETUSER", "old", "on", ">secret", "~*", "+@all", "-xadd")  # type: ignore[no-untyped-call]
    keys.url = keys.url.replace("redis://", "redis://old:secret@")
    try:
        assert await keys.another().revoke(ID)
    finally:
        await any_raw_redis.execute_command("ACL", "DELUSER", "old")  # type: ignore[no-untyped-call]
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.UNKNOWN


async def blocked(server: redis.asyncio.Redis) -> bool:
    """True if some client waits in a blocking read."""
    return int((await server.info("clients"))["blocked_clients"]) > 0


async def test_a_key_ends(keys: Keys) -> None:
    await keys.add(created_ms=NOW - 1, expires_ms=NOW + 1)
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.LET_IN
    keys.now_ms += 1
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.ENDED


async def test_requests_of_all_gateways_come_out_of_one_allowance(keys: Keys) -> None:
    await keys.add(requests=3)
    other = keys.another()
    found = [await broker.admit(SECRET) for broker in (keys.broker, other, keys.broker, other)]
    assert [each.verdict for each in found] == [Verdict.LET_IN] * 3 + [Verdict.NO_REQUEST_LEFT]
    assert [each.requests.left for each in found] == [2, 1, 0, 0]
    assert found[2].requests.full_ms == MINUTE
    assert found[3].wait_ms == MINUTE // 3
    keys.now_ms += found[3].wait_ms
    assert (await other.admit(SECRET)).verdict is Verdict.LET_IN
    assert (await other.admit(SECRET)).verdict is Verdict.NO_REQUEST_LEFT
    keys.now_ms += 10 * MINUTE
    assert (await other.admit(SECRET)).requests.left == 2, "more than a minute's worth is never there"


async def test_what_is_not_counted_takes_nothing(keys: Keys) -> None:
    await keys.add(requests=1)
    for _ in range(3):
        assert (await keys.broker.admit(SECRET, 0)).requests.left == 1
    assert (await keys.broker.admit(SECRET)).requests.left == 0
    assert (await keys.broker.admit(SECRET, 0)).verdict is Verdict.LET_IN


async def test_a_key_without_limits_of_its_own_has_the_gateways(keys: Keys) -> None:
    await keys.add(tokens=0)
    found = await keys.another(requests=2, tokens=500).admit(SECRET)
    assert (found.requests.limit, found.requests.left) == (2, 1)
    assert found.tokens.limit == 0, "0 is a limit of its own: any number"


HELD = Held("default", "r-1")
NAMED = Held("default", "r-2", named=True)
LOOK_MS, REMEMBER_MS = 30_000, 86_400_000


async def reserve(keys: Keys, tokens: int, held: Held = HELD, replaces: str = "", least: int | None = None) -> Reserved:
    return await keys.broker.reserve(ID, 100, tokens, held, LOOK_MS, replaces=replaces, least=least)


async def settle(keys: Keys, reserved: Reserved, used: int | None, held: Held = HELD) -> bool:
    return await keys.broker.settle(ID, held, reserved.serial, used, REMEMBER_MS)


async def left(keys: Keys) -> int:
    return (await keys.broker.admit(SECRET)).tokens.left


@pytest.mark.every_release
async def test_tokens_are_reserved_and_settled_once(keys: Keys, any_raw_redis: redis.asyncio.Redis) -> None:
    await keys.add(tokens=100)
    assert await left(keys) == 100
    taken = await reserve(keys, 80)
    assert (taken.code, taken.tokens.left) == (ReserveCode.TAKEN, 20)
    short = await reserve(keys, 30, NAMED)
    assert (short.code, short.tokens.left, short.wait_ms) == (ReserveCode.TOO_FEW, 20, 6_000)
    assert await settle(keys, taken, 10)
    assert await left(keys) == 90
    assert not await settle(keys, taken, 10)
    assert await left(keys) == 90
    assert set(await any_raw_redis.keys()) == {f"{{gateway}}/left:{ID}", "{gateway}/keys"}, "nothing stays"


async def test_the_same_request_is_reserved_for_once(keys: Keys) -> None:
    await keys.add(tokens=100)
    taken = await reserve(keys, 80, NAMED)
    assert (await reserve(keys, 80, NAMED)).code is ReserveCode.TAKEN_BEFORE
    assert await left(keys) == 20
    assert not await settle(keys, taken, None, NAMED), "the other sender's request may be in its queue"
    assert await left(keys) == 20
    assert await settle(keys, taken, None, NAMED)
    assert await left(keys) == 100


@fails_without("settle: what is settled is bounded by key")
@fails_without("settle: what was sent again is no settled one", "and redis.call('HMGET', key, 'used')[1] then", "then")
async def test_what_is_remembered_as_settled_is_bounded_by_key(redis_url: str) -> None:
    async with emptied(redis_url) as keys:
        await keys.add(tokens=100)
        command, settled = keys.broker.connection.command, f"{{gateway}}/settled:{ID}"
        for name in ("sent-again", "oldest"):
            held = replace(NAMED, id=name)
            await settle(keys, await reserve(keys, 1, held), 1, held)
        await command("DEL", "{gateway}/reserved:default/sent-again")
        await reserve(keys, 1, replace(NAMED, id="sent-again"))
        await command("RPUSH", settled, *(f"default/more-{number}" for number in range(99_998)))
        for name in ("next", "last"):
            assert await command("EXISTS", "{gateway}/reserved:default/oldest")
            held = replace(NAMED, id=name)
            await settle(keys, await reserve(keys, 1, held), 1, held)
        assert await command("LLEN", settled) == 100_000
        assert 0 < await command("PTTL", settled) <= REMEMBER_MS
        assert not await command("EXISTS", "{gateway}/reserved:default/oldest")
        assert await command("EXISTS", "{gateway}/reserved:default/sent-again"), "it is no settled one any more"
        assert await command("EXISTS", "{gateway}/reserved:default/last")


async def test_a_named_request_is_remembered_as_settled(keys: Keys, any_raw_redis: redis.asyncio.Redis) -> None:
    await keys.add(tokens=100)
    first = await reserve(keys, 50, NAMED)
    await settle(keys, first, 40, NAMED)
    again = await reserve(keys, 50, NAMED)
    assert (again.code, again.serial) == (ReserveCode.SETTLED, first.serial)
    assert await left(keys) == 60
    assert not await settle(keys, first, 40, NAMED)
    assert 0 < await any_raw_redis.pttl("{gateway}/reserved:default/r-2") <= REMEMBER_MS
    assert (await reserve(keys, 50, NAMED, "another")).code is ReserveCode.SETTLED, "another gateway was first"
    assert (await reserve(keys, 70, NAMED, first.serial)).code is ReserveCode.TOO_FEW
    second = await reserve(keys, 50, NAMED, first.serial)
    assert second.code is ReserveCode.TAKEN, "the name has a new request"
    assert await left(keys) == 10
    assert not await settle(keys, first, 40, NAMED), "that was another request"
    assert await settle(keys, second, 5, NAMED)
    assert await left(keys) == 55


@fails_without("gateway_reserve: of a request without a limit, no more than is left")
async def test_what_may_use_more_than_is_left_takes_all_of_it(redis_url: str) -> None:
    async with emptied(redis_url) as keys:
        await takes_all(keys)


async def takes_all(keys: Keys) -> None:
    await keys.add(tokens=100)
    first = await reserve(keys, 8_000, NAMED, least=10)
    assert (first.code, first.taken, first.tokens.left) == (ReserveCode.TAKEN, 100, 0)
    again = await reserve(keys, 8_000, NAMED, least=10)
    assert (again.code, again.taken) == (ReserveCode.TAKEN_BEFORE, 100)
    short = await reserve(keys, 8_000, least=10)
    assert (short.code, short.wait_ms) == (ReserveCode.TOO_FEW, 6_000), "one at a time"
    await settle(keys, first, 60, NAMED)
    second = await reserve(keys, 8_000, least=10)
    assert (second.code, second.taken) == (ReserveCode.TAKEN, 40), "what the first did not use"
    await settle(keys, second, 500)
    assert await left(keys) == -460


@fails_without(
    "bucket: a debt is not forgotten before it has filled up",
    "math.max(KEPT_MS, until_ms(left, capacity, capacity))",
    "KEPT_MS",
)
async def test_a_debt_is_kept_until_it_has_filled_up(redis_url: str) -> None:
    """No request is counted meanwhile, so that none shortens its life."""
    async with emptied(redis_url) as keys:
        await keys.add(requests=50, tokens=100)
        await settle(keys, await reserve(keys, 1), 50_000)
        bucket = keys.broker.names.allowance(ID)
        assert 499 * MINUTE < await keys.broker.connection.command("PTTL", bucket) <= 500 * MINUTE
        keys.now_ms += 499 * MINUTE
        assert (await keys.broker.admit(SECRET)).verdict is Verdict.NO_TOKEN_LEFT
        assert (await reserve(keys, 1)).code is ReserveCode.TOO_FEW
        assert await keys.broker.connection.command("PTTL", bucket) > 499 * MINUTE
        keys.now_ms += MINUTE
        assert (await keys.broker.admit(SECRET)).verdict is Verdict.LET_IN


@pytest.mark.every_release
async def test_a_reservation_is_due_for_one_gateway_at_a_time(keys: Keys) -> None:
    await keys.add(tokens=100)
    held = Held("a/b", "r", prompts=2, prompt=4, guess=6)
    await reserve(keys, 7, held)
    assert await keys.broker.due(5, LOOK_MS) == []
    keys.now_ms += LOOK_MS
    (due,) = await keys.broker.due(5, LOOK_MS)
    assert (due.held, due.held.ids, due.owner, due.tokens) == (held, ["r-0", "r-1"], ID, 7)
    assert await keys.another().due(5, LOOK_MS) == []
    keys.now_ms += LOOK_MS
    assert len(await keys.broker.due(5, LOOK_MS)) == 1, "the other may have died"


async def test_who_used_more_than_was_there_waits_for_it(keys: Keys) -> None:
    await keys.add(requests=50, tokens=100)
    await settle(keys, await reserve(keys, 1), 250)
    found = await keys.broker.admit(SECRET)
    assert (found.verdict, found.tokens.left) == (Verdict.NO_TOKEN_LEFT, -150)
    assert found.requests.left == 50, "a request that was refused is not counted"
    assert found.wait_ms == 151 * MINUTE // 100
    keys.now_ms += found.wait_ms
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.LET_IN


async def test_an_allowance_is_gone_an_hour_after_its_last_use(keys: Keys, any_raw_redis: redis.asyncio.Redis) -> None:
    await keys.add(requests=3, tokens=9)
    await keys.broker.admit(SECRET)
    await settle(keys, await keys.broker.reserve(ID, 9, 2, HELD, LOOK_MS), 2)
    left = f"{{gateway}}/left:{ID}"
    assert 3_500_000 < await any_raw_redis.pttl(left) <= 3_600_000
    assert await any_raw_redis.hgetall(left) == {
        "requests": "2.000", "requests_ms": str(NOW), "tokens": "7.000", "tokens_ms": str(NOW),
    }  # fmt: skip
    assert set(await any_raw_redis.keys()) == {left, "{gateway}/keys"}
    assert SECRET not in str(await any_raw_redis.hgetall("{gateway}/keys"))
    await keys.broker.revoke(ID)
    assert await any_raw_redis.keys() == ["{gateway}/key_changes"]


@pytest.mark.parametrize("text", ["", "nonsense", "7", "[]", "{}", '{"name": 7}', "nan"])
async def test_a_record_written_by_hand_lets_nobody_in(
    keys: Keys, any_raw_redis: redis.asyncio.Redis, text: str
) -> None:
    await any_raw_redis.hset("{gateway}/keys", DIGEST, text)
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.UNKNOWN
    assert await keys.broker.records() == []


@pytest.mark.parametrize("odd", ["nan", "inf", "-inf", "x", "9" * 400])
async def test_an_allowance_written_by_hand_stops_nobody_for_ever(
    keys: Keys, any_raw_redis: redis.asyncio.Redis, odd: str
) -> None:
    await keys.add(requests=3, tokens=9)
    await any_raw_redis.hset(f"{{gateway}}/left:{ID}", mapping={"requests": odd, "requests_ms": odd, "tokens": odd})
    found = await keys.broker.admit(SECRET)
    assert found.requests.left <= 2
    await keys.broker.reserve(ID, 9, 1, HELD, LOOK_MS)
    await keys.broker.revoke(ID)
    await keys.add(requests=3, tokens=9)
    assert (await keys.broker.admit(SECRET)).verdict is Verdict.LET_IN


async def test_keys_are_listed_oldest_first(keys: Keys) -> None:
    for number in (2, 1):
        digest = digest_of(f"sf-{number}")
        await keys.broker.add(digest, make_record(digest, f"key {number}", "t", created_ms=NOW + number))
    assert [record.name for record in await keys.broker.records()] == ["key 1", "key 2"]


def test_a_record_has_what_the_script_reads() -> None:
    assert {"requests_per_minute", "tokens_per_minute", "expires_ms"} <= set(
        json.loads(KeyRecord("i", "n", "t").encoded())
    )


# -- weight and limit of the tenant ------------------------------------------------------------------------


@pytest.mark.every_release
async def test_a_key_names_weight_and_limit_of_its_tenant(keys: Keys) -> None:
    record = await keys.add()
    assert record.rule is None
    keys.now_ms += 5
    changed = await keys.broker.set_rule(record.id, 2.5, 7)
    assert changed == replace(record, weight=2.5, max_running=7, set_ms=NOW + 5)
    assert changed.rule == TenantRule(2.5, 7, record.id, NOW + 5)
    assert [row.record for row in (await keys.broker.admit(SECRET), await keys.another().admit(SECRET))] == [
        changed
    ] * 2
    assert await keys.broker.read([DIGEST, "0"]) == [changed, None]
    _, told = await keys.broker.changes("0-0", 1)
    assert told, "gateways hear of it"


async def test_a_key_that_is_changed_or_revoked_meanwhile_stays_so(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    record = await keys.add()
    now_ms = keys.broker.now_ms

    async def revoked_meanwhile() -> int:
        await keys.another().revoke(record.id)
        return await now_ms()

    monkeypatch.setattr(keys.broker, "now_ms", revoked_meanwhile)
    assert await keys.broker.set_rule(record.id, 2, None) is None
    assert await keys.broker.records() == []
    assert await keys.broker.set_rule(record.id, 2, None) is None


@pytest.mark.parametrize(
    ("weight", "max_running", "field"),
    [(0.0, None, "weight"), (float("nan"), None, "weight"), (1e7, 1, "weight"), (1.0, 0, "max_running")],
)
async def test_bad_values_are_refused_by_name_and_the_key_stays(
    keys: Keys, weight: float, max_running: int | None, field: str
) -> None:
    record = await keys.add()
    with pytest.raises(InvalidRequest) as caught:
        await keys.broker.set_rule(record.id, weight, max_running)
    assert caught.value.param == field
    assert await keys.broker.records() == [record]
