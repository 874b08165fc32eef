"""configure.lua and heartbeat.lua: the queue's configuration, written once by workers, changed by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from unittest import mock

import pytest
import redis.exceptions

from streamfleet.common import scripts
from streamfleet.common.connection.functions import digest_of
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.common.keys import Keys
from streamfleet.common.queue_configuration import OF_CLIENTS, PROTOCOL, encode
from tests.scripts.harness import NOW, Queue


async def test_a_worker_writes_what_is_missing_and_overwrites_nothing(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.meta, "lease_ms", "7000", "of_a_later_release", "x")
    own = {name: value for name, value in encode(queue.broker.limits).items() if name not in OF_CLIENTS}
    expected = {PROTOCOL: "1", **own, "lease_ms": "7000", "of_a_later_release": "x"}
    assert await queue.broker.agree() == expected
    assert await queue.broker.configuration() == expected
    assert set(await queue.dump()) == {"meta"}, "nobody is told of what nobody changed"


async def test_an_operator_changes_values_and_all_workers_are_told(queue: Queue) -> None:
    before = await queue.broker.agree()
    place = await queue.broker.last_notice()
    assert await queue.broker.set_configuration({"lease_ms": "7000"}) == {**before, "lease_ms": "7000"}
    assert (await queue.broker.read_notices(place, 1_000)).configured
    assert await queue.broker.heartbeat("w1", {}) == {**before, "lease_ms": "7000"}


async def test_a_full_redis_takes_the_configuration_too(queue: Queue) -> None:
    async with queue.full_memory():
        await queue.broker.agree()
        await queue.broker.set_configuration({"lease_ms": "7000"})
    assert (await queue.broker.configuration())["lease_ms"] == "7000"


@pytest.mark.parametrize("name", ["meta", "cancels"])
async def test_a_key_of_another_type_is_noticed_before_anything_is_written(queue: Queue, name: str) -> None:
    await queue.command("SET", queue.keys.base + name, "x")
    before = await queue.dump()
    with pytest.raises(BrokerUnavailable, match="another type"):
        await queue.broker.set_configuration({"lease_ms": "7000"})
    assert await queue.dump() == before
    assert await queue.broker.heartbeat("w1", {}) == (None if name == "meta" else {}), "as before"


async def functions(queue: Queue) -> Mapping[str, str]:
    """Names of the functions on a server; none on one that has none."""
    try:
        await queue.connection.load_functions()
    except SettingsError:  # Redis 6.2
        return {}
    return scripts.library().functions


async def test_nobody_tells_a_configuration_or_keys_under_the_digest_of_others(queue: Queue) -> None:
    if not (names := await functions(queue)):
        return
    keys, other = tuple(queue.keys.shared()), Keys("other")
    honest, forged = (queue.limits.encoded(base) for base in (queue.keys.base, other.base))
    for text, told in ((forged, keys), (honest, other.shared())):
        with pytest.raises(redis.exceptions.ResponseError, match="not its digest"):
            await queue.command("FCALL", names["pull"], len(told), *told, digest_of(honest, keys) + text)
    await queue.add("high", "1000-0")
    assert len((await queue.pull()).claims) == 1


async def test_a_function_holds_a_bounded_number_of_configurations(queue: Queue) -> None:
    if not (names := await functions(queue)):
        return
    keys, refusals = tuple(queue.keys.shared()), list[str]()
    told = [queue.at(NOW + later) for later in range(260)]
    for each in told:
        await each.pull()
    with mock.patch.object(queue.connection, "script_once", wraps=queue.connection.script_once) as sent:
        await queue.pull(wanted=0)
    _, _, (_, *words) = sent.await_args_list[0].args
    for each in told:
        digest = digest_of(each.limits.encoded(queue.keys.base), keys)
        try:
            await queue.command("FCALL", names["pull"], 1, keys[0], digest, *words)
        except redis.exceptions.ResponseError as error:
            refusals.append(str(error)[:7])
    assert refusals == ["NOTTOLD"] * (len(told) - 256)
    await queue.add("high", "1000-0")
    assert len((await told[0].pull()).claims) == 1
