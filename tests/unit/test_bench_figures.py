"""Figures of `streamfleet bench`, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamfleet.cli.requests.bench_load import Answer, client_limit, draw, render, step_of


def answers(totals_ms: Sequence[float], tokens: int | None = 10) -> list[Answer]:
    """Answers of one sender, each begun when the one before had ended; first tokens after a tenth of the time."""
    found, now_s = [], 100.0
    for total_ms in totals_ms:
        found.append(Answer(now_s, now_s + total_ms / 10_000, now_s + total_ms / 1000, tokens, total_ms / 2000))
        now_s += total_ms / 1000
    return found


def shown(*steps: Any, width: int = 200) -> str:
    written = StringIO()
    Console(file=written, width=width).print(render(steps))
    return written.getvalue()


def test_percentiles_are_those_of_nearest_rank() -> None:
    # Of 1 to 200 ms, in any order: 100, 190 and 198 ms are not exceeded by 50, 95 and 99 %.
    step = step_of(1, answers([*range(200, 0, -2), *range(1, 201, 2)]), None, 0.1, [0.001] * 95 + [0.2] * 5)
    assert [round(step[name], 6) for name in ("p50_ms", "p95_ms", "p99_ms")] == [100, 190, 198]
    first = [round(step[f"first_token_{name}_ms"], 6) for name in ("p50", "p95", "p99")]
    assert first == [10, 19, 19.8]
    assert step["requests"] == 200
    assert step["seconds"] == pytest.approx(20.1)
    assert step["requests_per_s"] == pytest.approx(200 / 20.1)
    assert step["tokens_per_s"] == pytest.approx(2000 / 20.1)
    assert step["in_engine"] == pytest.approx(0.5), "half of each answer's time, one after the other"
    assert step["client_late_ms"] == pytest.approx(1), "95 of 100 moments"


def test_a_single_answer_is_every_percentile() -> None:
    step = step_of(1, answers([40]), None, 0.1, [])
    assert [step[name] for name in ("p50_ms", "p95_ms", "p99_ms")] == pytest.approx([40] * 3)


def test_what_is_not_known_is_no_figure_and_no_column() -> None:
    some = [Answer(0.0, None, 1.0, None), Answer(0.0, None, 2.0, 7)]
    step = step_of(2, some, None, 0.1, [0.0])
    unknown = {"tokens_per_s", "first_token_p50_ms", "first_token_p95_ms", "first_token_p99_ms", "in_engine"}
    assert {name for name, value in step.items() if value is None} == unknown | {"gpu_percent", "client_limit"}
    text = shown(step)
    assert "requests/s" in text
    assert not any(word in text for word in ("tokens/s", "first", "in engine", "GPU"))
    assert "GPU %" in shown(step, {**step, "gpu_percent": 81.0})


@pytest.mark.parametrize(
    ("cpu_percent", "late_ms", "why"),
    [(89.9, 49.9, None), (90.0, 0.0, "it used 90 % of a core"), (20.0, 50.0, "its event loop was 50 ms late")],
)
def test_the_client_is_the_limit_with_a_full_core_or_a_late_event_loop(
    cpu_percent: float, late_ms: float, why: str | None
) -> None:
    assert client_limit(cpu_percent, late_ms) == why
    text = shown(step_of(8, answers([40]), None, cpu_percent / 100, [late_ms / 1000]))
    assert (f"8 at once: this client was the limit ({why})" in text) == (why is not None)


def test_the_picture_is_an_svg_whatever_is_known(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    steps = [step_of(at_once, answers([40, 50], None), None, 0.1, [0.0]) for at_once in (1, 8)]
    draw(steps, tmp_path / "a.svg")
    assert "requests at once" in (tmp_path / "a.svg").read_text(encoding="utf-8")
