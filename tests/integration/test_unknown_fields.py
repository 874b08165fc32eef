"""An unknown field of an entry is named in the result that a worker writes; fields of others pass in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from streamfleet.common.envelope import KNOWN_FIELDS, unknown_fields
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

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
    with (
        RedisServer(newest(find_servers())) as server,
        WorkerProcess(server.url, tmp_path_factory.mktemp("unknown"), "w1") as worker,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):

        def results_of(*entries: dict[str, Any]) -> list[dict[str, str]]:
            keys = [client.xadd("{default}:lane:normal", fields) for fields in entries]
            names = [f"{{default}}:result:normal:{key}" for key in keys]
            eventually_blocking(lambda: client.exists(*names) == len(names), 20, "all have ended")
            return [client.hgetall(name) for name in names]

        worker.ready_blocking()
        yield results_of


def test_a_mistake_of_any_known_name_is_named(lane: Any) -> None:
    results = lane(*({"body": json.dumps(chat()), wrong: "1"} for wrong, _ in MISTAKES))
    for (wrong, meant), fields in zip(MISTAKES, results, strict=True):
        assert fields["status"] == "succeeded"
        (warning,) = json.loads(fields["warnings"])
        assert f"'{wrong}'" in warning
        assert f"'{meant}'" in warning


def test_what_belongs_elsewhere_is_named_and_fields_of_others_pass_in_silence(lane: Any) -> None:
    entry = {"body": json.dumps(chat())}
    (odd, silent) = lane(
        {**entry, "priority": "9", "modle": "m", "source": "web"}, {**entry, **dict.fromkeys(OTHERS, "1")}
    )
    assert json.loads(odd["warnings"]) == [
        "field 'modle' is unknown and was passed over; the model belongs into the body",
        "field 'priority' is unknown and was passed over; the lane is the priority",
    ]
    assert "warnings" not in silent


def test_the_first_eight_odd_names_are_named(lane: Any) -> None:
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
    (fields,) = lane({"body": json.dumps(chat()), **dict.fromkeys(odd, "1")})
    assert json.loads(fields["warnings"]) == [text for _, text in unknown_fields([name.encode() for name in odd])]
    assert len(json.loads(fields["warnings"])) == 8


WAYS: dict[str, dict[str, str]] = {"succeeded": {}, "failed": {"stream": "2"}, "expired": {"ttl": "300"}}


@pytest.mark.parametrize("status", WAYS)
async def test_every_result_of_a_worker_names_it(fleet: Fleet, status: str) -> None:
    async with worker_inside(fleet.url, small_engine(1), prefetch=0):
        body = chat(60) if status == "expired" else None
        result = await fleet.result(await fleet.add(body=body, priority="9", **WAYS[status]))
    assert result.status == status
    assert result.warnings == ("field 'priority' is unknown and was passed over; the lane is the priority",)


async def test_the_metric_names_what_was_meant_in_requests_that_the_worker_claimed(fleet: Fleet) -> None:
    worker = await fleet.worker("w1")
    dropped = await fleet.result(await fleet.add(deadline=str(LATE), deadine="1"))
    assert (dropped.status, dropped.warnings) == ("expired", ())
    await fleet.result(await fleet.add(deadine="1", Priority="1", source="1"))
    await fleet.settled()
    shown = worker.get("/metrics").text
    assert 'streamfleet_unknown_fields_total{meant="deadline"} 1.0' in shown
    assert 'streamfleet_unknown_fields_total{meant="priority"} 1.0' in shown
