"""One request's summary on a real Redis of each release, at every place where it can be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamfleet.common.broker.types import Claim, Completion, Retry
from streamfleet.common.connection import Connection
from streamfleet.common.errors import openai_error
from streamfleet.common.keys import GROUP, NOBODY, Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane, Status
from streamfleet.operator import request_location
from streamfleet.operator.commands.trace_view import page
from streamfleet.operator.json_view import trace_object
from streamfleet.operator.request_location import Trace, trace
from streamfleet.operator.request_trace import TraceSummary, not_found, summarize
from streamfleet.producer.client import Client
from tests.broker import Broker

BODY = json.dumps({"prompt": "hi"})
ERROR = openai_error("it broke", "server_error", None, "broken")


@pytest.fixture
async def broker(any_redis_url: str) -> AsyncIterator[Broker]:
    opened = Broker(Connection(any_redis_url), Keys("default"), QueueLimits())
    yield opened
    await opened.close()


@pytest.fixture
async def client(any_redis_url: str) -> AsyncIterator[Client]:
    async with Client(any_redis_url) as opened:
        yield opened


async def add(broker: Broker, lane: Lane = Lane.HIGH, **fields: str) -> str:
    """A plain XADD; the entry's name."""
    flat = [part for pair in {"body": BODY, **fields}.items() for part in pair]
    stream_id = await broker.connection.command("XADD", broker.keys.lane(lane), "*", *flat)
    return f"{lane}:{stream_id.decode()}"


async def claim(broker: Broker, worker: str = "w1") -> Claim:
    (found,) = (await broker.pull(worker, 1)).claims
    return found


async def summary(broker: Broker, name: str) -> TraceSummary:
    found = await trace(broker, name)
    assert page(found)
    json.dumps(trace_object(found), allow_nan=False)
    return summarize(found)


async def value(broker: Broker, name: str) -> dict[str, Any]:
    return trace_object(await trace(broker, name))


async def test_before_a_worker_ever_came(broker: Broker, client: Client) -> None:
    await client.enqueue({"prompt": "hi"}, id="r-1", ttl_ms=60_000, lane=Lane.LOW)
    found = await value(broker, "r-1")
    assert (found["state"], found["lane"], found["recorded"]) == ("undelivered", "low", True)
    assert 50_000 < found["left_ms"] <= 60_000


async def test_ready_with_its_rank(broker: Broker, client: Client) -> None:
    for name, ttl_ms in (("late", 90_000), ("soon", 30_000), ("mid", 60_000)):
        await client.enqueue({"prompt": "hi"}, id=name, ttl_ms=ttl_ms, lane=Lane.HIGH)
    await broker.ensure_groups()
    await broker.pull("w1", 0)
    assert [(await value(broker, name))["requests_before"] for name in ("soon", "mid", "late")] == [0, 1, 2]
    assert (await summary(broker, "late")).text == "ready: 2 requests before it in its lane"
    await broker.pause([Lane.HIGH])
    assert "its lane is paused" in (await summary(broker, "late")).text


async def test_running_released_delayed_and_lost_with_workers(broker: Broker, client: Client) -> None:
    await client.enqueue({"prompt": "hi"}, id="r-1")
    held = await claim(broker, "w7")
    await broker.heartbeat("w7", {"state": "ready", "oldest_held_ms": await broker.now_ms()})
    running = await value(broker, "r-1")
    assert (running["state"], running["worker"], running["attempt"]) == ("running", "w7", 1)
    assert "for at most" in running["text"]
    await broker.retry_later("w7", [Retry(held.lease, 0, ERROR, worker_lost=True)], 5)
    again = await summary(broker, "r-1")
    assert (again.state, again.attempts.former, again.attempts.lost_with) == ("ready", 1, ("w7",))
    held = await claim(broker, "w8")
    await broker.retry_later("w8", [Retry(held.lease, 60_000, ERROR)], 5)
    delayed = await summary(broker, "r-1")
    assert (delayed.state, delayed.attempts.former, delayed.attempts.lost_with) == ("delayed", 2, ("w7",))
    assert "its next try is due in" in delayed.text


async def test_ended_with_its_letter_and_who_was_told(broker: Broker) -> None:
    entry = await add(broker, id="r-1", reply="me", tenant="acme")
    await broker.ensure_groups()
    held = await claim(broker)
    finished_ms = await broker.now_ms()
    timings: dict[str, bytes | str | int] = {"finished_ms": finished_ms, "total_ms": "12.5", "enqueued_ms": finished_ms}
    await broker.complete("w1", [Completion(held.lease, Status.FAILED, {"error": ERROR, **timings}, "me", ERROR)])
    found = await value(broker, "r-1")
    assert (found["state"], found["entry"], found["worker"], found["attempt"]) == ("failed", entry, "w1", 1)
    assert found["timings_ms"]["total_ms"] == 12.5
    assert found["notified"] == {"me": True}
    assert found["error"]["code"] == "broken"
    (letter,) = await broker.dead_letters()
    assert found["dead_letter"] == letter[0]
    assert 0 < found["kept_ms"] <= broker.limits.result_ttl_ms


async def test_expired_in_its_lane(broker: Broker) -> None:
    await add(broker, id="r-1", deadline="1")
    await broker.ensure_groups()
    assert (await broker.pull("w1", 1)).dropped == 1
    found = await value(broker, "r-1")
    assert (found["state"], found["worker"], found["dead_letter"] is None) == ("expired", None, False)


