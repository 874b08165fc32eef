"""Hostile bodies among good ones, with real vLLM: the short form of `python -m tests.hostile`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.__main__ import SETTINGS
from tests.hostile.catalogue import FAMILIES
from tests.hostile.report import table
from tests.hostile.run import GOOD, plan, play
from tests.hostile.scene import scene

pytestmark = [pytest.mark.needs_vllm, pytest.mark.timeout(480)]

# These take as long as they are allowed to, which is longer than this test has.
_PATIENT = {"long_answers", "long_prompts"}


async def test_every_hostile_body_has_its_end_and_every_good_one_its_answer(
    redis_url: str, smollm2: Path, tmp_path: Path
) -> None:
    families = tuple(name for name in FAMILIES if name not in _PATIENT)
    planned = plan(40, 2 * len(families), rate=4.0, seed=7, families=families)
    async with scene(redis_url, smollm2, tmp_path / "worker.log", SETTINGS) as running:
        ended = await play(running, planned, within_s=60, tell=print)
        assert running.alive, running.log.read_text(errors="replace")[-3_000:]
    shown = "\n".join(table(ended))
    assert None not in ended.values(), shown
    assert {end.status for end in ended.values() if end and end.family == GOOD} == {"succeeded"}, shown
    # A body is at fault for what became of it: an engine that breaks on one is something to close.
    assert not [end for end in ended.values() if end and end.status == "failed" and end.http_status >= 500], shown
