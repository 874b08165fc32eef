"""When to pull and when to start: continuous, and by window."""

from __future__ import annotations

from streamfleet.worker.batching import DEFAULT_WINDOW, Continuous, Window
from streamfleet.worker.credit import Load
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.flights import Flight
from tests.unit.worker_flights import flight

SLOTS = Capacity(8)


def load(*flights: Flight) -> Load:
    return Load(len(flights), len(flights), 0)


async def test_continuous_starts_at_once_and_never_looks_at_the_clock() -> None:
    policy, pulled = Continuous(prefetch=2), [flight(1), flight(2)]
    assert policy.room(SLOTS, Load(), 1) == 10
    assert policy.gather(pulled, 0) == pulled
    assert policy.wait_ms(0) is None


async def test_a_window_waits_until_it_is_full() -> None:
    window, flights = Window(3, 1_000), [flight(number) for number in range(3)]
    assert window.room(SLOTS, Load(), 1) == 3
    assert window.gather(flights[:2], now=10.0) == []
    assert window.wait_ms(10.5) == 500
    assert window.room(SLOTS, load(*flights[:2]), 1) == 1
    assert window.gather(flights[2:], now=10.5) == flights
    assert window.wait_ms(10.5) is None


async def test_a_window_starts_when_its_time_is_up() -> None:
    window, only = Window(3, 1_000), [flight()]
    assert window.gather(only, now=10.0) == []
    assert window.gather([], now=10.9) == []
    assert window.wait_ms(11.5) == 1
    assert window.gather([], now=11.0) == only


async def test_nothing_is_pulled_while_a_window_runs() -> None:
    window, running = Window(2, 0), [flight()]
    assert window.gather(running, now=0) == running
    assert window.room(SLOTS, load(*running), 1) == 0
    assert window.room(SLOTS, Load(), 1) == 2


async def test_the_next_window_opens_with_its_first_request() -> None:
    window = Window(2, 1_000)
    window.gather([flight(1), flight(2)], now=0)
    assert window.gather([], now=50.0) == []
    assert window.gather([flight(3)], now=60.0) == []
    assert window.wait_ms(60.0) == 1_000


async def test_what_landed_while_gathered_leaves_its_place() -> None:
    window, gone, stays = Window(2, 1_000), flight(1), flight(2)
    window.gather([gone], now=0)
    gone.landed = True
    assert window.room(SLOTS, Load(), 1) == 2
    assert window.gather([stays], now=0.1) == []
    assert window.gather([], now=1.0) == [stays]


async def test_an_engine_with_fewer_slots_fills_a_smaller_window() -> None:
    window, pair = Window(0, 60_000), [flight(1), flight(2)]
    assert window.room(Capacity(100), Load(), 1) == DEFAULT_WINDOW
    assert window.room(Capacity(2), Load(), 1) == 2
    assert window.gather(pair, now=0) == pair
