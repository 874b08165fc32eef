"""Gateways' metrics of batches and streams: how long nothing moved, and what counts as what."""

from __future__ import annotations

import pytest

from streamfleet.gateway import metrics
from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.batches.service import Progress, status_label
from streamfleet.gateway.broker.batches import OpenBatch


def value(sample: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(sample, labels) or 0.0


def batch(name: str, done: int, *, begun: bool = True) -> OpenBatch:
    return OpenBatch(name, "in_progress" if begun else "validating", begun, (b"in_progress", str(done).encode()))


def test_no_batch_stands_still_where_there_is_none() -> None:
    progress = Progress()
    assert progress.stalled_s([], 1_000.0) == 0
    assert progress.stalled_s([], 2_000.0) == 0


def test_the_batch_counts_that_stood_still_for_longest() -> None:
    progress = Progress()
    assert progress.stalled_s([batch("a", 0)], 100.0) == 0, "what was before, nobody knows"
    assert progress.stalled_s([batch("a", 0), batch("b", 0)], 110.0) == 10
    assert progress.stalled_s([batch("a", 0), batch("b", 1)], 120.0) == 20
    assert progress.stalled_s([batch("a", 1), batch("b", 1)], 130.0) == 10, "a got further now, b ten seconds ago"
    assert progress.stalled_s([batch("b", 1)], 140.0) == 20, "a has ended; b is where it was"


def test_another_gateway_that_takes_a_batch_is_no_progress() -> None:
    """Its epoch is not among what is compared: a batch that goes from hand to hand stands still."""
    progress = Progress()
    before = batch("a", 0)
    assert progress.stalled_s([before], 0.0) == 0
    assert progress.stalled_s([before._replace(begun=True)], 60.0) == 60


def test_a_batch_that_waits_its_turn_counts_only_while_nothing_moves() -> None:
    progress = Progress()
    waiting = batch("w", 0, begun=False)
    assert progress.stalled_s([batch("a", 0), waiting], 0.0) == 0
    for now_s in range(10, 100, 10):
        assert progress.stalled_s([batch("a", now_s), waiting], float(now_s)) == 0
    assert progress.stalled_s([waiting], 100.0) == 0, "one ended"
    assert progress.stalled_s([waiting], 150.0) == 50, "and nobody takes it"


def test_what_ended_is_forgotten() -> None:
    progress = Progress()
    progress.stalled_s([batch("a", 0)], 0.0)
    progress.stalled_s([], 50.0)
    assert progress.stalled_s([batch("a", 0)], 100.0) == 0


@pytest.mark.parametrize("status", [*BatchStatus, "", "nonsense"], ids=lambda each: f"status {each}")
def test_each_status_has_one_of_few_labels(status: str) -> None:
    label = status_label(status)
    assert label in metrics.BATCH_STATUSES
    assert label in (status, metrics.BATCH_ENDED)


def test_lines_that_were_late_are_not_counted_as_failed_too() -> None:
    sample = "streamfleet_gateway_batch_lines_total"
    before = {outcome: value(sample, outcome=outcome) for outcome in metrics.BATCH_LINES}
    metrics.count_lines({"completed": 5, "failed": 3, "late": 2, "prompt_tokens": 900})
    found = {outcome: value(sample, outcome=outcome) - before[outcome] for outcome in metrics.BATCH_LINES}
    assert found == {"completed": 5, "failed": 1, "expired": 2}


def test_of_a_group_of_chunks_the_first_tells_the_lag() -> None:
    count, total = ("streamfleet_gateway_stream_lag_seconds" + end for end in ("_count", "_sum"))
    before = value(count), value(total)
    for chunk_id in ("1790000000000-0/0", "1790000000000-0/1", "1790000000000-12/10"):
        for _ in range(metrics.LAG_EVERY):
            metrics.observe_lag(chunk_id, 1_790_000_000_250)
    assert value(count) == before[0] + 1
    assert value(total) == pytest.approx(before[1] + 0.25)
    for _ in range(metrics.LAG_EVERY):
        metrics.observe_lag("1790000000000-0/0", 1_789_999_999_000)
    assert value(total) == pytest.approx(before[1] + 0.25), "a clock that is behind makes nothing negative"
