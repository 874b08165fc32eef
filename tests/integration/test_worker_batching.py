"""Number of requests that a worker takes, and when it starts them: caps, windows, prefetch, room by KV cache."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any

import pytest

from streamfleet.common.broker.types import Pulled, Rooms
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.results import Result
from streamfleet.worker import pull
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU, Profile
from streamfleet.worker.pull import AT_ONCE, FIRST_AT_ONCE
from tests.constants import PREFETCH
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.worker_in_process import LittleMemory, small_engine, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually


async def test_batch_size_caps_what_runs_at_once(fleet: Fleet) -> None:
    async with HttpEngine(lambda _id, _n: Reply(after_s=0.05)).serving() as engine:
        worker = await fleet.worker("w1", batch_size=3, engine="openai", vllm_url=engine.url)
        assert all(result.ok for result in await fleet.results(await fleet.add_many(12)))
    assert engine.most == 3
    assert worker.metric('streamfleet_requests_claimed_total{lane="normal"}') == 12


async def test_a_worker_holds_its_slots_and_the_prefetch_and_no_more(fleet: Fleet) -> None:
    engine = small_engine(4)
    async with worker_inside(fleet.url, engine, prefetch=2):
        await fleet.add_many(20, chat(60))
        await fleet.runs({"w1": 6})
        await eventually(lambda: engine.running == 4, what="the slots are full")
        assert await fleet.running() == {"w1": 6}


async def test_a_large_engine_is_filled_a_part_at_a_time(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis serves nobody else while it gives out a part, and this worker has nothing to start meanwhile."""
    wished: list[int] = []
    original = WorkerBroker.pull

    async def listening(self: WorkerBroker, worker: str, wanted: Rooms | int, *words: Any, **more: Any) -> Pulled:
        if isinstance(wanted, Rooms):  # not the housekeeping's, which takes nothing
            wished.append(max(wanted.lanes))
        return await original(self, worker, wanted, *words, **more)

    monkeypatch.setattr(WorkerBroker, "pull", listening)
    slots = FIRST_AT_ONCE + 2 * AT_ONCE + 10
    profile = Profile("large, for tests", 0.0, ((1, 100), (slots, 100 * slots)), slots, 10_000_000, 8_192, jitter=0.0)
    await fleet.add_many(slots + 10, chat(60))
    async with worker_inside(fleet.url, SimulatedEngine(profile), prefetch=0, patient_lanes="none"):
        await fleet.runs({"w1": slots})
    assert wished[:4] == [FIRST_AT_ONCE, AT_ONCE, AT_ONCE, 10]


async def test_a_freed_slot_is_filled_at_once(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(2), prefetch=0):
        first, second = await fleet.add_many(2, chat(60))
        await fleet.runs({"w1": 2})
        third = await fleet.add(body=chat(0.01))
        await fleet.broker.cancel(first)
        assert (await fleet.result(third, within_s=10)).ok
        await fleet.broker.cancel(second)


async def test_what_was_guessed_too_large_makes_room_as_soon_as_it_is_known(fleet: Fleet) -> None:
    """By the guess for unseen requests one fits; by what they ask for, four do."""
    profile = Profile("little memory", 0.0, ((1, 10), (64, 640)), 64, kv_tokens=600, max_model_len=600, jitter=0.0)
    async with worker_inside(fleet.url, SimulatedEngine(profile), prefetch=0):
        await fleet.add_many(5, chat(1.0))  # 100 tokens, in 10 s here, and a few for the prompt
        await fleet.runs({"w1": 4}, within_s=8)


