"""bench.gpu's pieces on a real worker behind a real gateway, at their smallest, with the simulated engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gateway.many import Load
from bench.gateway.stage import staged
from bench.gpu.pieces import ANSWERS, DRY_SIZES, KILL, STREAMS, WORKER, Killable, pieces, speed_of
from streamfleet.cli.demo.model import MODEL_NAME

SIZES = replace(
    DRY_SIZES,
    at_once=(2, 6),
    tokens=4,
    load=Load(8, tokens_per_s=10, tokens=6, workers=1, over_s=0.1, model=MODEL_NAME),
)


@pytest.mark.kill
@pytest.mark.timeout(120)
def test_the_pieces_of_the_worker() -> None:
    with staged({"STREAMFLEET_ENGINE": "simulated"}, module="tests.integration.simulated_smollm2") as stage:
        found = {each.name: each.measure(Killable(stage, None)) for each in pieces(SIZES) if each.engine == WORKER}
    assert list(found) == [ANSWERS, speed_of(WORKER), STREAMS, KILL]
    assert (found[ANSWERS]["asked"], found[ANSWERS]["answered"]) == (4, 4)
    speeds = found[speed_of(WORKER)]["at_once"]
    assert {count: each[0]["output_tokens"] for count, each in speeds.items()} == {"2": 8, "6": 24}
    assert all(each[0]["tokens_per_s"] > 0 for each in speeds.values())
    assert (found[STREAMS]["streams"], found[STREAMS]["whole"]) == (8, 8)
    assert found[KILL]["left"] == 0
