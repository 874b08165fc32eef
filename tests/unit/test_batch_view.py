"""Display of a batch's progress."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from streamfleet.cli.requests.batch_view import BatchView, Pace, describe
from streamfleet.producer.batch import Progress
from tests.clocks import HandClock


def progress(done: int, failed: int = 0, total: int = 100, lane_full: bool = False) -> Progress:
    return Progress(total, done - failed, failed, 0, 7, lane_full)


def test_pace_is_that_of_the_last_half_minute() -> None:
    pace = Pace(0.0, 50)
    assert pace.per_second == 0.0
    assert pace.left_s(10) is None
    pace.record(10.0, 150)
    assert pace.per_second == 10.0
    assert pace.left_s(20) == 2.0
    for second in range(11, 61):
        pace.record(float(second), 150 + second)
    assert abs(pace.per_second - 1.0) < 0.01


def test_a_line_says_it_all() -> None:
    pace = Pace(0.0, 0)
    pace.record(10.0, 20)
    assert describe(progress(20, failed=3), pace) == "20/100 done, 3 failed, 2.0/s, about 40 s left"
    assert describe(progress(100), pace) == "100/100 done, 0 failed, 2.0/s"
    assert "waiting for room" in describe(progress(20, lane_full=True), pace)


def test_without_a_terminal_there_is_a_line_every_ten_seconds() -> None:
    clock, written = HandClock(), StringIO()
    with BatchView(Console(file=written), clock) as view:
        for done in range(25):
            view.show(progress(done))
            clock.seconds += 1
    lines = written.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["batch: 10/100 done", "batch: 20/100 done"]
    assert view.latest == progress(24)


def test_on_a_terminal_there_is_a_bar() -> None:
    clock, written = HandClock(), StringIO()
    with BatchView(Console(file=written, force_terminal=True, width=120), clock) as view:
        view.show(progress(0))
        clock.seconds += 10
        view.show(progress(20, failed=3))
    assert "20/100" in written.getvalue()
    assert "3 failed, 2.0/s, about 40 s left" in written.getvalue()
