"""Requests that are started and that go back untried: an unfit worker, and requests lost with a worker before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.broker.types import Lease
from streamfleet.common.limits import QueueLimits
from streamfleet.common.logs import bind_log_context, log_context
from streamfleet.worker import dispatcher
from streamfleet.worker.containment import REST_S, Containment
from streamfleet.worker.dispatcher import Dispatcher
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from streamfleet.worker.outcome import Finished, HandedBack, Outcome, Postponed, cancelled
from tests.clocks import HandClock
from tests.constants import UNREADY, constants
from tests.unit.worker_requests import in_flight_request
from tests.waiting import eventually

FAULT = Postponed("busy")
MOST = 5


class Runs:
    """Stands for the executor: each request ends as told, or as its stop reason says; so does each probe."""

    unready = ""
    allowance: int | None = None

    def __init__(self) -> None:
        self.suspected: set[InFlightRequest] = set()
        self.ends: dict[InFlightRequest, asyncio.Future[Outcome]] = {}
        self.probes: list[asyncio.Future[bool | None]] = []
        self.fails_probes = True
        self.logged_as: list[Lease | None] = []

    async def probe(self) -> bool | None:
        self.probes.append(asyncio.get_running_loop().create_future())
        self.logged_as.append(log_context())
        return False if self.fails_probes else await self.probes[-1]

    def suspects(self, request: InFlightRequest) -> bool:
        return request in self.suspected

    async def execute(self, request: InFlightRequest) -> Outcome:
        bind_log_context(request.lease)
        end = self.ends[request] = asyncio.get_running_loop().create_future()
        request.abort = lambda: end.set_result(
            HandedBack() if request.stop_reason is StopReason.RELEASED else cancelled()
        )
        outcome: Outcome = await end
        return outcome


class Room:
    """Stands for the puller and the completer: what may be held, and what came back."""

    def __init__(self) -> None:
        self.most: int | None = None
        self.back: list[InFlightRequest] = []
        self.outcomes: list[Outcome] = []

    def allow(self, most: int | None) -> None:
        self.most = most

    def put(self, request: InFlightRequest, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if isinstance(outcome, HandedBack):
            self.back.append(request)


class Rig:
    """A dispatcher with hands on both sides."""

    def __init__(self, shared: Containment) -> None:
        self.runs, self.room, self.in_flight, self.shared = Runs(), Room(), InFlight(), shared
        shared.slots = 64
        limits = QueueLimits(max_deliveries=MOST)
        given: Any = (self.room, self.runs, self.room, self.in_flight, limits, HandClock(), shared)
        self.dispatcher = Dispatcher(*given)

    async def start(self, *given: InFlightRequest) -> None:
        for each in given:
            self.in_flight.add(each)
            self.dispatcher.start(each)
        await eventually(lambda: all(each in self.runs.ends or each in self.room.back for each in given))

    async def end(self, request: InFlightRequest, outcome: Outcome) -> None:
        self.runs.ends[request].set_result(outcome)
        await eventually(lambda: request.done)

    async def fail(self, count: int) -> None:
        """Requests of one tenant that fail one after the other."""
        for number in range(100, 100 + count):
            request = in_flight_request(number)
            await self.start(request)
            await self.end(request, FAULT)

    def running_now(self) -> set[InFlightRequest]:
        return set(self.in_flight.active())


def contained(unready_failures: int) -> Containment:
    """Rules by which so many faults make a worker unfit."""
    with constants({UNREADY: unready_failures}):
        return Containment()


@asynccontextmanager
async def rig(unready_failures: int = 1, containment: Containment | None = None) -> AsyncIterator[Rig]:
    made = Rig(containment or contained(unready_failures))
    yield made
    await made.dispatcher.stop(StopReason.RELEASED, 1.0)


def suspect(number: int, attempt: int) -> InFlightRequest:
    made = in_flight_request(number, attempt=attempt)
    made.claim = replace(made.claim, lost=attempt - 1)
    return made


def success() -> Outcome:
    return replace(cancelled(), engine_ok=True)


async def test_a_worker_that_turns_unfit_lets_go_of_all_it_holds() -> None:
    async with rig() as made:
        waiting, *others = (in_flight_request(number) for number in range(4))
        await made.start(*others)
        made.in_flight.add(waiting)  # as in a window that is not full yet
        await made.end(others[0], FAULT)
        await eventually(lambda: len(made.room.back) == 3, what="all others are back")
        assert set(made.room.back) == {waiting, *others[1:]}
        assert made.room.most == 0


async def test_while_a_probe_runs_a_worker_goes_on() -> None:
    async with rig(unready_failures=3) as made:
        made.runs.fails_probes = False
        neighbour = in_flight_request(1)
        await made.start(neighbour)
        await made.fail(2)
        assert made.runs.probes == []
        await made.fail(20)
        assert len(made.runs.probes) == 1, "one at a time"
        assert made.runs.logged_as == [None], "log lines of a probe name no request"
        assert (made.room.most, made.room.back, made.running_now()) == (None, [], {neighbour})
        made.runs.probes[0].set_result(True)
        await eventually(lambda: made.shared.probe is not None and made.shared.probe.done())
        await made.fail(2)
        assert len(made.runs.probes) == 1, "it counts anew"
        assert (made.dispatcher.fit, made.room.back) == (True, [])


async def test_one_probe_is_for_all_queues_of_an_engine() -> None:
    both = contained(3)
    async with rig(containment=both) as one, rig(containment=both) as other:
        one.runs.fails_probes = other.runs.fails_probes = False
        await one.fail(3)
        await other.fail(3)
        assert (len(one.runs.probes), len(other.runs.probes)) == (1, 0)
        one.dispatcher.close()  # as when its worker leaves
        await eventually(lambda: both.probe is not None and both.probe.done())
        other.dispatcher.heed_breaker()
        await eventually(lambda: len(other.runs.probes) == 1)


async def test_a_probe_is_of_the_queue_whose_request_found_the_last_fault() -> None:
    """The model of another queue may work all the while."""
    both = contained(1)
    async with rig(containment=both) as one, rig(containment=both) as other:
        await other.fail(1)
        await eventually(lambda: not both.breaker.fit)
        both.breaker._rest(-REST_S)  # over by now
        one.dispatcher.heed_breaker()
        await eventually(lambda: len(one.runs.probes + other.runs.probes) == 2)
        assert one.runs.probes == []


async def test_a_probe_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit worker's engine may just be full; an unfit worker probes it again after a rest, and spends no request."""
    monkeypatch.setattr(dispatcher, "PROBE_S", 0.05)
    async with rig(unready_failures=3) as made:
        made.runs.fails_probes = False
        await made.fail(3)
        await eventually(lambda: made.shared.probe is not None and made.shared.probe.done())
        assert (made.dispatcher.fit, made.shared.breaker.in_question) == (True, False)
        made.shared.breaker._rest(-REST_S)
        made.dispatcher.heed_breaker()
        await eventually(lambda: len(made.runs.probes) == 2)
        await eventually(lambda: made.shared.probe is not None and made.shared.probe.done())
        assert all(each.cancelled() for each in made.runs.probes)
        assert (made.dispatcher.fit, made.room.most) == (False, 0)


