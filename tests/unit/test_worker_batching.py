"""Times to pull and to start: continuous, by window, and adaptive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamfleet.common import settings
from streamfleet.common.errors import SettingsError
from streamfleet.common.protocol import Status
from streamfleet.common.settings import WorkerSettings
from streamfleet.worker.batching import DEFAULT_WINDOW, Adaptive, Continuous, Window
from streamfleet.worker.credit import Demand, Load
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.latency_limit import FIRST_LIMIT
from streamfleet.worker.outcome import Finished, HandedBack, Outcome, expired
from tests.unit.worker_requests import in_flight_request

SLOTS = Capacity(8)


def load(*requests: InFlightRequest) -> Load:
    return Load(len(requests), len(requests), 0)


async def test_continuous_starts_at_once_and_never_looks_at_the_clock() -> None:
    policy, pulled = Continuous(prefetch=2), [in_flight_request(1), in_flight_request(2)]
    assert policy.room(SLOTS, Load(), 1) == 10
    assert policy.gather(pulled, 0) == pulled
    assert policy.wait_ms(0) is None


async def test_a_window_waits_until_it_is_full() -> None:
    window, requests = Window(3, 1_000), [in_flight_request(number) for number in range(3)]
    assert window.room(SLOTS, Load(), 1) == 3
    assert window.gather(requests[:2], now=10.0) == []
    assert window.wait_ms(10.5) == 500
    assert window.room(SLOTS, load(*requests[:2]), 1) == 1
    assert window.gather(requests[2:], now=10.5) == requests
    assert window.wait_ms(10.5) is None


async def test_a_window_starts_when_its_time_is_up() -> None:
    window, only = Window(3, 1_000), [in_flight_request()]
    assert window.gather(only, now=10.0) == []
    assert window.gather([], now=10.9) == []
    assert window.wait_ms(11.5) == 1
    assert window.gather([], now=11.0) == only


async def test_nothing_is_pulled_while_a_window_runs() -> None:
    window, running = Window(2, 0), [in_flight_request()]
    assert window.gather(running, now=0) == running
    assert window.room(SLOTS, load(*running), 1) == 0
    assert window.room(SLOTS, Load(), 1) == 2


async def test_the_next_window_opens_with_its_first_request() -> None:
    window = Window(2, 1_000)
    window.gather([in_flight_request(1), in_flight_request(2)], now=0)
    assert window.gather([], now=50.0) == []
    assert window.gather([in_flight_request(3)], now=60.0) == []
    assert window.wait_ms(60.0) == 1_000


async def test_what_landed_while_gathered_leaves_its_place() -> None:
    window, gone, stays = Window(2, 1_000), in_flight_request(1), in_flight_request(2)
    window.gather([gone], now=0)
    gone.done = True
    assert window.room(SLOTS, Load(), 1) == 2
    assert window.gather([stays], now=0.1) == []
    assert window.gather([], now=1.0) == [stays]


async def test_an_engine_with_fewer_slots_fills_a_smaller_window() -> None:
    window, pair = Window(0, 60_000), [in_flight_request(1), in_flight_request(2)]
    assert window.room(Capacity(100), Load(), 1) == DEFAULT_WINDOW
    assert window.room(Capacity(2), Load(), 1) == 2
    assert window.gather(pair, now=0) == pair


async def test_a_window_is_full_when_the_kv_cache_is() -> None:
    window, pair = Window(32, 60_000), [in_flight_request(1), in_flight_request(2)]
    assert window.room(Capacity(100, 1_000), Load(), 400) == 2
    assert window.gather(pair, now=0) == pair


def answered(tokens: Any) -> Finished:
    return Finished(Status.SUCCEEDED, 200, b"{}", usage={"completion_tokens": tokens}, engine_ok=True)


class Played:
    """Rounds of requests, as many as there is room for, that all take so long."""

    def __init__(self, policy: Adaptive, slots: int = 64) -> None:
        self.policy, self.capacity, self.now = policy, Capacity(slots), 100.0

    def room(self) -> int:
        return self.policy.room(self.capacity, Load(), 1)

    def rounds(self, count: int, seconds: float, outcome: Outcome, demand: Demand | None = None) -> int:
        """The room after them."""
        for _ in range(count):
            requests = [in_flight_request(number, demand=demand) for number in range(self.room())]
            assert self.policy.gather(requests, self.now) == requests
            self.now += seconds
            for each in requests:
                each.started_at, each.done = self.now - seconds, True
                self.policy.ended(each, outcome, self.now)
        return self.room()


async def test_adaptive_starts_at_once_and_holds_nothing_beyond_its_limit() -> None:
    policy, pulled = Adaptive(1_000), [in_flight_request(1), in_flight_request(2)]
    assert policy.room(Capacity(64), Load(), 1) == FIRST_LIMIT
    assert policy.gather(pulled, 0) == pulled
    assert policy.room(Capacity(64), load(*pulled), 1) == FIRST_LIMIT - 2
    assert policy.wait_ms(0) is None


@pytest.mark.parametrize(("most", "slots", "room"), [(0, 64, 64), (20, 64, 20), (200, 64, 64), (0, 3, 3)])
async def test_adaptive_stays_within_the_batch_size_and_the_slots(most: int, slots: int, room: int) -> None:
    assert Played(Adaptive(1_000, most), slots).rounds(30, 0.1, answered(20)) == room


async def test_adaptive_takes_less_of_what_is_too_slow_and_warns_where_nothing_helps() -> None:
    played = Played(Adaptive(1_000))
    with capture_logs() as logs:
        assert played.rounds(30, 1.5, answered(20)) == 1
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert warnings == [
        {"event": "target_latency_out_of_reach", "log_level": "warning", "alone_ms": 1_500, "target_ms": 1_000}
    ]
    assert played.rounds(60, 0.1, answered(20)) == 64


async def test_adaptive_counts_tokens_of_choices_that_run_side_by_side_once() -> None:
    """Twice the tokens in twice the time would be no overload; side by side, they are no more work."""
    four, one = Demand(4, 80), Demand(1, 20)
    played = Played(Adaptive(1_000))
    played.rounds(40, 0.9, answered(20), one)
    before = played.room()
    played.rounds(2, 1.2, answered(80), four)
    assert played.room() < before


@pytest.mark.parametrize("usage", [None, -5, "many", True, 10**400, 1.5])
async def test_adaptive_takes_whatever_an_engine_says_of_tokens(usage: Any) -> None:
    assert Played(Adaptive(1_000)).rounds(40, 0.1, answered(usage)) == 64


async def test_adaptive_learns_from_what_ran_out_of_time_in_the_engine_only() -> None:
    played = Played(Adaptive(1_000))
    full = played.rounds(40, 0.1, answered(20))
    assert played.rounds(10, 3.0, HandedBack()) == full
    assert played.rounds(10, 3.0, replace(answered(20), status=Status.FAILED)) == full
    assert played.rounds(10, 3.0, expired("while it was running"), Demand(1, 30)) < full / 4


async def test_adaptive_forgets_what_was_handed_back_untried() -> None:
    played = Played(Adaptive(1_000), slots=4)
    for _ in range(100):
        untried = in_flight_request()
        played.policy.gather([untried], played.now)
        untried.done = True
        played.now += 100
        assert played.policy.gather([], played.now) == []
    assert played.rounds(40, 1.5, answered(20)) == 1, "they are not taken for company that slows the others down"


def test_adaptive_needs_a_target() -> None:
    with pytest.raises(SettingsError, match=r"^STREAMFLEET_TARGET_LATENCY_MS is not set: adaptive batching needs"):
        settings.load(WorkerSettings, batching="adaptive")
    assert settings.load(WorkerSettings, batching="adaptive", target_latency_ms=5).target_latency_ms == 5