async def test_long_requests_after_short_ones_fill_no_kv_cache_beyond_its_size(fleet: Fleet) -> None:
    """By the short ones all of the long ones fit into one engine; by what they ask for, 24 do."""
    kv_tokens, long = SMOLLM2_135M_CPU.kv_tokens, 1_900
    given: dict[str, Any] = {"simulated_profile": "smollm2-cpu", "speed": 60, "lease_ms": 60_000}
    workers = [await fleet.worker("w1", ["weighed"], **given)]
    await fleet.results(await fleet.add_many(40, chat(0.01)))
    workers.append(await fleet.worker("w2", ["weighed"], **given))
    results = await fleet.results(await fleet.add_many(120, chat(long / 100)), within_s=60)
    for worker in workers:
        assert max(event["tokens"] for event in worker.events("engine_holds")) <= kv_tokens
        assert sum(result.worker == worker.name for result in results) >= kv_tokens // long - 2
    assert {(result.ok, result.attempt) for result in results} == {(True, 1)}
    await fleet.settled()


async def test_what_does_not_fit_waits_for_room_where_it_stood_and_is_not_passed(
    fleet: Fleet, released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "LOOK_AGAIN_S", 60.0)
    engine = LittleMemory()
    async with worker_inside(fleet.url, engine, prefetch=0, lease_ms=60_000):
        await fleet.results(await fleet.add_many(3))
        running = await fleet.add(body=chat(6))
        await fleet.runs({"w1": 1})
        large, small = await fleet.add(body=chat(5)), await fleet.add(body=chat(0.1))
        await eventually(lambda: large in released, what="the large one is handed back")
        await fleet.broker.cancel(running)
        results = await fleet.results([large, small])
        assert [result.attempt for result in results] == [1, 1]
        assert all(result.ok for result in results)
        assert engine.entered[-3:] == [running, large, small]
        assert released.count(large) == 1, "it is not taken again before there is room"
        assert len(released) <= 2
    await fleet.settled()


async def test_what_is_more_urgent_does_not_wait_for_what_needs_more_room(fleet: Fleet, released: list[str]) -> None:
    async with worker_inside(fleet.url, LittleMemory(speed=0.1), prefetch=0, lease_ms=60_000):
        await fleet.results(await fleet.add_many(3))
        running = await fleet.add(body=chat(6))
        await fleet.runs({"w1": 1})
        large = await fleet.add(body=chat(5))
        await eventually(lambda: large in released, what="the large one is handed back")
        urgent = await fleet.add(lane="critical", body=chat(0.01))
        assert (await fleet.result(urgent)).ok
        assert await fleet.broker.result(running) is None


async def test_what_does_not_fit_here_is_run_at_once_where_there_is_room(
    fleet: Fleet, released: list[str], seldom_kept_house: None
) -> None:
    never: dict[str, Any] = {"prefetch": 0, "lease_ms": 60_000}
    async with worker_inside(fleet.url, LittleMemory(speed=0.1), "busy", **never):
        await fleet.results(await fleet.add_many(3))
        running = await fleet.add(body=chat(6))
        await fleet.runs({"busy": 1})
        large = await fleet.add(body=chat(5))
        await eventually(lambda: large in released, what="the large one is handed back")
        async with worker_inside(fleet.url, LittleMemory(), "free", **never):
            result = await fleet.result(large)
            assert (result.worker, result.attempt) == ("free", 1)
            assert await fleet.broker.result(running) is None


async def test_a_servers_kv_cache_is_as_large_as_was_set(fleet: Fleet) -> None:
    async with HttpEngine(lambda _id, _n: Reply(after_s=0.1)).serving() as engine:
        await fleet.worker("w1", engine="openai", vllm_url=engine.url, remote_kv_tokens=1_000, constants={PREFETCH: 0})
        results = await fleet.results(await fleet.add_many(12, chat(3)))
        assert all(result.ok and result.attempt == 1 for result in results)
    assert engine.most == 3


async def test_a_window_gathers_then_runs_together(fleet: Fleet) -> None:
    engine = small_engine(8)
    async with worker_inside(fleet.url, engine, batching="window", batch_size=4, batch_timeout_ms=60_000):
        first = [await fleet.add(body=chat(0.3)) for _ in range(3)]
        await fleet.runs({"w1": 3})
        assert engine.running == 0
        first.append(await fleet.add(body=chat(0.3)))
        await eventually(lambda: engine.running == 4, what="a full window runs")
        await fleet.add()
        results = await fleet.results(first)
        assert all(result.ok for result in results)
        assert await fleet.finished() == 4  # the fifth opened the next window
        await fleet.runs({"w1": 1})