async def test_a_worker_that_leaves_takes_its_probe_with_it() -> None:
    async with rig(unready_failures=1) as made:
        made.runs.fails_probes = False
        await made.fail(1)
        await eventually(lambda: made.runs.probes)
        made.dispatcher.close()
        await made.dispatcher.stop(StopReason.RELEASED, 5.0)
        assert made.runs.probes[0].cancelled()
        last = made.shared.probe
        made.dispatcher.heed_breaker()
        assert made.shared.probe is last


async def test_a_worker_that_rests_is_not_probed_and_one_that_tries_keeps_the_request_that_tries_it() -> None:
    async with rig() as made:
        made.shared.breaker._rest(1_000.0)
        made.dispatcher.heed_breaker()
        assert (made.shared.probe, made.room.most) == (None, 0)
        made.shared.breaker.probed(None, 1_000.0)
        tries = in_flight_request(1)
        await made.start(tries)
        made.dispatcher.heed_breaker()
        assert (made.running_now(), tries.stop_reason, made.room.most) == ({tries}, None, 1)
        await made.end(tries, success())
        assert made.room.most is None


@pytest.mark.parametrize(
    ("outcome", "at_fault"),
    [
        (FAULT, True),
        (replace(cancelled(), engine_ok=False, http_status=500), True),
        (cancelled(), False),
        (HandedBack(), False),
    ],
)
async def test_whose_request_finds_a_fault_is_probed(outcome: Outcome, at_fault: bool) -> None:
    both = contained(50)
    async with rig(containment=both) as one, rig(containment=both) as other:
        await one.fail(1)
        request = in_flight_request(1)
        await other.start(request)
        await other.end(request, outcome)
        found: Any = both.suspect
        assert (found is other.runs) == at_fault


