"""configure.lua and heartbeat.lua: the queue's configuration, written once by workers, changed by an operator."""

from __future__ import annotations

import pytest

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.queue_configuration import OF_CLIENTS, PROTOCOL, encode
from tests.scripts.harness import Queue
from tests.scripts.mutants import fails_without


@fails_without("configure: a worker overwrites nothing", "set and 'HSET' or 'HSETNX',", "'HSET',")
async def test_a_worker_writes_what_is_missing_and_overwrites_nothing(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.meta, "lease_ms", "7000", "of_a_later_release", "x")
    own = {name: value for name, value in encode(queue.broker.limits).items() if name not in OF_CLIENTS}
    expected = {PROTOCOL: "1", **own, "lease_ms": "7000", "of_a_later_release": "x"}
    assert await queue.broker.agree() == expected
    assert await queue.broker.configuration() == expected
    assert set(await queue.dump()) == {"meta"}, "nobody is told of what nobody changed"


@fails_without("configure: workers are told of a change")
async def test_an_operator_changes_values_and_all_workers_are_told(queue: Queue) -> None:
    before = await queue.broker.agree()
    place = await queue.broker.last_notice()
    assert await queue.broker.set_configuration({"lease_ms": "7000"}) == {**before, "lease_ms": "7000"}
    assert (await queue.broker.read_notices(place, 1_000)).configured
    assert await queue.broker.heartbeat("w1", {}) == {**before, "lease_ms": "7000"}


@fails_without("configure: a full server too")
async def test_a_full_redis_takes_the_configuration_too(queue: Queue) -> None:
    async with queue.full_memory():
        await queue.broker.agree()
        await queue.broker.set_configuration({"lease_ms": "7000"})
    assert (await queue.broker.configuration())["lease_ms"] == "7000"


@fails_without("configure: a wrong type is noticed before a write", argument="meta")
@fails_without(
    "heartbeat: a configuration that cannot be read holds up no heartbeat",
    "return call_if_typed('HGETALL', KEYS[SHARED + 1])",
    "return call('HGETALL', KEYS[SHARED + 1])",
    argument="meta",
)
@pytest.mark.parametrize("name", ["meta", "cancels"])
async def test_a_key_of_another_type_is_noticed_before_anything_is_written(queue: Queue, name: str) -> None:
    await queue.command("SET", queue.keys.base + name, "x")
    before = await queue.dump()
    with pytest.raises(BrokerUnavailable, match="another type"):
        await queue.broker.set_configuration({"lease_ms": "7000"})
    assert await queue.dump() == before
    assert await queue.broker.heartbeat("w1", {}) == (None if name == "meta" else {}), "as before"
