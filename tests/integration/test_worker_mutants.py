"""Purpose of each guard of the worker: without it, something that the other tests rely on no longer holds.

If one of these fails, the test of that guard has gone blind: it would pass without the guard.
"""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from streamfleet.worker import admission, complete, containment, execute, housekeeping, in_flight, lease, pull
from streamfleet.worker.credit import Demand, estimate
from streamfleet.worker.dispatcher import Dispatcher
from tests.constants import LATE_RETRIES, UNREADY
from tests.integration.flaky_link import FlakyLink
from tests.integration.test_worker_engine_death import Dumb
from tests.integration.worker_in_process import LittleMemory, small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.waiting import eventually

pytestmark = [pytest.mark.kill, pytest.mark.long]
NO_RECLAIM: dict[str, Any] = {"lease_ms": 60_000}


async def test_without_renewal_a_long_request_is_taken_away(fleet: Fleet) -> None:
    await fleet.worker("w1", ["without_renewal"])
    request = await fleet.add(body=chat(60))
    await fleet.runs({"w1": 1})
    await fleet.worker("w2")
    await fleet.runs({"w2": 1})
    assert await fleet.redis.hlen("{default}:tries") == 1
    assert await fleet.broker.result(request) is None


async def test_without_waiting_for_others_a_shorter_lease_takes_requests_from_workers_that_renew_them(
    fleet: Fleet,
) -> None:
    for name in ("w1", "w2"):
        await fleet.worker(name, ["without_waiting_for_others"], lease_ms=20_000)
    await fleet.add_many(4, chat(60))
    await eventually(fleet.running, what="they run")
    await fleet.broker.set_configuration({"lease_ms": "1000"})

    async def taken_away() -> int:
        return int(await fleet.redis.hlen("{default}:tries"))

    await eventually(taken_away, 15, "a request is taken from its worker")


async def test_without_a_look_at_names_two_workers_have_the_same(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.worker("w1")
    (tmp_path / "second").mkdir()
    second = WorkerProcess(fleet.url, tmp_path / "second", "w1", ["without_names"])
    try:
        await second.ready()
    finally:
        second.destroy()


async def test_without_the_deadline_check_a_late_answer_is_a_success(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute.Executor, "_remaining_s", lambda *_: math.inf)
    async with worker_inside(fleet.url, small_engine()):
        result = await fleet.result(await fleet.add(body=chat(4), ttl=2_000))
    assert result.ok
    assert result.timings.total_ms is not None
    assert result.timings.total_ms > 3_900


async def test_without_release_what_ran_stays_with_a_worker_that_left(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", ["without_release"], drain_ms=0, **NO_RECLAIM)
    await fleet.add_many(3, chat(60))
    await fleet.runs({"w1": 3})
    worker.send(signal.SIGTERM)
    await worker.ended()
    assert await fleet.running() == {"w1": 3}


async def test_without_disown_what_a_lost_answer_claimed_is_held_back(fleet: Fleet) -> None:
    async with FlakyLink(int(fleet.url.rsplit(":", 1)[1].split("/")[0])).open() as link:
        await fleet.worker("w1", ["without_disown"], redis_url=link.url, **NO_RECLAIM)
        link.break_after("pull", b"messages")
        lost = await fleet.add()
        await eventually(lambda: link.broken == ["pull"], what="the answer is lost")
        assert (await fleet.result(await fleet.add())).ok
        assert await fleet.broker.result(lost) is None
        assert await fleet.running() == {"w1": 1}


async def test_without_admission_a_request_costs_what_it_likes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def estimated(body: Any, size: int, _limits: Any, *where: Any) -> Demand:
        return estimate(body, size, *where)

    monkeypatch.setattr(admission, "checked_demand", estimated)
    async with worker_inside(fleet.url, small_engine(), max_sequences=2):
        assert (await fleet.result(await fleet.add(body=chat(n=3)))).ok


async def test_without_the_check_of_its_size_a_request_is_run_beside_what_it_does_not_fit_beside(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        in_flight.InFlight, "admit", lambda held, request, demand, *_, **__: held._revise(request, demand) or True
    )
    engine = LittleMemory(speed=0.1)
    async with worker_inside(fleet.url, engine, prefetch=0, **NO_RECLAIM):
        await fleet.results(await fleet.add_many(3))
        await fleet.add(body=chat(6))
        await fleet.runs({"w1": 1})
        large = await fleet.add(body=chat(5))
        await eventually(lambda: large in engine.entered, what="both are in the engine")


async def test_without_making_room_a_request_is_taken_and_handed_back_without_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, released: list[str]
) -> None:
    monkeypatch.setattr(pull.Puller, "_awaited_tokens", lambda _: 0)
    async with worker_inside(fleet.url, LittleMemory(speed=0.1), prefetch=0, **NO_RECLAIM):
        await fleet.results(await fleet.add_many(3))
        await fleet.add(body=chat(6))
        await fleet.runs({"w1": 1})
        large = await fleet.add(body=chat(5))
        await eventually(lambda: released.count(large) > 10, what="it comes and goes")


async def test_without_cancels_a_running_request_runs_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease.LeaseKeeper, "_tell", lambda *_: None)
    async with worker_inside(fleet.url, small_engine(), **NO_RECLAIM):
        request = await fleet.add(body=chat(1.5))
        await fleet.runs({"w1": 1})
        cancelled_at = time.monotonic()
        assert await fleet.broker.cancel(request)
        await fleet.runs({})
        assert time.monotonic() - cancelled_at > 1.0


async def test_without_a_circuit_breaker_a_broken_engine_fails_the_whole_queue(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment.CircuitBreaker, "weigh", lambda _self, outcome, *_: outcome)
    engine = small_engine()
    engine.faults.errors = 40
    async with worker_inside(fleet.url, engine, changed={UNREADY: 5}, max_deliveries=1):
        results = await fleet.results(await fleet.add_many(40))
    assert {result.ok for result in results} == {False}


async def test_without_backoff_all_tries_are_gone_in_a_moment(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "backoff_ms", lambda *_: 0)
    engine = small_engine()
    engine.faults.unavailable = 1_000
    async with worker_inside(fleet.url, engine, changed=LATE_RETRIES):
        assert (await fleet.result(await fleet.add(), within_s=20)).status == "dead"


async def test_without_reclaim_a_dead_workers_request_is_never_run(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = await fleet.add()
    assert (await fleet.broker.pull("gone", 1)).claims
    monkeypatch.setattr(housekeeping.Housekeeper, "_acquire_lock", refused)
    async with worker_inside(fleet.url, small_engine()):

        async def long_silent() -> bool:
            return bool(await fleet.redis.xpending_range("{default}:lane:normal", "workers", "-", "+", 1, idle=2_200))

        await eventually(long_silent, what="its lease has long run out")
        assert await fleet.running() == {"gone": 1}
        assert await fleet.broker.result(request) is None


async def refused(_: housekeeping.Housekeeper) -> bool:
    return False


async def test_without_a_death_notice_a_dead_engine_uses_up_the_queue(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "_declare_dead", lambda *_: None)
    engine = Dumb(small_engine(4)._profile)
    async with worker_inside(fleet.url, engine, changed={UNREADY: 1_000}, prefetch=0, max_deliveries=2, **NO_RECLAIM):
        ids = await fleet.add_many(20, chat(60))
        await fleet.runs({"w1": 4})
        engine.die()
        assert {result.status for result in await fleet.results(ids)} == {"dead"}