async def test_what_an_answer_on_its_way_brings_an_unfit_worker_goes_back() -> None:
    async with rig() as made:
        first, late = in_flight_request(1), in_flight_request(2)
        await made.start(first)
        await made.end(first, FAULT)
        await made.start(late)
        assert made.room.back == [late]


async def test_suspects_bound_what_is_pulled_beside_them() -> None:
    async with rig() as made:
        few, fewer = suspect(1, attempt=3), suspect(2, attempt=4)
        await made.start(few)
        assert made.room.most == 16
        await made.start(fewer)
        assert made.room.most == 4
        await made.end(fewer, success())
        assert made.room.most == 16
        await made.end(few, success())
        assert made.room.most is None


async def test_room_is_made_for_a_suspect_that_does_not_fit() -> None:
    async with rig() as made:
        first, second, last_try = in_flight_request(1), in_flight_request(2), suspect(3, attempt=MOST)
        behind = in_flight_request(4)
        await made.start(first, second)
        await made.start(last_try, behind)
        assert made.room.back == [last_try, behind]
        assert made.room.outcomes == [HandedBack(in_turn=True)] * 2  # or their lane would lose this turn each time
        assert made.room.most == 1  # nothing is pulled until both have gone
        await made.end(first, success())
        assert made.room.most == 1
        await made.end(second, success())
        again = suspect(3, attempt=MOST)
        await made.start(again)
        assert made.running_now() == {again}
        assert made.room.most == 1
        await made.end(again, success())
        assert made.room.most is None


async def test_room_is_made_for_the_one_that_needs_most() -> None:
    async with rig() as made:
        others = [in_flight_request(number) for number in range(4)]
        group, last_try = suspect(5, attempt=MOST - 1), suspect(6, attempt=MOST)
        await made.start(*others, group)
        assert made.room.most == 4
        for each in others[:2]:
            await made.end(each, success())
        await made.start(last_try)
        assert made.room.back == [group, last_try]
        assert made.room.most == 1


async def test_room_that_was_made_in_vain_is_given_up() -> None:
    """Another worker took the suspect."""
    async with rig() as made:
        first, last_try = in_flight_request(1), suspect(2, attempt=MOST)
        await made.start(first, last_try)
        await made.end(first, success())
        assert made.room.most == 1
        await made.start(in_flight_request(3))
        assert made.room.most is None


async def test_a_suspect_of_one_queue_has_no_company_of_another() -> None:
    """It may kill the engine, which both queues have in common."""
    both = contained(1)
    async with rig(containment=both) as one, rig(containment=both) as other:
        running, last_try = in_flight_request(1), suspect(2, attempt=MOST)
        await other.start(running)
        await one.start(last_try)
        assert one.room.back == [last_try], "not beside the other queue's request"
        assert (one.room.most, other.room.most) == (1, 1), "room is made in both"
        await other.end(running, success())
        again = suspect(3, attempt=MOST)
        await one.start(again)
        late = in_flight_request(4)
        await other.start(late)
        assert other.room.back == [late]
        await one.end(again, success())
        assert (one.room.most, other.room.most) == (None, None)


async def test_an_engine_that_fails_one_queue_is_unfit_for_the_other() -> None:
    both = contained(1)
    async with rig(containment=both) as one, rig(containment=both) as other:
        first, held = in_flight_request(1), in_flight_request(2)
        await other.start(held)
        await one.start(first)
        await one.end(first, FAULT)
        other.dispatcher.heed_breaker()
        await eventually(lambda: other.room.back == [held])
        assert not other.dispatcher.fit


