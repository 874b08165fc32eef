"""In-flight requests of a worker: load, revisions, leaving."""

from __future__ import annotations

from streamfleet.worker.credit import Demand, Load
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from tests.unit.worker_requests import in_flight_request

ROOMY = Capacity(100, 10_000)


async def test_load_counts_what_needs_the_engine() -> None:
    in_flight, one, two = (
        InFlight(),
        in_flight_request(1, demand=Demand(2, 100)),
        in_flight_request(2, demand=Demand(1, 50)),
    )
    for each in (one, two):
        in_flight.add(each)
    assert in_flight.load() == Load(2, 3, 150)
    in_flight.done(one)
    assert in_flight.load() == Load(1, 1, 50)
    assert in_flight.active() == [two]
    assert len(in_flight) == 2
    in_flight.remove([one])
    assert (len(in_flight), in_flight.leases()) == (1, [two.lease])


async def test_landing_and_leaving_are_announced() -> None:
    in_flight, one = InFlight(), in_flight_request()
    in_flight.add(one)
    assert not in_flight.changed.is_set()
    in_flight.done(one)
    assert in_flight.changed.is_set()
    in_flight.changed.clear()
    in_flight.remove([one])
    assert in_flight.changed.is_set()


async def test_only_a_demand_that_shrinks_is_announced() -> None:
    in_flight, one, two = (
        InFlight(),
        in_flight_request(1, demand=Demand(1, 100)),
        in_flight_request(2, demand=Demand(2, 100)),
    )
    in_flight.add(one)
    in_flight.add(two)
    assert in_flight.admit(one, Demand(2, 100), ROOMY, 0)
    assert not in_flight.changed.is_set()
    assert in_flight.admit(two, Demand(2, 50), ROOMY, 0)
    assert in_flight.changed.is_set()
    assert two.demand == Demand(2, 50)


def admit(
    in_flight: InFlight, number: int, demand: Demand, capacity: Capacity, prefetch: int = 0
) -> InFlightRequest | None:
    """A request that was let in; None where it does not fit, and went back."""
    one = in_flight_request(number)
    in_flight.add(one)
    if in_flight.admit(one, demand, capacity, prefetch):
        return one
    in_flight.remove([one])
    return None


async def test_nothing_passes_what_did_not_fit_until_there_is_room_for_it() -> None:
    in_flight, capacity = InFlight(), Capacity(8, 1_000)
    first, second = admit(in_flight, 1, Demand(1, 400), capacity), admit(in_flight, 2, Demand(1, 400), capacity)
    assert first
    assert second
    assert not admit(in_flight, 3, Demand(1, 500), capacity)
    assert in_flight.awaited_tokens == 500
    assert not admit(in_flight, 4, Demand(1, 50), capacity), "it would fit by itself"
    assert in_flight.awaited_tokens == 500
    in_flight.done(first)
    assert admit(in_flight, 4, Demand(1, 50), capacity), "the large one is another worker's by now"
    assert in_flight.awaited_tokens == 0


async def test_leaving_does_not_take_along_another_flight_of_an_equal_lease() -> None:
    """Handed back untried, a request may come again under the very same lease before the first one has left."""
    in_flight, first, again = InFlight(), in_flight_request(1), in_flight_request(1)
    assert first.lease == again.lease
    in_flight.add(first)
    in_flight.add(again)
    in_flight.remove([first])
    assert in_flight.held() == [again]


async def test_flights_are_found_by_request_id() -> None:
    in_flight, one, two = InFlight(), in_flight_request(1), in_flight_request(1, attempt=2)
    in_flight.add(one)
    in_flight.add(two)
    in_flight.add(in_flight_request(3))
    assert in_flight.find({"r-1", "r-9"}) == [one, two]


async def test_the_first_stop_reason_stays() -> None:
    one = in_flight_request()
    one.stop(StopReason.LOST)
    one.stop(StopReason.CANCELLED)
    assert one.stop_reason is StopReason.LOST
