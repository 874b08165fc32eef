"""bench.gateway's two comparisons, at their smallest, with the simulated engine."""

from __future__ import annotations

import pytest

from bench.gateway.beside import behind, by_turns, side_by_side
from bench.gateway.figures import DIRECT, FIRST, GATEWAY, WHOLE, Found
from bench.gateway.many import MODEL
from bench.gateway.work import Work
from tests.integration.simulated_smollm2 import served

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]

WORK = Work(batch=4, batch_tokens=6, singles=6, single_tokens=3, warm_up=1, model=MODEL)


def test_one_server_is_asked_both_ways_by_turns() -> None:
    check(by_turns(served, WORK, 2))


def test_two_engines_are_asked_side_by_side() -> None:
    starts = {DIRECT: served, GATEWAY: lambda: behind({"STREAMFLEET_ENGINE": "simulated"})}
    check(side_by_side(starts, WORK, 2))


def check(found: Found) -> None:
    """Both ways were asked the same, so often as was said."""
    assert {name: len(samples) for name, samples in found.samples.items()} == {DIRECT: 2, GATEWAY: 2}
    assert {name: len(pairs) for name, pairs in found.pairs.items()} == {WHOLE: 12, FIRST: 12}
    for samples in found.samples.values():
        for sample in samples:
            assert min(sample["tokens_per_s"], sample["whole_ms_p50"], sample["first_ms_p50"]) > 0
