"""The limit that follows a busy server, in virtual time; and every guard of it, taken out: a test must notice."""

from __future__ import annotations

import heapq
import inspect
import math
import random
from types import ModuleType
from typing import Any

import pytest

from streamfleet.worker.engine import server_limit
from streamfleet.worker.engine.server_limit import FIRST_PAUSE_S, LONGEST_PAUSE_S, ServerLimit

SOURCE = inspect.getsource(server_limit)
RUN_S, REFUSED_S, ROUND_S = 0.5, 0.005, 0.5
MOST = 64


@pytest.fixture
def limit() -> type[ServerLimit]:
    """The class under test; mutants have one of their own."""
    return ServerLimit


class Server:
    """A server that takes so many requests at once, and workers that send it as many as there are.

    Attributes:
        left: number of requests that wait.
        ended: time of the last answer.
        done: answers of each worker.
        refused: number of busy answers.
        values: limits of the workers, with the time, after each event.
    """

    def __init__(self, takes: int, limits: list[Any], seed: int = 1, left: float = math.inf) -> None:
        self.takes, self.limits, self._random = takes, limits, random.Random(seed)
        self.done, self.refused, self.now, self.ended, self.left = [0] * len(limits), 0, 0.0, 0.0, left
        self.values: list[tuple[float, list[int]]] = []
        self._inside = self._number = 0
        self._events: list[tuple[float, int, int, int, bool]] = []

    def run(self, until: float) -> Server:
        """Let time pass up to a moment."""
        self._send()
        while self._events and self._events[0][0] <= until:
            self.now, _, worker, sent, taken = heapq.heappop(self._events)
            limit = self.limits[worker]
            if taken:
                self._inside -= 1
                self.done[worker] += 1
                self.ended = self.now
                limit.answered(sent, self.now)
            else:
                self.refused += 1
                self.left += 1
                limit.busy(sent, self.now)
            limit.ended()
            self._send()
            self.values.append((self.now, [each.value for each in self.limits]))
        self.now = until
        return self

    def _send(self) -> None:
        for worker in self._random.sample(range(len(self.limits)), len(self.limits)):
            limit = self.limits[worker]
            while self.left and limit.running < limit.value and self.now >= limit.pause_until:
                taken = self._inside < self.takes
                self._inside += taken
                self.left -= 1
                run_s = RUN_S * self._random.uniform(0.8, 1.2) if taken else REFUSED_S
                self._number += 1
                heapq.heappush(self._events, (self.now + run_s, self._number, worker, limit.sent(), taken))


def reached(server: Server, least: int, most: int, after: float) -> float:
    """Seconds until the first worker's limit is in these bounds."""
    return next(moment - after for moment, values in server.values if moment >= after and least <= values[0] <= most)


def test_it_follows_a_server_down_and_up(limit: Any) -> None:
    server = Server(48, [limit(MOST)]).run(10)
    server.takes = 8
    server.run(20)
    assert reached(server, 1, 9, 10) <= 8 * ROUND_S
    server.takes = MOST
    server.run(40)
    assert reached(server, MOST, MOST, 20) <= 15
    assert all(1 <= values[0] <= MOST for _, values in server.values)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("takes", [8, 48])
