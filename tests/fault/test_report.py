"""The last line: figures in order, and several runs added up."""

from __future__ import annotations

from tests.fault.report import Figures


def figures(server: str, accepted: int, executions: int) -> Figures:
    counted = {
        "accepted": accepted,
        "terminal": accepted,
        "lost": 0,
        "duplicate_results": 0,
        "violations": 0,
        "kills": 3,
    }
    return Figures(counted, executions, accepted, 7, (server,))


def test_the_line_begins_with_what_counts() -> None:
    line = figures("redis-8.2", 10, 11).line()
    assert line == (
        "accepted=10 terminal=10 lost=0 duplicate_results=0 executions_per_request=1.100 violations=0 kills=3"
        " servers=redis-8.2 seed=7"
    )


def test_runs_add_up() -> None:
    both = figures("redis-8.2", 10, 11) + figures("valkey-9.1", 30, 33)
    assert both.line().startswith("accepted=40 terminal=40 lost=0 duplicate_results=0 executions_per_request=1.100")
    assert both.line().endswith("kills=6 servers=redis-8.2,valkey-9.1 seed=7")


def test_a_run_in_which_nothing_ran_has_a_line_too() -> None:
    assert "executions_per_request=0.000" in figures("redis-7.0", 0, 0).line()
