"""Room for further requests, and what admission learns from outcomes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast

import pytest

from streamfleet.common import metrics
from streamfleet.common.protocol import CHAT as CHATS
from streamfleet.common.protocol import COMPLETIONS, DEFAULT_MAX_BODY_BYTES, EMBEDDINGS, Lane, Status
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.admission import BORROWED_AFTER_S, Admission
from streamfleet.worker.batching import Adaptive
from streamfleet.worker.credit import Demand
from streamfleet.worker.engine.base import Capacity, EngineRequest
from streamfleet.worker.in_flight import InFlight, StopReason
from streamfleet.worker.outcome import Finished, Postponed, broken, cancelled, expired
from tests.constants import PREFETCH, constants
from tests.unit.worker_requests import CHAT, OK, ScriptedEngine, in_flight_request


def admission(capacity: Capacity, in_flight: InFlight, prefetch: int = 0, **settings: Any) -> Admission:
    engine = ScriptedEngine(cast("Any", lambda _: OK), capacity)
    with constants({PREFETCH: prefetch}):
        return Admission(engine, in_flight, load(WorkerSettings, **settings))


@pytest.mark.parametrize(("slots", "batch_size", "expected"), [(8, 0, 8), (8, 3, 3), (8, 20, 8), (0, 0, 1)])
def test_slots_are_the_engines_up_to_the_batch_size(slots: int, batch_size: int, expected: int) -> None:
    assert admission(Capacity(slots), InFlight(), batch_size=batch_size).slots == expected


def test_an_awaited_request_needs_its_own_room_not_that_of_a_usual_one() -> None:
    in_flight = InFlight()
    in_flight.add(in_flight_request(demand=Demand(1, 500)))
    admits = admission(Capacity(64, 10_000, 10_000), in_flight)
    assert admits.expected == Demand(1, 512)
    assert admits.rooms(0, 0.0)[2] == (10_000 - 250 - 500) // 512
    assert admits.rooms(9_251, 0.0)[2] == 0


def test_the_batching_policy_hears_of_each_outcome() -> None:
    admits, one = admission(Capacity(8), InFlight(), batching="adaptive", target_latency_ms=100), in_flight_request()
    assert isinstance(admits.policy, Adaptive)
    admits.policy.gather([one], 100.0)
    admits.learn(one, cancelled(), 101.0)
    assert admits.policy._runs == {}


ANSWER = Finished(Status.SUCCEEDED, 200, b"{}", usage={"prompt_tokens": 5, "completion_tokens": 200})


def after(
    admits: Admission, outcome: Finished | Postponed, run_s: float, body: Any, number: int = 1, **asked: Any
) -> Any:
    """Returns what a run of so many seconds is charged for its time in the engine."""
    request = in_flight_request(number, body)
    admits.admit(request, 100.0, DEFAULT_MAX_BODY_BYTES)
    request.started_at = 100.0
    request.asked = EngineRequest("r", COMPLETIONS if "prompt" in body else CHATS, body, Lane.NORMAL, **asked)
    outcome = replace(outcome)
    admits.learn(request, outcome, 100.0 + run_s)
    return outcome.held


@pytest.mark.parametrize("outcome", [cancelled(), expired("while it was running"), broken("it broke")])
@pytest.mark.parametrize(
    ("run_s", "body", "held"),
    [
        (0.0, {"prompt": "hi", "max_tokens": 9_000}, 0),
        (6.0, {"prompt": "hi", "max_tokens": 9_000}, 1_200),  # 200 tokens a second
        (60.0, {"prompt": "hi", "max_tokens": 9_000}, 9_000),
        (0.95, {"prompt": "hi", "max_tokens": 200}, 190),
        (6.0, {"prompt": "hi", "max_tokens": 200}, 200),
        (6.0, {"prompt": "hi", "max_tokens": "8", "max_completion_tokens": 9_000}, 8),
        (6.0, {"prompt": "hi"}, 16),
        (6.0, {"prompt": "hi", "n": 4, "max_tokens": 2_000}, 4_800),
        (6.0, {**CHAT, "max_tokens": 8, "max_completion_tokens": 9_000}, 1_200),
        (6.0, CHAT, 1_200),
        (60.0, CHAT, 10_000),
    ],
)
def test_who_leaves_without_an_answer_pays_for_the_time_up_to_its_limit(
    outcome: Finished, run_s: float, body: Any, held: float
) -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    for number in range(3):
        assert after(admits, ANSWER, 1.0, {"prompt": "hi", "max_tokens": 200}, number) is None
    assert after(admits, outcome, run_s, body) == pytest.approx(held)


def test_where_the_pace_is_not_known_as_much_as_was_expected_is_charged() -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    assert after(admits, cancelled(), 6.0, CHAT) == math.inf


@pytest.mark.parametrize("outcome", [broken("it broke"), Finished(Status.FAILED, 400, error="{}")])
def test_who_is_refused_is_charged_no_expected_answer_where_the_pace_is_not_known(outcome: Finished) -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    assert after(admits, outcome, 0.005, CHAT) == 0


FAULT = Postponed("time-out")
USED = {"prompt_tokens": 5, "completion_tokens": 30}


@pytest.mark.parametrize(
    ("run_s", "asked", "held"),
    [
        (6.0, {}, 1_200),  # 200 tokens a second
        (60.0, {}, 9_000),
        (0.2, {}, None),  # at once, as of a server that is not there
        (0.3, {}, 60),
        (6.0, {"usage": {"prompt_tokens": 5, "completion_tokens": 2_000}, "guessed": True}, 2_000),
        (6.0, {"usage": USED, "guessed": True}, 1_200),
        (6.0, {"usage": USED}, 30),
        (6.0, {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, None),  # it never got there
        (6.0, {"made": 30}, 30),
        (0.1, {"made": 30}, 30),
        (6.0, {"made": 30, "resumed_tokens": 20}, 10),
        (6.0, {"made": 30, "resumed_tokens": 20, "usage": USED}, 10),
        (6.0, {"made": 20, "resumed_tokens": 20}, 1_200),
    ],
)
def test_an_attempt_that_fails_pays_for_the_time_up_to_its_limit(run_s: float, asked: Any, held: float | None) -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    after(admits, ANSWER, 1.0, CHAT)
    found = after(admits, FAULT, run_s, {"prompt": "hi", "max_tokens": 9_000}, **asked)
    assert found == (held if held is None else pytest.approx(held))


def test_an_attempt_that_was_not_begun_pays_nothing() -> None:
    admits, request, outcome = admission(Capacity(8), InFlight()), in_flight_request(), replace(FAULT)
    admits.learn(request, outcome, 160.0)
    assert outcome.held is None


@pytest.mark.parametrize(
    ("outcome", "run_s", "held"),
    [
        (FAULT, 6.0, math.inf),
        (FAULT, 0.2, None),
        (broken("it broke"), 6.0, math.inf),
        (broken("it broke"), 0.2, 0),
        (Finished(Status.FAILED, 400, error="{}"), 6.0, 0),
    ],
)
def test_before_the_pace_is_known_a_fault_is_charged_as_expected_unless_it_comes_at_once(
    outcome: Any, run_s: float, held: float | None
) -> None:
    assert after(admission(Capacity(8), InFlight()), outcome, run_s, CHAT) == held


def test_an_answer_that_nobody_counted_pays_for_the_time_up_to_its_limit() -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    after(admits, ANSWER, 1.0, CHAT)
    uncounted = Finished(Status.SUCCEEDED, 200, b"{}")
    assert after(admits, uncounted, 6.0, {"prompt": "hi", "max_tokens": 9_000}) == pytest.approx(1_200)
    assert after(admits, uncounted, 6.0, {"prompt": "hi", "max_tokens": 9}) == pytest.approx(9)
    assert after(admits, ANSWER, 6.0, CHAT) is None


def test_own_runs_that_write_little_make_no_run_cheap() -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    one = replace(ANSWER, usage={"prompt_tokens": 5_000, "completion_tokens": 1})
    for _ in range(400):
        after(admits, one, 5.0, {"prompt": "hi", "max_tokens": 1})
    assert after(admits, cancelled(), 60.0, {"prompt": "hi", "max_tokens": 3_000}) == math.inf
    for _ in range(10):
        after(admits, ANSWER, 4.0, CHAT)
    for _ in range(400):
        after(admits, one, 5.0, {"prompt": "hi", "max_tokens": 3_000})
    assert after(admits, cancelled(), 60.0, {"prompt": "hi", "max_tokens": 3_000}) == pytest.approx(3_000)


def test_what_the_engine_has_counted_is_not_estimated_and_what_it_has_guessed_is() -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    after(admits, ANSWER, 1.0, CHAT)
    seen = replace(cancelled(), usage={"prompt_tokens": 5, "completion_tokens": 1})
    assert after(admits, seen, 6.0, CHAT) is None
    assert after(admits, seen, 6.0, CHAT, guessed=True) == pytest.approx(1_200)


def test_a_server_that_does_not_count_has_a_pace_too() -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    after(admits, Finished(Status.SUCCEEDED, 200, b"x" * 800), 1.0, CHAT)
    assert after(admits, cancelled(), 6.0, CHAT) == pytest.approx(1_200)


def test_what_generates_nothing_is_charged_its_prompt_alone() -> None:
    admits = admission(Capacity(8, None, 10_000), InFlight())
    request = in_flight_request(body={"input": "hi"})
    request.started_at, request.asked = 100.0, EngineRequest("r", EMBEDDINGS, {"input": "hi"}, Lane.NORMAL)
    outcome = cancelled()
    admits.learn(request, outcome, 106.0)
    assert outcome.held == 0


def co_serving(slots: int = 10, running: int = 8, lane: Lane = Lane.LOW, **settings: Any) -> tuple[Admission, InFlight]:
    """A worker of so many slots that runs so many requests of a lane."""
    in_flight = InFlight()
    for number in range(running):
        one = in_flight_request(number, lane=lane, demand=Demand(1, 100))
        in_flight.add(one)
        one.started_at = 100.0
    return admission(Capacity(slots), in_flight, **settings), in_flight


def test_patient_lanes_leave_a_reserve_free() -> None:
    admits, _ = co_serving()
    assert admits.rooms(0, 100.0) == (2, 2, 1, 0)
    assert co_serving(running=3)[0].rooms(0, 100.0) == (7, 7, 6, 5)
    assert co_serving(patient_lanes="low")[0].rooms(0, 100.0) == (2, 2, 2, 0)
    assert co_serving(patient_lanes="none")[0].rooms(0, 100.0) == (2, 2, 2, 2)
    assert co_serving(reserve_percent=0)[0].rooms(0, 100.0) == (2, 2, 2, 2)
    assert co_serving(batching="window")[0].rooms(0, 100.0) == (0, 0, 0, 0)
    assert co_serving(batch_size=10, slots=20)[0].rooms(0, 100.0) == (2, 2, 1, 0)


@pytest.mark.parametrize(
    ("slots", "normal", "low"),
    [(1, 1, 1), (2, 2, 2), (5, 5, 4), (8, 8, 7), (10, 9, 8), (40, 39, 32), (64, 63, 52), (256, 250, 205)],
)
@pytest.mark.parametrize("running", [Lane.NORMAL, Lane.LOW])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_normal_leaves_a_small_part_of_the_reserve_and_low_all_of_it(
    slots: int, normal: int, low: int, running: Lane, prefetch: int
) -> None:
    """Requests beyond the slots take nothing of that part."""
    admits, _ = co_serving(slots, 1, running, prefetch=prefetch)
    of_normal = normal if normal < slots else slots + prefetch
    assert admits.rooms(0, 100.0) == (*[max(1, slots - 1)] * 2, of_normal - 1, min(of_normal, low + prefetch) - 1)
    old, _ = co_serving(slots, 1, running, prefetch=prefetch, patient_lanes="low")
    assert old.rooms(0, 100.0)[3] >= min(slots - 1, admits.rooms(0, 100.0)[3])


def test_of_the_kv_cache_too() -> None:
    in_flight = InFlight()
    in_flight.add(in_flight_request(lane=Lane.LOW, demand=Demand(1, 7_000)))
    assert admission(Capacity(64, 10_000, 10_000), in_flight).rooms(0, 100.0) == (5, 5, 5, 1)
    in_flight.add(in_flight_request(lane=Lane.NORMAL, demand=Demand(1, 2_400)))
    assert admission(Capacity(64, 10_000, 10_000), in_flight).rooms(0, 100.0) == (1, 1, 0, 0)


def test_patient_lanes_borrow_a_reserve_that_nobody_has_needed_for_long() -> None:
    admits, _ = co_serving()
    assert admits.rooms(0, 100.0)[-1] == 0
    assert admits.rooms(0, 100.0 + BORROWED_AFTER_S)[-1] == 2
    admits.claimed({Lane.LOW}, 200.0)
    assert admits.rooms(0, 201.0)[-1] == 2
    admits.claimed({Lane.HIGH}, 201.0)
    assert admits.rooms(0, 202.0)[-1] == 0


@pytest.mark.parametrize(
    ("came", "normal", "low"),
    [(Lane.CRITICAL, 1, 0), (Lane.HIGH, 1, 0), (Lane.NORMAL, 2, 0), (Lane.LOW, 2, 2), (None, 2, 2)],
)
def test_a_lane_borrows_while_no_more_urgent_one_has_work(came: Lane | None, normal: int, low: int) -> None:
    admits, _ = co_serving()
    assert admits.rooms(0, 100.0) == (2, 2, 1, 0)
    if came:
        admits.claimed({came}, 140.0)
    assert admits.rooms(0, 160.0) == (2, 2, normal, low)
    admits.claimed({Lane.NORMAL, Lane.LOW}, 199.9)
    assert admits.rooms(0, 200.0) == (2, 2, 2, 0)


def test_a_full_worker_has_room_for_one_urgent_request_in_place_of_a_patient_one() -> None:
    for lanes in ("normal,low", "low", "none"):
        for lane in Lane:
            room = int(lane.value in lanes)
            assert co_serving(running=10, lane=lane, patient_lanes=lanes)[0].rooms(0, 101.0) == (room, room, 0, 0)


def test_an_urgent_request_does_not_wait_inside_the_engine() -> None:
    """A prefetched request would run when another one ends: patient ones are interrupted for it instead."""
    admits, in_flight = co_serving(prefetch=2)
    assert admits.rooms(0, 100.0) == (2, 2, 1, 1)
    for request in in_flight.active():
        in_flight.done(request)
    assert admits.rooms(0, 100.0) == (12, 12, 9, 9)


@pytest.mark.parametrize(
    ("lane", "lanes", "protected"),
    [(Lane.LOW, "low", False), (Lane.LOW, "normal,low", True), (Lane.NORMAL, "normal,low", True)],
)
def test_a_lane_that_borrows_holds_nothing_beyond_the_slots_while_others_find_no_room(
    lane: Lane, lanes: str, protected: bool
) -> None:
    """Else it would fill each slot that comes free."""
    admits, in_flight = co_serving(running=9, lane=lane, patient_lanes=lanes, prefetch=2)
    for request in in_flight.active():
        request.owed = protected
    admits.rooms(0, 100.0)
    assert admits.rooms(0, 100.0 + BORROWED_AFTER_S)[2:] == ((1, 3) if lanes == "low" else (3, 3))
    in_flight.add(in_flight_request(9, lane=lane, demand=Demand(1, 100)))
    assert admits.rooms(0, 100.0 + BORROWED_AFTER_S)[-1] == 0


def test_the_cheapest_patient_request_is_stopped_for_an_urgent_one() -> None:
    admits, in_flight = co_serving(running=0)
    patient = [in_flight_request(number, lane=Lane.LOW) for number in range(10)]
    admits.rooms(0, 100.0 - BORROWED_AFTER_S)
    for number, each in enumerate(patient):
        in_flight.add(each)
        assert admits.admit(each, 100.0, DEFAULT_MAX_BODY_BYTES) is not None
        each.started_at = 100.0 + (number != 7)
    urgent = in_flight_request(20, lane=Lane.CRITICAL)
    in_flight.add(urgent)
    patient[3].claim = replace(patient[3].claim, interrupted=1)
    assert admits.admit(urgent, 105.0, DEFAULT_MAX_BODY_BYTES) is not None
    (stopped,) = [each for each in patient if each.stop_reason is not None]
    assert stopped.stop_reason is StopReason.GAVE_WAY
    assert stopped not in (patient[3], patient[7])
    assert in_flight.load().sequences == 10
    normal = in_flight_request(21, lane=Lane.NORMAL)
    in_flight.add(normal)
    assert admits.admit(normal, 105.0, DEFAULT_MAX_BODY_BYTES) is None
    assert sum(each.stop_reason is not None for each in patient) == 1


@pytest.mark.parametrize("urgent_lane", [Lane.CRITICAL, Lane.HIGH])
def test_low_gives_way_before_normal_and_nothing_gives_way_to_normal(urgent_lane: Lane) -> None:
    admits, in_flight = co_serving(running=0)
    admits.rooms(0, 100.0 - BORROWED_AFTER_S)
    running = {lane: in_flight_request(number, lane=lane) for number, lane in enumerate(Lane, 1)}
    more = {number: in_flight_request(number, lane=Lane.NORMAL) for number in range(10, 16)}
    for each in (*running.values(), *more.values()):
        in_flight.add(each)
        assert admits.admit(each, 100.0, DEFAULT_MAX_BODY_BYTES) is not None
        each.started_at = 100.0
    running[Lane.LOW].claim = replace(running[Lane.LOW].claim, interrupted=2)
    stopped = []
    for number in range(20, 30):
        urgent = in_flight_request(number, lane=urgent_lane)
        in_flight.add(urgent)
        admitted = admits.admit(urgent, 105.0, DEFAULT_MAX_BODY_BYTES)
        stopped.append(sum(each.stop_reason is not None for each in (*running.values(), *more.values())))
        assert (admitted is not None) == (number < 28)
        if number == 20:
            assert running[Lane.LOW].stop_reason is StopReason.GAVE_WAY
    assert stopped == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert running[Lane.CRITICAL].stop_reason is running[Lane.HIGH].stop_reason is None


def test_a_patient_request_for_which_room_is_made_holds_up_no_urgent_one() -> None:
    in_flight = InFlight()
    admits = admission(Capacity(64, 10_000, 10_000), in_flight)
    one = in_flight_request(1, lane=Lane.LOW, demand=Demand(1, 5_000))
    in_flight.add(one)
    in_flight.awaited_tokens = 9_000
    assert admits.rooms(9_000, 100.0) == (9, 9, 0, 0)
    urgent = in_flight_request(2, lane=Lane.HIGH)
    in_flight.add(urgent)
    assert admits.admit(urgent, 100.0, DEFAULT_MAX_BODY_BYTES) is not None
    assert in_flight.awaited_tokens == 9_000


def blocked_s() -> float:
    return metrics.URGENT_BLOCKED._value.get()  # type: ignore[no-any-return]


def test_where_all_are_protected_urgent_work_waits_and_that_is_counted() -> None:
    admits, in_flight = co_serving(running=10)
    before = blocked_s()
    for each in in_flight.active():
        each.claim = replace(each.claim, interrupted=3)
    assert admits.rooms(0, 101.0) == (0, 0, 0, 0)
    assert admits.rooms(0, 103.0) == (0, 0, 0, 0)
    in_flight.done(in_flight.active()[0])
    assert admits.rooms(0, 104.0) == (1, 1, 0, 0)
    assert admits.rooms(0, 105.0) == (1, 1, 0, 0)
    assert blocked_s() - before == pytest.approx(3.0)


def test_what_came_by_the_share_of_its_lane_gives_no_way() -> None:
    admits, in_flight = co_serving(running=10)
    for each in in_flight.active()[1:]:
        each.owed = True
    assert admits.rooms(0, 101.0) == (1, 1, 0, 0)
    in_flight.active()[0].owed = True
    assert admits.rooms(0, 101.0) == (0, 0, 0, 0)


def test_by_their_shares_patient_lanes_get_no_more_than_all_but_the_reserve() -> None:
    admits, in_flight = co_serving(running=7)
    for number in range(20, 22):
        in_flight.add(in_flight_request(number, lane=Lane.HIGH))
    assert (admits.rooms(0, 101.0), admits.owed, admits.free) == ((1, 1, 0, 0), (1, 1, 1, 1), 1)
    in_flight.add(in_flight_request(30, lane=Lane.LOW))
    in_flight.done(in_flight.active()[-2])
    assert (admits.rooms(0, 101.0), admits.owed, admits.free) == ((1, 1, 0, 0), (1, 1, 1, 0), 1)
    in_flight.add(in_flight_request(31, lane=Lane.NORMAL))
    in_flight.done(in_flight.active()[-3])
    assert (admits.rooms(0, 101.0), admits.owed, admits.free) == ((1, 1, 0, 0), (1, 1, 0, 0), 1)


def test_by_its_share_low_gets_slots_that_normal_has_taken() -> None:
    admits, _ = co_serving(running=8, lane=Lane.NORMAL)
    assert (admits.rooms(0, 101.0), admits.owed) == ((2, 2, 1, 0), (2, 2, 1, 2))


def test_patient_requests_that_turn_out_to_be_large_leave_the_reserve_free_too() -> None:
    in_flight = InFlight()
    admits = admission(Capacity(64, 10_000, 10_000), in_flight)
    admits.rooms(0, 100.0)
    for number, owed in enumerate([False, False, True]):
        in_flight.add(one := in_flight_request(number, {**CHAT, "max_tokens": 4_500}, lane=Lane.LOW))
        one.owed = owed
        assert (admits.admit(one, 100.0, DEFAULT_MAX_BODY_BYTES) is not None) == (number != 1)


@pytest.mark.parametrize(("lane", "tokens"), [(Lane.NORMAL, 9_750), (Lane.LOW, 8_000), (Lane.HIGH, 10_000)])
def test_a_large_request_fits_into_what_its_lane_may_fill(lane: Lane, tokens: int) -> None:
    in_flight = InFlight()
    admits = admission(Capacity(64, 10_000, 10_000), in_flight)
    admits.rooms(0, 100.0)
    in_flight.add(first := in_flight_request(1, {**CHAT, "max_tokens": 1_000}, lane=Lane.HIGH))
    assert admits.admit(first, 100.0, DEFAULT_MAX_BODY_BYTES) is not None
    for number, more in ((2, -100), (3, 100)):
        body = {**CHAT, "max_tokens": tokens - first.demand.tokens + more}
        in_flight.add(one := in_flight_request(number, body, lane=lane))
        assert (admits.admit(one, 100.0, DEFAULT_MAX_BODY_BYTES) is None) == (more > 0)
        in_flight.remove([one])


@pytest.mark.parametrize(
    ("body", "endpoint", "tokens"),
    [
        (CHAT, "/v1/chat/completions", 40),
        (CHAT | {"max_tokens": 90}, "/v1/chat/completions", 256),
        (CHAT, "/v1/embeddings", 256),
    ],
)
def test_what_requests_without_a_limit_generate_is_what_the_next_ones_are_taken_to_need(
    body: dict[str, Any], endpoint: str, tokens: int
) -> None:
    in_flight = InFlight()
    admits = admission(Capacity(8, 100_000, 8_192), in_flight)
    one = in_flight_request(1, body)
    in_flight.add(one)
    assert admits.admit(one, 100.0, DEFAULT_MAX_BODY_BYTES)
    one.asked = EngineRequest("r-1", endpoint, body, Lane.NORMAL, None)
    done = Finished(Status.SUCCEEDED, 200, response=b"{}", usage={"completion_tokens": 40})
    admits.learn(one, done, 101.0)
    two = in_flight_request(2)
    in_flight.add(two)
    admits.admit(two, 102.0, DEFAULT_MAX_BODY_BYTES)
    assert two.demand.tokens == len(json.dumps(CHAT)) // 4 + tokens
