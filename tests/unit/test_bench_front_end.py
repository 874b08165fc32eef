"""bench.front_end's judgements, and its switch between the ways of a worker's engine."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.core.reports import Report
from bench.core.rounds import Sample
from bench.front_end.tables import RENDERING, WHOLE, fill, key, paced
from bench.front_end.ways import ASGI, BARE, ENGINE, SERVE, Sizes, goes_directly, switch_off

SIZES = Sizes(rounds=1, at_once=(256, 1024), streamed_at_once=(256,))


def sample(us: float, first_ms: float = 40.0) -> Sample:
    cores = {"core_first_ms": first_ms, "core_median_ms": 500.0, "core_last_ms": 900.0}
    return {"main_us": us, "process_us": us + 100, "first_token_ms": 50.0, "wall_s": 4.0, **cores}


def filled(*ways: str, engine_us: float = 800.0) -> Report:
    """A report of some ways."""
    us = {BARE: 900.0, ENGINE: engine_us, ASGI: 1200.0, SERVE: 1100.0, WHOLE[ENGINE]: 1000.0, WHOLE[ASGI]: 1400.0}
    samples: dict[str, list[Sample]] = {RENDERING: [{"main_us": 150.0}]}
    for way in ways:
        for streamed in (False, True):
            for count in SIZES.at_once:
                samples[key(way, count, 64, streamed)] = [sample(us[way], 400.0 if way == ASGI else 40.0)]
    report = Report("front_end", "2026-01-31", {}, {})
    fill(report, samples, SIZES)
    return report


def test_a_worker_is_judged_beside_bare_and_by_what_it_costs_over_asgi() -> None:
    report = filled(BARE, ENGINE, ASGI, SERVE, *WHOLE.values())
    assert all(target.holds for target in report.targets)
    assert [target.value for target in report.targets] == pytest.approx([8 / 9, 8 / 9, 1.1, 1.1, 1.1, 0.1])
    assert [target.limit for target in report.targets] == [1.03, 1.03, 1.2, 1.2, 2.0, 0.2]
    assert not filled(BARE, ENGINE, SERVE, WHOLE[ENGINE], engine_us=930.0).targets[0].holds
    bursts, parts, whole = report.tables
    assert [row["at once"] for row in bursts.rows] == [256] * 4 + [1024] * 4 + [256] * 4
    assert [row["CPU µs a request"] for row in parts.rows] == pytest.approx([150, 750, 200, -100, 200])
    assert [row["to bare"] for row in whole.rows] == pytest.approx([1.1, 1.5] * 3)


def test_paced_streams_are_judged_by_the_time_that_their_tokens_should_take() -> None:
    report, sizes = Report("front_end", "2026-01-31", {}, {}), replace(SIZES, paced=100, paced_tokens=20)
    paced(report, [sample(8_900.0)], sizes)
    assert report.tables[0].rows[0]["of a core"] == pytest.approx(0.9)
    assert report.targets[0].value == pytest.approx(0.9)
    assert not report.targets[0].holds


def test_without_direct_calls_the_first_in_the_core_is_not_judged() -> None:
    first = filled(BARE, ENGINE, SERVE, WHOLE[ENGINE]).targets[-1]
    assert (first.value, first.holds, first.note) == (None, False, "the engine makes no direct calls")


class Vllm:
    """As much of vLLM's engine and renderer as the switch touches: their classes have vLLM's own methods."""

    def generate(self) -> str:
        return "vLLM's"

    render_chat_async = generate


class Envs(SimpleNamespace):
    """`vllm.envs`, whose look-ups are cached or not."""

    __getattr__: Any

    def enable_envs_cache(self) -> None:
        self.__getattr__ = SimpleNamespace(cache_clear=None)

    def disable_envs_cache(self) -> None:
        self.__getattr__ = None


def test_all_goes_over_asgi_until_it_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = Envs()
    envs.enable_envs_cache()
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    llm: Any = Vllm()
    llm.renderer, llm.generate = Vllm(), lambda: "tapped"
    llm.renderer.render_chat_async = lambda: "in the loop"
    engine = SimpleNamespace(_direct="direct", _hosted=SimpleNamespace(engine=llm))

    def state() -> tuple[object, ...]:
        cached = envs.__getattr__ is not None
        return goes_directly(engine), cached, llm.renderer.render_chat_async(), llm.generate()

    before = state()
    assert before == (True, True, "in the loop", "tapped")
    put_back = switch_off(engine)
    assert state() == (False, False, "vLLM's", "tapped")
    put_back()
    assert state() == before
    put_back = switch_off(engine, tap=True)
    assert state() == (False, False, "vLLM's", "vLLM's")
    put_back()
    assert state() == before
