"""In-flight requests of a worker: load, revisions, leaving."""

from __future__ import annotations

from streamfleet.worker.credit import Demand, Load
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.flights import Fate, Flight, Flights
from tests.unit.worker_flights import flight

ROOMY = Capacity(100, 10_000)


async def test_load_counts_what_needs_the_engine() -> None:
    flights, one, two = Flights(), flight(1, demand=Demand(2, 100)), flight(2, demand=Demand(1, 50))
    for each in (one, two):
        flights.board(each)
    assert flights.load() == Load(2, 3, 150)
    flights.land(one)
    assert flights.load() == Load(1, 1, 50)
    assert flights.active() == [two]
    assert len(flights) == 2
    flights.leave([one])
    assert (len(flights), flights.leases()) == (1, [two.lease])


async def test_landing_and_leaving_are_announced() -> None:
    flights, one = Flights(), flight()
    flights.board(one)
    assert not flights.changed.is_set()
    flights.land(one)
    assert flights.changed.is_set()
    flights.changed.clear()
    flights.leave([one])
    assert flights.changed.is_set()


async def test_only_a_demand_that_shrinks_is_announced() -> None:
    flights, one, two = Flights(), flight(1, demand=Demand(1, 100)), flight(2, demand=Demand(2, 100))
    flights.board(one)
    flights.board(two)
    assert flights.admit(one, Demand(2, 100), ROOMY, 0)
    assert not flights.changed.is_set()
    assert flights.admit(two, Demand(2, 50), ROOMY, 0)
    assert flights.changed.is_set()
    assert two.demand == Demand(2, 50)


def admit(flights: Flights, number: int, demand: Demand, capacity: Capacity, prefetch: int = 0) -> Flight | None:
    """A flight that was let in; None where it does not fit, and went back."""
    one = flight(number)
    flights.board(one)
    if flights.admit(one, demand, capacity, prefetch):
        return one
    flights.leave([one])
    return None


async def test_what_is_guessed_of_others_keeps_nothing_out() -> None:
    flights, capacity = Flights(), Capacity(8, 1_000)
    for number in range(4):
        flights.board(flight(number, demand=Demand(1, 500)))
    assert admit(flights, 9, Demand(1, 600), capacity)
    assert admit(flights, 10, Demand(1, 400), capacity)
    assert not admit(flights, 11, Demand(1, 1), capacity)


async def test_an_idle_engine_admits_one_however_large() -> None:
    flights, capacity = Flights(), Capacity(8, 1_000)
    large = admit(flights, 1, Demand(1, 5_000), capacity)
    assert large
    assert not admit(flights, 2, Demand(1, 5_000), capacity)
    flights.land(large)
    assert admit(flights, 2, Demand(1, 5_000), capacity)


async def test_nothing_passes_what_did_not_fit_until_there_is_room_for_it() -> None:
    flights, capacity = Flights(), Capacity(8, 1_000)
    first, second = admit(flights, 1, Demand(1, 400), capacity), admit(flights, 2, Demand(1, 400), capacity)
    assert first
    assert second
    assert not admit(flights, 3, Demand(1, 500), capacity)
    assert flights.awaited_tokens == 500
    assert not admit(flights, 4, Demand(1, 50), capacity), "it would fit by itself"
    assert flights.awaited_tokens == 500
    flights.land(first)
    assert admit(flights, 4, Demand(1, 50), capacity), "the large one is another worker's by now"
    assert flights.awaited_tokens == 0


async def test_a_request_of_many_sequences_is_admitted_while_a_slot_is_free() -> None:
    """A request that waits for a slot in the engine takes none from others; an engine emptied for it would idle."""
    flights, capacity = Flights(), Capacity(8)
    assert admit(flights, 1, Demand(7, 0), capacity)
    assert admit(flights, 2, Demand(8, 0), capacity)
    assert not admit(flights, 3, Demand(1, 0), capacity)


async def test_leaving_does_not_take_along_another_flight_of_an_equal_lease() -> None:
    """Handed back untried, a request may come again under the very same lease before the first flight has left."""
    flights, first, again = Flights(), flight(1), flight(1)
    assert first.lease == again.lease
    flights.board(first)
    flights.board(again)
    flights.leave([first])
    assert flights.held() == [again]


async def test_flights_are_found_by_request_id() -> None:
    flights, one, two = Flights(), flight(1), flight(1, attempt=2)
    flights.board(one)
    flights.board(two)
    flights.board(flight(3))
    assert flights.find({"r-1", "r-9"}) == [one, two]


async def test_the_first_fate_stands() -> None:
    one = flight()
    one.stop(Fate.LOST)
    one.stop(Fate.CANCELLED)
    assert one.fate is Fate.LOST