@pytest.mark.parametrize("count", [1, 2])
def test_100_requests_take_at_most_1_3_times_as_long_as_with_the_limit_set_by_hand(
    count: int, takes: int, seed: int, limit: Any
) -> None:
    by_hand = Server(takes, [limit(takes // count) for _ in range(count)], seed, left=100).run(60)
    found = Server(takes, [limit(MOST) for _ in range(count)], seed, left=100).run(60)
    assert (sum(by_hand.done), by_hand.refused, sum(found.done)) == (100, 0, 100)
    assert found.ended <= 1.3 * by_hand.ended


@pytest.mark.parametrize("takes", [1, 8, 48])
def test_it_uses_most_of_the_server_and_is_seldom_refused(takes: int, limit: Any) -> None:
    server = Server(takes, [limit(MOST)]).run(10)
    done, refused = server.done[0], server.refused
    server.run(70)
    most = takes * 60 / RUN_S
    assert server.done[0] - done >= most / 1.3
    assert server.refused - refused < max(0.1 * most, 100)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("takes", [8, 48])
def test_workers_share_it(takes: int, seed: int, limit: Any) -> None:
    """Also with one that starts when the other has all."""
    server = Server(takes, [limit(MOST)], seed).run(20)
    server.limits.append(limit(MOST))
    server.done = [0, 0]
    server.run(80)
    assert max(server.done) < 2 * min(server.done)
    assert sum(server.done) >= takes * 60 / RUN_S / 1.3


def burst(limit: Any, count: int) -> None:
    """So many requests at once, all refused."""
    for sent in [limit.sent() for _ in range(count)]:
        limit.busy(sent, 0.0)
        limit.ended()


def rounds(limit: Any, count: int, now: float = 0.0, running: int | None = None) -> list[int]:
    """Limits after so many rounds without a busy answer."""
    found = []
    for _ in range(count):
        number = limit.value if running is None else running
        for _ in range(-(-limit.value // number)):
            for sent in [limit.sent() for _ in range(number)]:
                limit.answered(sent, now)
                limit.ended()
        found.append(limit.value)
    return found


def test_a_burst_cuts_it_once(limit: Any) -> None:
    made = limit(40)
    assert not made.limited
    burst(made, 40)
    assert (made.value, made.limited) == (28, True)


def test_it_is_at_least_1(limit: Any) -> None:
    made = limit(2)
    for _ in range(9):
        burst(made, 1)
    assert made.value == 1


def test_it_grows_by_1_up_to_where_the_server_was_busy_and_doubles_beyond(limit: Any) -> None:
    made = limit(10)
    burst(made, 1)
    made._most = 100
    assert rounds(made, 3) == [8, 9, 10]
    assert made.limited
    assert rounds(made, 6) == [11, 12, 14, 18, 26, 42]
    assert not made.limited


def test_after_an_absence_it_begins_at_1_and_doubles(limit: Any) -> None:
    made = limit(40)
    made.restart()
    assert not made.limited  # the server refused nothing
    assert [made.value, *rounds(made, 6)] == [1, 2, 4, 8, 16, 32, 40]


def test_it_does_not_grow_while_less_than_half_of_it_is_used(limit: Any) -> None:
    made = limit(100)
    burst(made, 1)
    assert rounds(made, 3, running=34) == [70, 70, 70]
    assert rounds(made, 3, running=35) == [71, 71, 71]


def test_answers_to_what_was_sent_before_a_cut_are_no_round(limit: Any) -> None:
    made = limit(10)
    before = [made.sent() for _ in range(10)]
    burst(made, 1)
    for sent in before:
        made.answered(sent, 0.0)
        made.ended()
    assert made.value == 7


def test_it_does_not_grow_while_the_server_wants_a_wait(limit: Any) -> None:
    made = limit(10)
    late = made.sent()
    made.busy(made.sent(), 0.0, 5.0)
    made.busy(late, 0.0, 3.0)  # of the same burst
    for _ in range(2):
        made.ended()
    assert rounds(made, 2, 4.9) == [7, 7]
    assert rounds(made, 1, 5.0) == [8]


def test_pauses_grow_while_the_only_request_is_refused(limit: Any) -> None:
    made, pauses = limit(1), []
    for _ in range(7):
        made.busy(made.sent(), 100.0)
        made.ended()
        pauses.append(made.pause_until - 100.0)
    assert pauses == [FIRST_PAUSE_S * 2**n for n in range(5)] + [LONGEST_PAUSE_S] * 2
    made.answered(made.sent(), 200.0)
    made.ended()
    assert made.pause_until == 0
    made.busy(made.sent(), 300.0)
    assert made.pause_until == 300.0 + FIRST_PAUSE_S


def test_only_a_refused_single_request_pauses(limit: Any) -> None:
    made = limit(8)
    burst(made, 8)
    assert made.pause_until == 0


MUTANTS = {
    "a burst counts once": ("        if sent != self._cuts:\n            return\n", "", test_a_burst_cuts_it_once),
    "at least 1": ("max(1.0, self._limit * CUT)", "self._limit * CUT", test_it_is_at_least_1),
    "at most the slots": (
        "min(float(self._most), self._limit + growth)",
        "self._limit + growth",
        test_it_follows_a_server_down_and_up,
    ),
    "doubling beyond": ("2 * growth if", "1 if", test_it_follows_a_server_down_and_up),
    "no doubling below": (
        " if self._limit > self._busy_at + 1 else 1",
        "",
        test_it_grows_by_1_up_to_where_the_server_was_busy_and_doubles_beyond,
    ),
    "slow start after an absence": (
        "        self._busy_at = 0.0\n        self._change(1.0)",
        "        self._change(1.0)",
        test_after_an_absence_it_begins_at_1_and_doubles,
    ),
    "only what is used": ("if not used or now", "if now", test_it_does_not_grow_while_less_than_half_of_it_is_used),
    "a round is sent after the cut": (
        "self._answers += sent == self._cuts",
        "self._answers += 1",
        test_answers_to_what_was_sent_before_a_cut_are_no_round,
    ),
    "Retry-After stops growth": (
        "not used or now < self.still_until",
        "not used",
        test_it_does_not_grow_while_the_server_wants_a_wait,
    ),
    "the longest wait counts": (
        "max(self.still_until, now + wait_s)",
        "now + wait_s",
        test_it_does_not_grow_while_the_server_wants_a_wait,
    ),
    "pauses at 1 alone": ("if self.value == 1:", "if True:", test_only_a_refused_single_request_pauses),
    "pauses at 1": ("if self.value == 1:", "if False:", test_pauses_grow_while_the_only_request_is_refused),
    "pauses have an end": (
        "min(LONGEST_PAUSE_S, max",
        "max(0.0, max",
        test_pauses_grow_while_the_only_request_is_refused,
    ),
    "an answer ends the pauses": (
        "        self._pause_s = self.pause_until = 0.0\n        self._answers",
        "        self._answers",
        test_pauses_grow_while_the_only_request_is_refused,
    ),
}


@pytest.mark.parametrize("guard", MUTANTS)
def test_a_guard_taken_out_is_noticed(guard: str) -> None:
    old, new, test = MUTANTS[guard]
    assert SOURCE.count(old) == 1, f"{old!r} is not the guard any more: change this mutant along with it"
    module = ModuleType("limit_without_a_guard")
    exec(compile(SOURCE.replace(old, new), module.__name__, "exec"), module.__dict__)  # noqa: S102 - our own
    with pytest.raises((AssertionError, StopIteration)):
        test(limit=module.ServerLimit)
