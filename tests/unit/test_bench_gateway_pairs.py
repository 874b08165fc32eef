"""bench.gateway: two ways asked in pairs, and what is made of the pairs."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import count, pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench.core.reports import Report, Target
from bench.engine.batch import Batch, OtherWork, Row
from bench.engine.served import Served, served
from bench.engine.setup import EngineSetup
from bench.engine.work import Body
from bench.gateway import asking, tables
from bench.gateway.asking import ask, in_pairs
from bench.gateway.beside import EXECUTOR, ONE_PROCESS, sharing
from bench.gateway.figures import DIRECT, FIRST, GATEWAY, WHOLE, Found
from bench.gateway.work import Work

WORK = Work(batch=3, batch_tokens=4, singles=40, single_tokens=2, warm_up=1)


class Way(Served):
    """Answers in no time, and says that it took long: of a single request, what `single` says of its number.

    Attributes:
        asked: of all ways, in order: which, how many requests, streamed.
    """

    def __init__(self, name: str, asked: list[tuple[str, int, bool]], single: Callable[[int], float]) -> None:
        super().__init__("http://127.0.0.1", os.getpid())
        self.name, self.asked, self._single, self._numbers = name, asked, single, count()
        self.missing_tokens = 0

    async def run(self, asked: Sequence[Body], *, stream: bool = False, in_turn: bool = False) -> Batch:  # noqa: ARG002 - the signature is Served's
        self.asked.append((self.name, len(asked), stream))
        rows = [self._row(body, stream) for body in asked]
        return Batch(rows, 1.0, 0.01)

    def _row(self, body: Body, stream: bool) -> Row:
        took_ms = self._single(next(self._numbers))
        tokens = body["max_tokens"] - self.missing_tokens
        return Row(5, tokens, took_ms / 10 if stream else None, None, took_ms)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PAUSE_S", 0)


def two_ways(added_ms: float) -> dict[str, Way]:
    """An engine that gets slower with every request, and a gateway that adds to it."""
    asked: list[tuple[str, int, bool]] = []
    return {
        DIRECT: Way(DIRECT, asked, lambda number: 100.0 + 7 * number),
        GATEWAY: Way(GATEWAY, asked, lambda number: 100.0 + 7 * number + added_ms),
    }


def found_of(ways: dict[str, Way], rounds: int = 2) -> Found:
    """Returns the findings of asking them."""
    return asyncio.run(ask(ways, WORK, rounds))


def test_what_is_added_is_that_of_the_pairs() -> None:
    found = found_of(two_ways(3.0))
    assert found.pairs[WHOLE] == pytest.approx([3.0] * 80)
    assert found.pairs[FIRST] == pytest.approx([0.3] * 80)
    for sample in found.samples[GATEWAY]:
        assert (sample["added_whole_ms"], sample["added_first_ms"]) == pytest.approx((3.0, 0.3))
    assert {name: len(samples) for name, samples in found.samples.items()} == {DIRECT: 2, GATEWAY: 2}
    assert found.samples[GATEWAY][0]["whole_ms_p50"] > found.samples[DIRECT][0]["whole_ms_p50"]


def test_each_request_goes_both_ways_before_the_next_in_mixed_order() -> None:
    ways = two_ways(0.0)
    asyncio.run(in_pairs(ways, WORK.alone(), random.Random(1), stream=False))
    asked = [name for name, _, _ in ways[DIRECT].asked]
    firsts, seconds = asked[::2], asked[1::2]
    assert all(first != second for first, second in zip(firsts, seconds, strict=True))
    assert 10 < firsts.count(GATEWAY) < 30
    assert any(one != two for one, two in pairwise(firsts))


def test_what_a_request_left_to_do_takes_no_time_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = two_ways(0.0)
    asked = ways[DIRECT].asked
    before: list[tuple[float, int]] = []

    async def pause(seconds: float) -> None:
        before.append((seconds, len(asked)))

    monkeypatch.setattr(asking, "PAUSE_S", 0.05)
    monkeypatch.setattr("bench.gateway.asking.asyncio.sleep", pause)
    asyncio.run(in_pairs(ways, WORK.alone(), random.Random(1), stream=False))
    assert before == [(0.05, number) for number in range(len(asked) + 1)], "one before each, and one behind the last"


def test_a_round_is_a_batch_each_way_then_whole_then_streamed() -> None:
    ways = two_ways(0.0)
    found_of(ways, rounds=1)
    warm, rest = ways[DIRECT].asked[:4], ways[DIRECT].asked[4:]
    assert {number for _, number, _ in warm} == {1}
    assert sorted(rest[:2]) == [(DIRECT, 3, False), (GATEWAY, 3, False)]
    assert [(number, stream) for _, number, stream in rest[2:]] == [(1, False)] * 80 + [(1, True)] * 80


def test_answers_of_another_length_are_found_out() -> None:
    ways = two_ways(0.0)
    ways[GATEWAY].missing_tokens = 1
    with pytest.raises(OtherWork):
        asyncio.run(in_pairs(ways, WORK.alone(), random.Random(1), stream=False))
    with pytest.raises(OtherWork):
        found_of(ways)


@pytest.mark.parametrize("add", [tables.add_turns, tables.add_beside], ids=["turns", "beside"])
def test_targets_are_held_against_the_rounds_pairs(add: Callable[[Report, Found], None], tmp_path: Path) -> None:
    def whole_and_first(added_ms: float) -> tuple[Target, Target]:
        report = Report("gateway", "2026-01-01", {}, {})
        add(report, found_of(two_ways(added_ms)))
        report.save(tmp_path)
        _, added = report.tables
        assert [row["pairs"] for row in added.rows] == [80, 80]
        assert [row["p50 ms"] for row in added.rows] == pytest.approx([added_ms, added_ms / 10])
        return report.targets[1], report.targets[2]

    whole, first = whole_and_first(4.9)
    assert whole.name.startswith("added to a short answer, p50; ")
    assert first.name.startswith("added to the first streamed token, p50; ")
    assert (whole.holds, first.holds) == (True, True)
    assert [target.holds for target in whole_and_first(5.1)] == [False, True]


def test_two_engines_do_not_disturb_each_other() -> None:
    assert sharing(EngineSetup(Path(), ("--seed", "1"), cpu=True)).given == ("--seed", "1", *EXECUTOR)


def test_both_contenders_get_the_variables_of_their_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, str]] = []

    @contextmanager
    def started(_: Sequence[str], *, talks: bool, environment: Mapping[str, str]) -> Iterator[Mock]:
        assert not talks
        given.append(environment)
        yield Mock(pid=os.getpid())

    # By its full name it is the function: the package names that too.
    monkeypatch.setattr(import_module("bench.engine.served"), "started", started)
    setup = sharing(EngineSetup(Path(), (), cpu=True))
    with served(setup):
        assert given[0].items() >= (os.environ | ONE_PROCESS).items()
    assert setup.environment == ONE_PROCESS
    assert setup.worker_environment().items() >= ONE_PROCESS.items()
