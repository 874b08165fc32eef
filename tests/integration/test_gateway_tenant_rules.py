"""Weight and limit of a tenant, as API keys name them: a gateway writes them to all queues that it serves."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import redis

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.keys import Keys
from streamfleet.common.replies import tenant_rule
from streamfleet.gateway.api_keys import KeyRecord
from streamfleet.gateway.gateway import AGAIN_S, TenantRules
from streamfleet.gateway.queues import Queues
from tests.clocks import HandClock
from tests.integration.cli_processes import streamfleet
from tests.integration.gateway_process import gateway_on
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

QUEUES = ("tenants-small", "tenants-large")
NAMED = KeyRecord("1f0a", "name", "acme", weight=3.0, max_running=16, set_ms=5)


def test_what_a_key_names_is_in_all_queues_and_follows_its_changes_without_a_request(tmp_path: Path) -> None:
    with RedisServer(newest(find_servers())) as server, redis.Redis.from_url(server.url) as rows:
        key = json.loads(_typed(server.url, "create", "acme", "--weight", "3", "--max-running", "16", "--json"))

        def shows(weight: float, max_running: int | None) -> bool:
            found = [rows.hget(Keys(name).tenants, "acme") for name in QUEUES]
            wanted = (weight, max_running, key["id"])
            return all(text is not None and tenant_rule(text.decode())[:3] == wanted for text in found)

        routes = ",".join(f"{name}={name}" for name in QUEUES)
        with gateway_on(server.url, tmp_path, gateway_models=routes) as gateway:
            with gateway.http_blocking(key["key"]) as http:
                assert http.get("/v1/models").status_code == 200
            eventually_blocking(lambda: shows(3, 16), 10, "they are written")
            said = _typed(server.url, "set", key["id"], "--weight", "0.5")
            assert said == "tenant acme: weight 0.5, no limit\n"
            eventually_blocking(lambda: shows(0.5, None), 10, "they follow")
        listed = json.loads(_typed(server.url, "list", "--json"))
        assert (listed["weight"], listed["max_running"]) == (0.5, None)
        assert "0.5" in _typed(server.url, "list")


def _typed(url: str, *words: str) -> str:
    done = streamfleet(url, "gateway", "keys", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bad_values_are_told_by_the_name_of_their_field(redis_url: str) -> None:
    made = streamfleet(redis_url, "gateway", "keys", "create", "acme", "--weight", "0")
    assert (made.returncode, made.stdout) == (2, "")
    assert "weight: must be 0.001 to 1000000" in made.stderr
    key_id = json.loads(_typed(redis_url, "create", "acme", "--json"))["id"]
    for options, field in (
        (["--max-running", "0"], "--max-running: "),
        ([], "--weight"),
        (["--weight", "nan"], "weight"),
    ):
        done = streamfleet(redis_url, "gateway", "keys", "set", key_id, *options)
        assert (done.returncode, field in done.stderr) == (2, True)
    unknown = streamfleet(redis_url, "gateway", "keys", "set", "0" * 16, "--weight", "2")
    assert (unknown.returncode, "there is no such key" in unknown.stderr) == (1, True)


class Written:
    """Stands for the queues, and for what runs in the background.

    Attributes:
        rules: what was written: queue, tenant, values.
        running: what runs in the background.
    """

    def __init__(self) -> None:
        self.rules: list[tuple[str, str, TenantRule]] = []
        self.running: list[Coroutine[Any, Any, object]] = []
        self.clock = HandClock()
        self.follower = TenantRules(QUEUES, cast("Queues", self), self.clock, lambda work, _: self.running.append(work))
        self._queue = ""

    async def client(self, queue: str) -> Written:
        self._queue = queue
        return self

    @property
    def broker(self) -> Written:
        return self

    async def set_tenant(self, tenant: str, rule: TenantRule) -> None:
        self.rules.append((self._queue, tenant, rule))

    async def follow(self, record: KeyRecord) -> list[str]:
        """The queues that are written to."""
        self.rules.clear()
        self.follower.follow(record)
        while self.running:
            await self.running.pop()
        return [queue for queue, *_ in self.rules]


async def test_values_are_written_once_a_minute_and_when_they_change() -> None:
    written = Written()
    assert await written.follow(NAMED) == [*QUEUES]
    assert written.rules[0][1:] == ("acme", TenantRule(3.0, 16, "1f0a", 5))
    assert await written.follow(NAMED) == []
    written.clock.seconds += AGAIN_S
    assert await written.follow(NAMED) == [*QUEUES], "a failover may have lost them"
    assert await written.follow(KeyRecord("1f0a", "name", "acme", max_running=2, set_ms=6)) == [*QUEUES]
    assert written.rules[0][2] == TenantRule(1.0, 2, "1f0a", 6)
    assert await written.follow(KeyRecord("2b", "name", "acme")) == [], "a key that names nothing changes nothing"
