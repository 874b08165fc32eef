"""Room for further requests, and what admission learns from outcomes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.admission import Admission
from streamfleet.worker.batching import Adaptive
from streamfleet.worker.credit import Demand
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlight
from streamfleet.worker.outcome import cancelled
from tests.unit.worker_requests import OK, ScriptedEngine, in_flight_request


def admission(capacity: Capacity, in_flight: InFlight, **settings: Any) -> Admission:
    engine = ScriptedEngine(cast("Any", lambda _: OK), capacity)
    return Admission(engine, in_flight, load(WorkerSettings, prefetch=0, **settings), 10_000)


@pytest.mark.parametrize(("slots", "batch_size", "expected"), [(8, 0, 8), (8, 3, 3), (8, 20, 8), (0, 0, 1)])
def test_slots_are_the_engines_up_to_the_batch_size(slots: int, batch_size: int, expected: int) -> None:
    assert admission(Capacity(slots), InFlight(), batch_size=batch_size).slots == expected


def test_an_awaited_request_needs_its_own_room_not_that_of_a_usual_one() -> None:
    in_flight = InFlight()
    in_flight.add(in_flight_request(demand=Demand(1, 500)))
    admits = admission(Capacity(64, 10_000, 10_000), in_flight)
    assert admits.expected == Demand(1, 512)
    assert admits.room(0) == 9_500 // 512
    assert admits.room(9_501) == 0


def test_the_batching_policy_hears_of_each_outcome() -> None:
    admits, one = admission(Capacity(8), InFlight(), batching="adaptive", target_latency_ms=100), in_flight_request()
    assert isinstance(admits.policy, Adaptive)
    admits.policy.gather([one], 100.0)
    admits.learn(one, cancelled(), 101.0)
    assert admits.policy._runs == {}
