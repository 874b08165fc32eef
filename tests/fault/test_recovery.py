"""The short form of `python -m tests.fault.recovery`: one round of each way in which a worker can go."""

from __future__ import annotations

import random

import pytest

from tests.fault.recovery import missed, parse
from tests.fault.recovery_rounds import GOES_ON, RUNNING, WAITING, Measured, Pair, Way, killed
from tests.integration.worker_process import Fleet

pytestmark = [pytest.mark.kill, pytest.mark.timeout(150)]


async def one_round(fleet: Fleet, way: Way) -> Measured:
    return Measured(way, [await Pair(fleet, way, random.Random(1)).round()])


async def test_after_sigkill_another_worker_has_it_within_the_lease_and_two_seconds(fleet: Fleet) -> None:
    """In two rounds, of three where one misses it: a machine may stall."""
    way = killed(lease_ms=2_000)
    pair = Pair(fleet, way, random.Random(1))
    problems = [missed(Measured(way, [await pair.round()])) for _ in range(2)]
    if problems != [None, None]:
        problems.append(missed(Measured(way, [await pair.round()])))
    assert problems.count(None) >= 2, problems


@pytest.mark.parametrize("way", [WAITING, RUNNING, GOES_ON], ids=["waiting", "running", "goes on"])
async def test_after_sigterm_another_worker_has_it_without_waiting_for_a_lease(fleet: Fleet, way: Way) -> None:
    measured = await one_round(fleet, way)
    assert measured.median_s * 1000 < way.settings["lease_ms"] / 4  # 15 s: a busy machine, not a lease that ran out


def test_what_a_measurement_says_of_the_promises() -> None:
    assert missed(Measured(killed(2_000), [1.0, 3.9])) is None
    assert "4.10 s" in str(missed(Measured(killed(2_000), [1.0, 4.1])))
    assert missed(Measured(GOES_ON, [0.1, 1.9])) is None
    assert "2.10 s" in str(missed(Measured(GOES_ON, [0.1, 2.1])))
    assert missed(Measured(RUNNING, [0.05, 0.09, 3.0])) is None
    assert "200 ms" in str(missed(Measured(RUNNING, [0.05, 0.2, 0.3])))
    assert Measured(RUNNING, [0.2, 0.1, 0.3]).line().endswith("rounds=3 min=100ms median=200ms p95=300ms max=300ms")


def test_the_command_line_measures_what_is_promised() -> None:
    options = parse([])
    assert (options.rounds, options.leases) == (20, "2000,10000")
