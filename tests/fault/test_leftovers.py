"""The judge of what is left once all requests have ended: it looks at each key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from streamfleet.common.keys import EACH_LANE, ORIGINS, UNTIL, Keys
from tests.fault.leftovers import bounds, leftovers

KEYS = Keys("q")
ADD: dict[str, tuple[Any, ...]] = {
    "stream": ("XADD", "{key}", "*", "field", 1),
    "zset": ("ZADD", "{key}", 1, "{each}"),
    "hash": ("HSET", "{key}", "{each}", 1),
    "list": ("RPUSH", "{key}", "{each}"),
    "string": ("SET", "{key}", "{each}"),
}


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis.from_url(redis_url) as opened:
        yield opened


def test_each_key_of_which_something_stays_has_a_bound() -> None:
    assert bounds(1).keys() == {name for name, origin in ORIGINS.items() if origin.left not in ("", UNTIL)}


@pytest.mark.parametrize("name", ORIGINS)
async def test_what_holds_more_than_it_may_is_noticed(client: Any, name: str) -> None:
    known, origin, most = getattr(KEYS, name), ORIGINS[name], bounds(1).get(name, 0)
    key = known if isinstance(known, str) else known("low" if name in EACH_LANE else "x")
    await client.execute_command("SET", "{other}:odd", 1)

    async def wrong(items: range) -> dict[str, int]:
        async with client.pipeline() as pipe:
            for each in items:
                pipe.execute_command(*(str(word).format(key=key, each=each) for word in ADD[origin.type]))
            await pipe.execute()
        (found,) = await leftovers(client, KEYS, 1)
        assert (found.kind, found.keys) == (name, 1)
        return dict(found.wrong)

    if origin.left == UNTIL:
        assert await wrong(range(1)) == {key: 1}
        await client.pexpire(key, 60_000)
        assert await wrong(range(0)) == {}
    else:
        assert most == 0 or await wrong(range(most)) == {}
        assert origin.type == "string" or await wrong(range(most, most + 1)) == {key: most + 1}


async def test_a_key_that_nobody_knows_is_noticed(client: Any) -> None:
    await client.set("{q}:odd", 1)
    (each,) = await leftovers(client, KEYS, 1)
    assert (each.kind, each.wrong) == ("", {"{q}:odd": 1})
