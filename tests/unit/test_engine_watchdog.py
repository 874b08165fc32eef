"""Hung, busy or idle: told from requests inside and steps seen, in a time that the test makes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamfleet.worker.engine.watchdog import StepLogger, Watchdog
from tests.clocks import HandClock


@pytest.fixture
def time() -> HandClock:
    return HandClock()


@pytest.fixture
def watchdog(time: HandClock) -> Watchdog:
    return Watchdog(10, time.monotonic)


def pass_(time: HandClock, watchdog: Watchdog, seconds: float) -> str | None:
    """Let time pass as the monitor sees it: with a check every half second."""
    reason = None
    for _ in range(round(seconds * 2)):
        time.seconds += 0.5
        reason = reason or watchdog.check()
    return reason


def test_an_idle_engine_is_never_hung(time: HandClock, watchdog: Watchdog) -> None:
    assert pass_(time, watchdog, 1000) is None


def test_a_busy_engine_that_steps_is_not_hung(time: HandClock, watchdog: Watchdog) -> None:
    watchdog.entered()
    for _ in range(100):
        assert pass_(time, watchdog, 9) is None
        watchdog.stepped()


def test_requests_inside_and_no_step_is_a_hang(time: HandClock, watchdog: Watchdog) -> None:
    watchdog.entered()
    watchdog.entered()
    assert pass_(time, watchdog, 9.5) is None
    assert pass_(time, watchdog, 1) == "the engine hangs: 2 requests inside and no step for 10.0 s"


def test_time_counts_from_the_first_request_after_idling(time: HandClock, watchdog: Watchdog) -> None:
    assert pass_(time, watchdog, 100) is None
    watchdog.entered()
    assert pass_(time, watchdog, 9.5) is None
    assert pass_(time, watchdog, 1) is not None


def test_a_later_request_does_not_hide_a_hang(time: HandClock, watchdog: Watchdog) -> None:
    watchdog.entered()
    assert pass_(time, watchdog, 9) is None
    watchdog.entered()
    assert pass_(time, watchdog, 1.5) is not None


def test_the_hang_ends_with_the_requests(time: HandClock, watchdog: Watchdog) -> None:
    watchdog.entered()
    watchdog.left()
    assert watchdog.inside == 0
    assert pass_(time, watchdog, 100) is None


def test_time_in_which_nobody_looked_is_not_the_engines(time: HandClock, watchdog: Watchdog) -> None:
    """A suspended machine: the steps of that time wait to be read."""
    watchdog.entered()
    assert pass_(time, watchdog, 5) is None
    time.seconds += 3600
    assert watchdog.check() is None
    assert pass_(time, watchdog, 2) is None
    assert pass_(time, watchdog, 2) is not None


def test_every_step_that_vllm_reports_counts(time: HandClock, watchdog: Watchdog) -> None:
    logger = StepLogger(watchdog)
    logger.log_engine_initialized()
    watchdog.entered()
    for _ in range(10):
        assert pass_(time, watchdog, 9) is None
        logger.record(None, None, mm_cache_stats=None, engine_idx=0)
        logger.log()


def test_use_of_the_kv_cache_is_that_of_the_last_step_that_told_it(watchdog: Watchdog) -> None:
    logger = StepLogger(watchdog)
    seen = [logger.kv_use]
    for stats in (SimpleNamespace(kv_cache_usage=0.25), None, SimpleNamespace()):
        logger.record(stats, None, mm_cache_stats=None, engine_idx=0)
        seen.append(logger.kv_use)
    logger.record(scheduler_stats=SimpleNamespace(kv_cache_usage=0.5), iteration_stats=None)
    assert [*seen, logger.kv_use] == [None, 0.25, 0.25, 0.25, 0.5]


@pytest.mark.parametrize("limit_s", [0, -1])
def test_a_limit_must_be_positive(time: HandClock, limit_s: float) -> None:
    with pytest.raises(ValueError, match="watchdog_s must be more than 0"):
        Watchdog(limit_s, time.monotonic)


def test_the_time_of_a_token_is_a_mean_of_the_last_steps_whatever_core_made_them(watchdog: Watchdog) -> None:
    steps = StepLogger(watchdog)
    steps.record(None, None)
    steps.record(iteration_stats=SimpleNamespace(inter_token_latencies_iter=[]))
    assert steps.token_s == 0, "no request had a token before"
    steps.record(iteration_stats=SimpleNamespace(inter_token_latencies_iter=[0.01, 0.03]), engine_idx=0)
    assert steps.token_s == pytest.approx(0.02)
    for core in range(200):
        steps.record(iteration_stats=SimpleNamespace(inter_token_latencies_iter=[0.04]), engine_idx=core % 2)
    assert steps.token_s == pytest.approx(0.04, rel=0.001)
