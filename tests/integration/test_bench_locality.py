"""bench.locality with worker processes: the conversations for real vLLM, here on the simulated engine."""

from __future__ import annotations

import pytest

from bench.locality import PARTS, real

pytestmark = pytest.mark.timeout(120)
ENGINE = {
    "STREAMFLEET_ENGINE": "simulated",
    "STREAMFLEET_SIMULATED_PROFILE": "smollm2-cpu",
    "STREAMFLEET_SIMULATED_SPEED": 40,
}


def test_conversations_find_more_of_their_prompts_where_sessions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PAUSE_S": 0.2, "CONVERSATIONS": 6, "TURNS": 4}.items():
        monkeypatch.setattr(real, name, value)
    sessions, today = (real.run(name, ENGINE) for name in (real.SESSIONS, real.TODAY))
    assert sessions["cached, %"] > 1.1 * today["cached, %"] > 0
    assert PARTS["vllm"] is real.measure
