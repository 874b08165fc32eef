"""What a worker holds: load, revisions, leaving."""

from __future__ import annotations

from streamfleet.worker.credit import Demand, Load
from streamfleet.worker.flights import Fate, Flights
from tests.unit.worker_flights import flight


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
    flights, one = Flights(), flight(demand=Demand(1, 100))
    flights.board(one)
    flights.revise(one, Demand(2, 100))
    assert not flights.changed.is_set()
    flights.revise(one, Demand(2, 50))
    assert flights.changed.is_set()
    assert one.demand == Demand(2, 50)


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
