"""bench.gpu's pieces on a real worker behind a real gateway, at their smallest, with the simulated engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.engine.work import Body, bodies
from bench.gateway.many import MODEL, Load
from bench.gateway.stage import staged
from bench.gpu.pieces import ANSWERS, DRY_SIZES, KILL, ROUND, STREAMS, WORKER, Killable, batch_sizes, pieces, speed_of
from streamfleet.cli.demo.model import MODEL_NAME
from tests.integration.simulated_smollm2 import served

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]
SIZES = replace(
    DRY_SIZES,
    at_once=(2, 6),
    tokens=4,
    load=Load(8, tokens_per_s=10, tokens=6, workers=1, over_s=0.1, model=MODEL_NAME),
)


@pytest.mark.kill
def test_the_pieces_of_the_worker() -> None:
    with staged({"STREAMFLEET_ENGINE": "simulated"}, module="tests.integration.simulated_smollm2") as stage:
        found = {each.name: each.measure(Killable(stage, None)) for each in pieces(SIZES) if each.engine == WORKER}
    assert list(found) == [ANSWERS, speed_of(WORKER), speed_of(ROUND), STREAMS, KILL]
    assert (found[ANSWERS]["asked"], found[ANSWERS]["answered"]) == (4, 4)
    speeds = found[speed_of(WORKER)]["at_once"]
    assert {count: each[0]["output_tokens"] for count, each in speeds.items()} == {"2": 8, "6": 24}
    assert all(each[0]["tokens_per_s"] > 0 for each in speeds.values())
    assert (found[STREAMS]["streams"], found[STREAMS]["whole"]) == (8, 8)
    assert (found[KILL]["processes"], found[KILL]["left"]) == (1, 0)


def test_batch_sizes_with_the_utilisation_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 40\necho 60\nexec sleep 100\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("bench.gpu.pieces.bodies", named)
    with served() as server:
        found = batch_sizes(server, replace(SIZES, tokens=40, batches={1: 2, 3: 6}))["sizes"]
    assert list(found) == ["1", "3"]
    assert found["1"]["running"] < 1.5 < found["3"]["running"] < 3.5  # one may come while the last still leaves
    assert [each["utilisation"] for each in found.values()] == [50, 50]


def named(count: int, tokens: int, seed: int, words: Sequence[int]) -> list[Body]:
    """Bodies that name the model of the simulated engine."""
    return [{**body, "model": MODEL} for body in bodies(count, tokens, seed, words)]