async def test_a_window_that_does_not_fill_starts_when_its_time_is_up(fleet: Fleet) -> None:
    await fleet.worker("w1", batching="window", batch_size=32, batch_timeout_ms=150)
    results = await fleet.results([await fleet.add() for _ in range(3)], within_s=10)
    assert all(result.ok for result in results)
    assert results[0].timings.waited_ms is not None
    assert results[0].timings.waited_ms >= 100


async def test_a_window_larger_than_the_engine_is_full_when_the_engine_is(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(2), batching="window", batch_size=32, batch_timeout_ms=60_000):
        assert all(result.ok for result in await fleet.results(await fleet.add_many(2), within_s=10))


@pytest.mark.timeout(120)
async def test_adaptive_keeps_the_target_that_continuous_exceeds(fleet: Fleet) -> None:
    """The simulated engine takes 220 ms for 20 tokens alone, 550 ms with 16 requests at once, 920 ms with all of 32."""
    target_ms = 550
    given: dict[str, Any] = {"simulated_profile": "smollm2-cpu", "speed": 2, "target_latency_ms": target_ms}
    usual_ms = {}
    for name in ("continuous", "adaptive"):
        worker = await fleet.worker(name, batching=name, **given)
        results = await fleet.results(await fleet.add_many(150, chat(0.2)), within_s=50)
        assert all(result.ok and result.worker == name for result in results)
        usual_ms[name] = median(_run_ms(result) for result in _last_half(results))
        worker.destroy()
    assert usual_ms["continuous"] > 1.3 * target_ms
    assert 0.6 * target_ms < usual_ms["adaptive"] < 1.1 * target_ms


@pytest.fixture
def seldom_kept_house(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make housekeeping so rare that early arrivals are not its work."""
    monkeypatch.setattr("streamfleet.worker.housekeeping.TICK_S", 60.0)


@pytest.mark.usefixtures("seldom_kept_house")
async def test_what_arrives_while_a_window_runs_is_there_for_another_worker(fleet: Fleet) -> None:
    """A worker without room must not keep what its blocking read was given, nor the watch."""
    never: dict[str, Any] = {"lease_ms": 60_000}
    window: dict[str, Any] = {"batching": "window", "batch_size": 4, "batch_timeout_ms": 1, **never}
    async with worker_inside(fleet.url, small_engine(4), "busy", **window):
        await fleet.add(body=chat(60))
        await fleet.runs({"busy": 1})
        async with worker_inside(fleet.url, small_engine(4), "free", **never):
            results = [await fleet.result(await fleet.add(), within_s=10) for _ in range(5)]
            assert {result.worker for result in results} == {"free"}


@pytest.mark.usefixtures("seldom_kept_house")
async def test_an_idle_waiter_is_woken_for_what_the_watchers_have_no_room_for(fleet: Fleet) -> None:
    engines = [small_engine(1) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()

        async def one(number: int) -> None:
            async with worker_inside(fleet.url, engines[number], f"w{number}", prefetch=0, lease_ms=60_000):
                await done.wait()

        tasks = [group.create_task(one(number)) for number in range(4)]
        await eventually(lambda: _all_wait(fleet), what="two watch, two are idle waiters")
        await fleet.add_many(4, chat(60))
        try:
            await fleet.runs({f"w{number}": 1 for number in range(4)}, within_s=10)
        finally:
            done.set()
    assert all(task.done() for task in tasks)


async def _all_wait(fleet: Fleet) -> bool:
    blocked = (await fleet.redis.info("clients"))["blocked_clients"]
    return bool(blocked == 8)  # each worker waits for work and for cancels


def _last_half(results: list[Result]) -> list[Result]:
    return sorted(results, key=lambda result: int(result.fields["finished_ms"]))[len(results) // 2 :]


def _run_ms(result: Result) -> float:
    """Time in the engine, in ms."""
    times = result.timings
    assert times.total_ms is not None
    return times.total_ms - (times.queued_ms or 0) - (times.waited_ms or 0)