async def test_an_engine_that_one_queue_finds_dead_gets_nothing_of_the_other() -> None:
    both = contained(20)
    async with rig(containment=both) as one, rig(containment=both) as other:
        first, late = in_flight_request(1), in_flight_request(2)
        await one.start(first)
        await one.end(first, Postponed("it died", engine_died=True))
        assert other.dispatcher.engine_died.result() == "it died"
        await other.start(late)
        assert other.room.back == [late]
        assert other.room.most == 0


async def test_a_500_in_doubt_goes_on_as_postponed() -> None:
    async with rig(unready_failures=20) as made:
        broken = replace(cancelled(), engine_ok=False, http_status=500)
        one, other = in_flight_request(1), in_flight_request(2)
        await made.start(one, other)
        await made.end(one, broken)
        await made.end(other, broken)
        assert [type(outcome) for outcome in made.room.outcomes] == [Finished, Postponed]


async def test_a_worker_whose_engine_is_away_pulls_nothing_and_goes_on_with_what_runs() -> None:
    async with rig() as made:
        running, failed, late = (in_flight_request(number) for number in range(3))
        await made.start(running, failed)
        made.runs.unready, made.runs.allowance = "its server is away", 0
        await made.end(failed, HandedBack(in_turn=True))
        assert made.room.most == 0
        assert (made.dispatcher.fit, made.dispatcher.why_unfit) == (False, "its server is away")
        await made.start(late)
        assert made.room.back == [failed, late]
        made.dispatcher.heed_breaker()
        assert running.stop_reason is None
        assert made.runs.probes == []
        made.runs.unready, made.runs.allowance = "", None
        made.dispatcher.heed_breaker()
        assert (made.dispatcher.fit, made.dispatcher.why_unfit) == (True, "its server has just come back")
        assert made.room.most is None


async def test_busy_answers_never_make_a_worker_unfit() -> None:
    async with rig(unready_failures=1) as made:
        for number in range(50):
            request = in_flight_request(number, body={"seed": number}, tenant=str(number).encode())
            await made.start(request)
            await made.end(request, HandedBack(in_turn=True))
        made.dispatcher.heed_breaker()
        assert (made.dispatcher.fit, made.room.most, made.runs.probes) == (True, None, [])


async def test_what_is_held_back_leaves_its_room_at_once_and_goes_back_later() -> None:
    async with rig() as made:
        request = in_flight_request(1)
        await made.start(request)
        began = asyncio.get_running_loop().time()
        await made.end(request, HandedBack(in_turn=True, after_ms=100))
        assert (made.in_flight.load().requests, len(made.in_flight), made.room.back) == (0, 1, [])
        await eventually(lambda: made.room.back == [request])
        assert asyncio.get_running_loop().time() - began >= 0.1


async def test_nothing_is_held_back_beyond_its_deadline_or_by_a_worker_that_ends() -> None:
    async with rig() as made:
        late, last = in_flight_request(1), in_flight_request(2)
        await made.start(late, last)
        late.late_at = HandClock().monotonic() + 0.05
        await made.end(late, HandedBack(in_turn=True, after_ms=60_000))
        await eventually(lambda: made.room.back == [late], what="its deadline ends it")
        made.dispatcher.close()
        await made.end(last, HandedBack(in_turn=True, after_ms=60_000))
        assert made.room.back == [late, last]


async def test_what_may_kill_its_server_runs_alone_on_its_last_try() -> None:
    async with rig() as made:
        beside, last_try = in_flight_request(1), in_flight_request(2, attempt=MOST)
        made.runs.suspected = {last_try}
        await made.start(beside, last_try)
        assert (made.room.back, made.room.most) == ([last_try], 1)
        await made.end(beside, success())
        again = in_flight_request(3, attempt=MOST)
        made.runs.suspected = {again}
        await made.start(again)
        await made.start(in_flight_request(4))
        assert len(made.room.back) == 2