async def test_cancelled_while_it_stands_in_its_lane(broker: Broker, client: Client) -> None:
    entry = await add(broker, id="r-1")
    await broker.connection.command("SET", broker.keys.request("r-1"), "tells no entry")
    assert await client.cancel("r-1")
    assert "stands in its lane until its turn comes" in (await summary(broker, entry)).text


async def test_by_the_name_of_an_entry(broker: Broker) -> None:
    nameless, named = await add(broker), await add(broker, id="r-2")
    assert (await trace(broker, nameless)).request_id == nameless
    found = await trace(broker, named)
    assert (found.request_id, found.search) == ("r-2", None)
    await broker.ensure_groups()
    held = await claim(broker)
    await broker.complete("w1", [Completion(held.lease, Status.SUCCEEDED, {"response": "{}"})])
    assert (await summary(broker, nameless)).state == "succeeded"


async def test_an_entry_may_be_named_with_zeros_in_front_as_redis_takes_it(broker: Broker) -> None:
    entry = await add(broker)
    await broker.ensure_groups()
    await broker.pull("w1", 0)
    found = await trace(broker, entry.replace(":", ":00"))
    assert (found.request_id, found.entry, summarize(found).state) == (entry, entry, "ready")


async def test_the_search_for_a_dead_letter_is_bounded_in_bytes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ensure_groups()
    for number in range(3):
        await add(broker, id=f"r-{number}")
        held = await claim(broker)
        values = {"finished_ms": str(await broker.now_ms())}
        await broker.complete("w1", [Completion(held.lease, Status.FAILED, values, "", ERROR)])
    assert (await trace(broker, "r-2")).letter is not None
    monkeypatch.setattr(request_location, "MOST_BYTES", 10)
    assert (await trace(broker, "r-0")).letter is not None
    assert (await trace(broker, "r-2")).letter is None


async def test_one_on_its_way_to_a_worker(broker: Broker) -> None:
    entry = await add(broker)
    await broker.ensure_groups()
    await broker.connection.command(
        "XREADGROUP", "GROUP", GROUP, NOBODY, "COUNT", 1, "STREAMS", broker.keys.lane("high"), ">"
    )
    assert (await summary(broker, entry)).state == "handed_out"


async def test_an_id_without_a_record_is_looked_for_and_the_page_says_so(broker: Broker) -> None:
    await broker.ensure_groups()
    for number in range(70):
        await add(broker, id=f"r-{number}")
    assert (await claim(broker)).lease.request_id == "r-0"
    held = await trace(broker, "r-0")
    assert (summarize(held).state, held.search is not None and held.search.looked_at) == ("running", 1)
    waiting = await trace(broker, "r-69")
    assert waiting.place is not None
    assert waiting.search == request_location.Search(70, 70)
    assert "found by      looking through 70 entries" in page(waiting)


async def test_the_search_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_location, "MOST_ENTRIES", 5)
    for number in range(9):
        await add(broker, id=f"r-{number}")
    found = await trace(broker, "r-8")
    assert not found.known
    assert not_found(found) == (
        "request r-8: no client enqueued it, or it is long gone; nor is it among the 5 entries that were looked at of "
        "9; if it was put in by a plain XADD, ask by <lane>:<stream id>"
    )
    monkeypatch.setattr(request_location, "MOST_BYTES", 10)
    assert (await trace(broker, "r-8")).search == request_location.Search(1, 9)


@pytest.mark.parametrize("name", ["nobody", "high:5-5", "high:99999999999999999999-0", "", "a b", "\x1b[2J", "é"])
async def test_nobody_knows_it(broker: Broker, name: str) -> None:
    found = await trace(broker, name)
    assert not found.known
    assert "\x1b" not in not_found(found)


async def test_one_whose_entry_was_deleted_by_hand(broker: Broker, client: Client) -> None:
    await client.enqueue({"prompt": "hi"}, id="r-1", lane=Lane.HIGH)
    record = await broker.record("r-1")
    assert record is not None
    await broker.connection.command("XDEL", broker.keys.lane("high"), record.partition(":")[2])
    assert "somebody deleted it by hand" in not_found(await trace(broker, "r-1"))


async def test_odd_scores_and_tries_break_nothing(broker: Broker) -> None:
    entry = await add(broker, id="r-1", deadline="9" * 16)
    await broker.ensure_groups()
    await broker.pull("w1", 0)
    stream_id = entry.partition(":")[2]
    await broker.connection.command("ZADD", broker.keys.delayed, "inf", f"2|{stream_id}")
    await broker.connection.command("HSET", broker.keys.tries, f"2|{stream_id}", "\x1b[2J many")
    found = await trace(broker, "r-1")
    assert isinstance(found, Trace)
    assert "\x1b" not in page(found)


async def test_an_unknown_field_is_shown(broker: Broker) -> None:
    expected = ("field 'deadine' is unknown and was passed over; did you mean 'deadline'?",)
    name = await add(broker, deadine="1", source="web")
    assert (await summary(broker, name)).warnings == expected
    found = await trace(broker, name)
    assert "did you mean" in str(trace_object(found)["warnings"])
    assert "did you mean" in page(found)
