"""The arithmetic of bench/engine and of bench/gpu's batch sizes: who was in the engine when; was the work the same."""

from __future__ import annotations

import pytest

from bench.engine.batch import Batch, OtherWork, Row, check_output, check_same_work
from bench.engine.work import bodies
from bench.gpu.served_runs import Stay, figures, stays
from streamfleet.common.results import decode_result


def row(output_tokens: int = 5, first_ms: float | None = 10.0) -> Row:
    return Row(20, output_tokens, first_ms, None if first_ms is None else 2.0, 50.0)


def test_running_is_the_mean_number_of_requests_in_the_engine() -> None:
    found = figures([Stay(0, 4, 10), Stay(2, 8, 30)])
    assert found["running"] == (4 + 6) / 8
    assert (found["tokens_per_s"], found["run_ms_p99"]) == (5, 6_000)


def test_stays_begin_with_the_first_one_and_are_in_order_of_their_ends() -> None:
    def result(enqueued_ms: int, queued_ms: int, total_ms: int) -> dict[bytes, bytes]:
        values = {"enqueued_ms": enqueued_ms, "queued_ms": queued_ms, "waited_ms": 100, "total_ms": total_ms}
        given = {name.encode(): str(value).encode() for name, value in values.items()}
        return {b"status": b"succeeded", b"usage": b'{"completion_tokens":7}', **given}

    found = [decode_result("r", result(*times)) for times in ((10_000, 400, 3_500), (10_000, 900, 2_000))]
    first, second = stays([each for each in found if each is not None])
    assert (first.began_s, first.ended_s, first.tokens) == (0.5, 1.5, 7)
    assert (second.began_s, second.ended_s, second.run_ms) == (0.0, 3.0, 3_000)


def test_a_batch_leaves_out_what_was_not_seen() -> None:
    whole, streamed = (Batch([row(first_ms=first_ms)] * 4, 2.0, 0.004) for first_ms in (None, 10.0))
    assert whole.figures() == {"tokens_per_s": 10, "total_ms_p50": 50, "front_ms_per_request": 1}
    assert streamed.figures()["first_ms_p50"] == 10


def test_contenders_that_did_other_work_are_not_compared() -> None:
    asked = bodies(3, (4, 5, 6), seed=1)
    lengths = [body["max_tokens"] for body in asked]
    check_output(Batch([row(tokens) for tokens in reversed(lengths)], 1, 0), asked)
    with pytest.raises(OtherWork, match="of other lengths"):
        check_output(Batch([row(tokens + 1) for tokens in lengths], 1, 0), asked)
    check_same_work({"a": Batch([row(4), row(6)], 1, 0), "b": Batch([row(6), row(4)], 2, 0)})
    with pytest.raises(OtherWork, match=r"'a': \(20, 4\), 'b': \(20, 5\)"):
        check_same_work({"a": Batch([row(4)], 1, 0), "b": Batch([row(5)], 1, 0)})


def test_bodies_are_the_same_for_a_seed() -> None:
    assert bodies(5, 8, 1) == bodies(5, 8, 1) != bodies(5, 8, 2)
