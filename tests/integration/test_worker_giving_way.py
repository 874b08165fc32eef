"""Urgent requests on workers that are full of patient ones, and what becomes of those."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from streamfleet.producer import Client
from streamfleet.worker import giving_way
from tests.contract.subjects import simulated_server
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

LONG_S = 60.0


async def test_a_reserve_is_free_and_heard_of_by_plain_xadd(fleet: Fleet) -> None:
    engine = small_engine(5)
    async with worker_inside(fleet.url, engine, prefetch=0):
        for number in range(8):
            await fleet.add(f"patient-{number}", "low", chat(LONG_S))
        await fleet.runs({"w1": 4})
        await fleet.add("urgent", "critical", chat())
        assert (await fleet.result("urgent")).ok
        await fleet.add("usual", "normal", chat())
        assert (await fleet.result("usual")).ok
        assert await fleet.running() == {"w1": 4}


@pytest.mark.parametrize(
    ("running", "urgent"),
    [
        ("normal", "high"),
        ("low", "critical"),
        pytest.param("normal", "critical", marks=pytest.mark.long),
        pytest.param("low", "high", marks=pytest.mark.long),
    ],
)
async def test_by_default_urgent_requests_wait_for_no_other_lane(fleet: Fleet, running: str, urgent: str) -> None:
    """By plain XADD, also once what is kept free for them is taken; what gave way ends as if it had run alone."""
    async with worker_inside(fleet.url, small_engine(10)) as inside:
        ids = [await fleet.add(f"r-{number}", running, chat(3.0)) for number in range(20)]
        await fleet.runs({"w1": 9})
        held = inside.worker._in_flight.held()
        await eventually(lambda: all(request.asked and request.asked.made for request in held))
        first = [await fleet.add(f"urgent-{number}", urgent, chat(0.5)) for number in range(5)]
        assert all(result.ok for result in await fleet.results(first, 1.5))
        results = await fleet.results(ids, 20.0)
    assert all(result.ok and result.attempt == 1 for result in results)
    assert sum(int(result.fields.get("resumed_tokens", 0)) > 0 for result in results) >= 3
    await fleet.settled()


async def test_so_they_do_at_a_server_of_another_process(fleet: Fleet, repository: Path) -> None:
    """Its connection is closed, and the request begins anew."""
    async with simulated_server(repository) as (url, _):
        worker = await fleet.worker("w1", engine="openai", vllm_url=url, remote_slots=10)
        for number in range(20):
            await fleet.add(f"r-{number}", "normal", chat(15.0))
        await fleet.runs({"w1": 9})
        first = [await fleet.add(f"urgent-{number}", "critical", chat(1.0)) for number in range(5)]
        assert all(result.ok for result in await fleet.results(first, 3.0))
        interrupted = 'streamfleet_requests_interrupted_total{lane="normal"}'
        await eventually(lambda: worker.metric(interrupted) >= 4)


async def test_normal_work_takes_no_place_of_other_work(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(10)) as inside:
        for number in range(20):
            await fleet.add(f"low-{number}", "low", chat(LONG_S))
        await fleet.runs({"w1": 9})
        held = {request.lease.entry for request in inside.worker._in_flight.held()}
        for number in range(3):
            await fleet.add(f"normal-{number}", "normal", chat(LONG_S))
        await fleet.add("urgent", "critical", chat())
        assert (await fleet.result("urgent")).ok
        assert held <= {request.lease.entry for request in inside.worker._in_flight.held()}


@pytest.mark.parametrize(
    ("running", "comes", "lanes"),
    [
        ("low", "normal", "low"),
        ("low", "high", "low"),
        ("low", "critical", "normal,low"),
        ("normal", "high", "normal,low"),
    ],
)
async def test_one_that_may_interrupt_nobody_gets_the_next_free_slot(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, running: str, comes: str, lanes: str
) -> None:
    """Requests of patient lanes, beyond the slots, do not pass it. Of four slots none is kept free."""
    monkeypatch.setattr(giving_way, "MOST_INTERRUPTIONS", 0)
    async with worker_inside(fleet.url, small_engine(4), patient_lanes=lanes) as inside:
        for number in range(24):  # they end one by one
            await fleet.add(f"patient-{number}", running, chat(0.5 + 0.13 * (number % 4)))
        await eventually(lambda: len(inside.worker._in_flight) >= 4)
        await fleet.add("other", comes, chat(0.01))
        assert (await fleet.result("other")).ok
        assert await fleet.finished() <= 12, "the patient ones that waited before it came do so still"


@pytest.mark.parametrize("lanes", [("normal", "low"), ("low", "low"), ("normal", "normal")])
async def test_of_several_full_workers_one_with_room_for_a_request_gets_it(
    fleet: Fleet, lanes: tuple[str, str]
) -> None:
    running = 0

    async def all_run() -> bool:
        return sum((await fleet.running()).values()) == running

    async with contextlib.AsyncExitStack() as stack:
        for name, lane in zip(("w1", "w2"), lanes, strict=True):
            await stack.enter_async_context(worker_inside(fleet.url, small_engine(20), name, prefetch=0))
            most = 16 if lane == "low" else 19
            for number in range(most):
                await fleet.add(f"{name}-{number}", lane, chat(30.0))
            running += most
            await eventually(all_run)
        for number in range(3 * lanes.count("low")):
            await fleet.add(f"chat-{number}", "normal", chat(30.0))
            running += 1
            await eventually(all_run, 2.0, "a chat waits for nothing")
        urgent = [await fleet.add(f"urgent-{number}", "critical", chat(1.0)) for number in range(8)]
        assert all(result.ok for result in await fleet.results(urgent, 2.5))


async def test_a_patient_request_gives_way_and_goes_on_where_it_was(fleet: Fleet) -> None:
    """Its answer is that of an uninterrupted run, and nothing is generated twice."""
    async with worker_inside(fleet.url, small_engine(2), prefetch=0) as inside:
        await fleet.add("whole", "low", chat(1.0))
        whole = await fleet.result("whole")
        for number in range(2):
            await fleet.add(f"patient-{number}", "low", chat(1.0))
        await fleet.runs({"w1": 2})
        await eventually(
            lambda: all(request.asked and request.asked.made for request in inside.worker._in_flight.held())
        )
        await fleet.add("urgent", "critical", chat())
        assert (await fleet.result("urgent")).ok
        results = await fleet.results(["patient-0", "patient-1"])
    taken_over = [int(result.fields.get("resumed_tokens", 0)) for result in results]
    assert sorted(tokens > 0 for tokens in taken_over) == [False, True]
    for result in results:
        assert (result.attempt, result.text, result.usage) == (1, whole.text, whole.usage)
    await fleet.settled()


async def test_a_stream_goes_on_where_its_request_gave_way(fleet: Fleet) -> None:
    """Its reader sees no restart, and the text once."""
    async with Client(fleet.url) as client, worker_inside(fleet.url, small_engine(2), prefetch=0):
        handle = await client.enqueue(chat(1.0), lane="low", stream=True)
        texts: list[str] = []
        async for chunk in handle.stream():  # a restart would be raised
            texts.append(chunk.text)
            if len(texts) == 20:
                await fleet.add("beside", "low", chat(2.0), ttl="3000")  # its deadline protects it
                await fleet.runs({"w1": 2})
                await fleet.add("urgent", "critical", chat())
        result = await handle.result(10)
    assert int(result.fields["resumed_tokens"]) > 0
    assert "".join(texts) == result.text


async def test_what_a_worker_that_stops_has_begun_goes_on_elsewhere(fleet: Fleet) -> None:
    first = await fleet.worker("w1", engine="simulated", simulated_profile="fast")
    ids = [await fleet.add(f"r-{number}", "normal", chat(3.0)) for number in range(8)]
    await fleet.runs({"w1": 8})
    await fleet.worker("w2", engine="simulated", simulated_profile="fast")

    async def is_said_to_be_ready() -> bool:
        return ((await fleet.broker.worker("w2")) or {}).get("state") == "ready"

    await eventually(is_said_to_be_ready, 10.0)
    first.send(signal.SIGTERM)
    await fleet.runs({"w2": 8})
    results = await fleet.results(ids)
    assert all(result.ok and int(result.fields["resumed_tokens"]) > 0 for result in results)
    assert {result.worker for result in results} == {"w2"}
    assert await first.ended() == 0
    await fleet.settled()


async def test_a_worker_that_is_alone_finishes_what_it_has_begun(fleet: Fleet) -> None:
    only = await fleet.worker("w1", engine="simulated", simulated_profile="fast")
    ids = [await fleet.add(f"r-{number}", "normal", chat(0.5)) for number in range(4)]
    await fleet.runs({"w1": 4})
    only.send(signal.SIGTERM)
    results = await fleet.results(ids)
    assert {result.worker for result in results} == {"w1"}
    assert not [result for result in results if "resumed_tokens" in result.fields]
    assert await only.ended() == 0


async def test_a_patient_lane_gets_its_share_while_urgent_work_asks_for_more_than_there_is(fleet: Fleet) -> None:
    """In a slot of the reserve, because all others are taken; and it keeps that slot."""
    async with worker_inside(fleet.url, small_engine(5), prefetch=0) as inside:
        for number in range(10):
            await fleet.add(f"patient-{number}", "low", chat(LONG_S))
        await fleet.runs({"w1": 4})
        urgent = [await fleet.add(f"urgent-{number}", "critical", chat(0.1)) for number in range(100)]

        def by_share() -> set[str]:
            return {request.lease.request_id for request in inside.worker._in_flight.held() if request.owed}

        await eventually(lambda: len(by_share()) > 0, 20.0)
        began = by_share()
        assert all(result.ok for result in await fleet.results(urgent))
        assert began <= by_share()


async def test_of_a_killed_worker_a_checkpoints_tokens_are_lost_at_most(fleet: Fleet) -> None:
    first = await fleet.worker("w1", checkpoint_tokens=40, engine="simulated", simulated_profile="fast")
    ids = [await fleet.add(f"r-{number}", "normal", chat(3.0)) for number in range(8)]
    await fleet.runs({"w1": 8})

    async def outputs() -> list[str]:
        fields = await fleet.redis.hgetall("{default}:entries")
        return [f"{{default}}:kept:{value.split()[1]}" for name, value in fields.items() if "interrupted:" in name]

    async def are_kept() -> bool:
        states = [await fleet.redis.get(key) for key in await outputs()]
        return sum(state is not None and int(state.split()[0]) >= 60 for state in states) == 8

    await eventually(are_kept, 10.0)
    first.send(signal.SIGKILL)
    await first.ended()
    kept = await outputs()
    await fleet.worker("w2", engine="simulated", simulated_profile="fast")
    results = await fleet.results(ids)
    assert all(result.ok and int(result.fields["resumed_tokens"]) >= 60 for result in results)
    assert {(result.worker, result.attempt) for result in results} == {("w2", 2)}
    await fleet.settled()
    assert not await fleet.redis.exists(*kept)
    # A worker that is killed between a checkpoint and its renewal leaves it: it expires, and counts no more.
    assert all([await fleet.redis.ttl(key) > 0 async for key in fleet.redis.scan_iter("{default}:kept:*")])
    assert await fleet.redis.hget("{default}:entries", "kept_bytes") in (None, "0")


@pytest.mark.parametrize("value", [("SET", "junk"), ("HSET", "a", "b")])
async def test_a_request_begins_anew_if_hands_overwrite_what_was_kept(
    fleet: Fleet, value: tuple[str | int, ...]
) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine) as inside:
        await fleet.add("long", body=chat(1.0))
        await eventually(lambda: any(each.asked and each.asked.made >= 5 for each in inside.worker._in_flight.held()))
        engine.die()
        await inside.life
    (key,) = [key async for key in fleet.redis.scan_iter("{default}:kept:*")]
    await fleet.redis.delete(key)
    await fleet.redis.execute_command(value[0], key, *value[1:])
    async with worker_inside(fleet.url, small_engine(), name="w2") as inside:
        result = await fleet.result("long")
        assert not inside.life.done()
    assert (result.ok, result.worker, result.fields.get("resumed_tokens")) == (True, "w2", None)
    await fleet.settled()
    assert not await fleet.redis.exists(key)


@pytest.mark.parametrize(("tries", "goes_on"), [(3, True), (2, False)])
async def test_what_a_failed_engine_has_generated_is_kept_but_for_the_last_try(
    fleet: Fleet, tries: int, *, goes_on: bool
) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine, max_deliveries=tries) as inside:
        await fleet.add("long", body=chat(3.0))
        await eventually(lambda: any(each.asked and each.asked.made >= 50 for each in inside.worker._in_flight.held()))
        engine.die()
        await inside.life
    async with worker_inside(fleet.url, small_engine(), name="w2", max_deliveries=tries):
        result = await fleet.result("long")
    assert (result.ok, result.worker, result.attempt) == (True, "w2", 2)
    assert (int(result.fields.get("resumed_tokens", 0)) >= 50) == goes_on
    await fleet.settled()
