"""bench.gateway's comparison by turns, at its smallest, with the simulated engine."""

from __future__ import annotations

from bench.gateway import beside, by_turns
from bench.gateway.beside import DIRECT, GATEWAY, Work
from bench.gateway.many import MODEL


def test_both_ways_are_asked_the_same_by_turns() -> None:
    work = Work(batch=4, batch_tokens=6, singles=by_turns.BLOCK + 1, single_tokens=3, warm_up=1)
    samples = by_turns.measure(beside.simulated()[DIRECT], work, 2, MODEL)
    assert {name: len(found) for name, found in samples.items()} == {DIRECT: 2, GATEWAY: 2}
    for found in samples.values():
        for sample in found:
            assert min(sample["tokens_per_s"], sample["whole_ms_p50"], sample["first_ms_p50"]) > 0
