"""An unknown field of an entry is named in its result, however it ends; fields of others pass in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from streamfleet.common.broker.types import Reclaimed
from streamfleet.common.envelope import KNOWN_FIELDS, unknown_fields
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.test_worker_outcomes import remote
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually, eventually_blocking

LATE = 1_700_000_000_000
NAMES = sorted(name.decode() for name in KNOWN_FIELDS)


def mistaken(name: str) -> Iterator[str]:
    """One mistake of each kind."""
    middle = len(name) // 2
    yield name[:middle] + name[middle + 1 :]
    yield name[:middle] + "x" + name[middle:]
    yield name[:middle] + "x" + name[middle + 1 :]
    yield name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]
    yield name.capitalize()
    yield name.upper()
    yield name + " "


MISTAKES = [(wrong, name) for name in NAMES for wrong in mistaken(name) if wrong not in NAMES]
OTHERS = [
    "source",
    "x-team",
    "user",
    "customer",
    "created_at",
    "lang",
    "_trace",
    "deadline_source",
    "metadata",
    "dedlin",
    "é",
]


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Adds entries by XADD on a server with a worker; returns their results."""
    with RedisServer(newest(find_servers())) as server:
        worker = WorkerProcess(server.url, tmp_path_factory.mktemp("unknown"), "w1")
        try:
            worker.ready_blocking()
            with redis.Redis.from_url(server.url, decode_responses=True) as client:

                def results_of(*entries: dict[str, Any]) -> list[dict[str, str]]:
                    keys = [client.xadd("{default}:lane:normal", fields) for fields in entries]
                    names = [f"{{default}}:result:normal:{key}" for key in keys]
                    eventually_blocking(lambda: client.exists(*names) == len(names), 20, "all have ended")
                    return [client.hgetall(name) for name in names]

                yield results_of
        finally:
            worker.destroy()


@pytest.mark.parametrize("late", [False, True])  # a worker ends it, or a script
def test_a_mistake_of_any_known_name_is_named(lane: Any, late: bool) -> None:
    more = {"deadline": str(LATE)} if late else {}
    names = [(wrong, meant) for wrong, meant in MISTAKES if meant != "body" or not late]
    results = lane(*({"body": json.dumps(chat()), **more, wrong: "1"} for wrong, _ in names))
    for (wrong, meant), fields in zip(names, results, strict=True):
        assert fields["status"] == ("expired" if late else "succeeded")
        (warning,) = json.loads(fields["warnings"])
        assert f"'{wrong}'" in warning
        assert f"'{meant}'" in warning


@pytest.mark.parametrize("late", [False, True])
def test_what_belongs_elsewhere_is_named_and_fields_of_others_pass_in_silence(lane: Any, late: bool) -> None:
    more = {"deadline": str(LATE)} if late else {}
    entry = {"body": json.dumps(chat()), **more}
    (odd, silent) = lane(
        {**entry, "priority": "9", "modle": "m", "source": "web"}, {**entry, **dict.fromkeys(OTHERS, "1")}
    )
    assert json.loads(odd["warnings"]) == [
        "field 'modle' is unknown and was passed over; the model belongs into the body",
        "field 'priority' is unknown and was passed over; the lane is the priority",
    ]
    assert "warnings" not in silent


@pytest.mark.parametrize("late", [False, True])
def test_scripts_and_workers_say_the_same(lane: Any, late: bool) -> None:
    odd = [
        "Priority",
        "MODEL",
        "id\x00",
        "ttll",
        "tlt",
        "dead line",
        "strem",
        "xid",
        "body2",
        "reply\x7f",
        "ttl'",
        'ttl"',
        "tt/l",
    ]
    more = {"deadline": str(LATE)} if late else {}
    (fields,) = lane({"body": json.dumps(chat()), **more, **dict.fromkeys(odd, "1")})
    assert json.loads(fields["warnings"]) == [text for _, text in unknown_fields([name.encode() for name in odd])]
    assert len(json.loads(fields["warnings"])) == 8


async def one(fleet: Fleet, way: str) -> str:
    """A request that ends in this way."""
    odd = {"priority": "9"}
    slow, deadline = chat(60), str(LATE)
    if way == "dead":
        busy = HttpEngine(lambda _id, _n: Reply(503, {"error": "busy"}))
        async with busy.serving() as engine, worker_inside(fleet.url, remote(engine), max_deliveries=1):
            request = await fleet.add(**odd)
            await fleet.result(request)
        return request
    early = {"cancelled, found by no script": {}, "expired before a worker came": {"deadline": deadline}}
    request = await fleet.add(**odd, **early[way]) if way in early else ""
    if way == "cancelled, found by no script":
        assert await fleet.broker.cancel(request)
    async with worker_inside(fleet.url, small_engine(1), prefetch=0):
        if way == "cancelled while it ran":
            request = await fleet.add(body=slow, **odd)
            await fleet.runs({"w1": 1})
            assert await fleet.broker.cancel(request)
        elif way.startswith("expired while it waited"):
            await fleet.add("first", body=slow)
            await fleet.runs({"w1": 1})
            request = await fleet.add(ttl="300", **odd)
            await fleet.result(request)
            assert await fleet.broker.cancel("first")
        elif not request:
            fields = {
                "failed": {"stream": "2"},
                "too large": {"meta": "x" * 2_000_000},
                "expired while it ran": {"ttl": "300"},
            }
            request = await fleet.add(body=slow if "ran" in way else None, **odd, **fields.get(way, {}))
        await fleet.result(request)
        await fleet.settled()
    return request


WAYS = {
    "succeeded": "succeeded",
    "failed": "failed",
    "too large": "failed",
    "expired before a worker came": "expired",
    "expired while it waited": "expired",
    "expired while it ran": "expired",
    "cancelled, found by no script": "cancelled",
    "cancelled while it ran": "cancelled",
    "dead": "dead",
}


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_of_ending_names_it(fleet: Fleet, way: str) -> None:
    request = await one(fleet, way)
    result = await fleet.result(request)
    assert result.status == WAYS[way]
    assert result.warnings == ("field 'priority' is unknown and was passed over; the lane is the priority",)


async def test_one_that_is_given_up_after_lost_workers_names_it(fleet: Fleet) -> None:
    request = await fleet.add(priority="9")
    await fleet.broker.pull("gone", 1)
    await eventually(lambda: _given_up(fleet), what="it is given up")
    assert len((await fleet.result(request)).warnings) == 1


async def _given_up(fleet: Fleet) -> bool:
    return await fleet.broker.reclaim(1, 1) == Reclaimed(0, 1, 0)


async def test_the_metric_names_what_was_meant_in_requests_that_the_worker_claimed(fleet: Fleet) -> None:
    worker = await fleet.worker("w1")
    dropped = await fleet.result(await fleet.add(deadline=str(LATE), deadine="1"))
    assert (dropped.status, len(dropped.warnings)) == ("expired", 1)
    await fleet.result(await fleet.add(deadine="1", Priority="1", source="1"))
    await fleet.settled()
    shown = worker.get("/metrics").text
    assert 'streamfleet_unknown_fields_total{meant="deadline"} 1.0' in shown
    assert 'streamfleet_unknown_fields_total{meant="priority"} 1.0' in shown
