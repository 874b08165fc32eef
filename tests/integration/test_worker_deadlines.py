"""A whole worker judges deadlines: it learns from its own runs, and then does not start what cannot be done in time."""

from __future__ import annotations

import pytest

from streamfleet.producer import Client
from tests.broker import Broker
from tests.integration.worker_in_process import small_engine, worker_inside

BODY = {"prompt": "hi", "max_tokens": 20, "ignore_eos": True}
"""200 ms of the small engine."""
SHORT_MS = 190
"""Not enough for any run: what begins is stopped, and teaches the worker that time is wasted."""


@pytest.mark.parametrize(("judges", "code"), [("on", "deadline_out_of_reach"), ("off", "deadline_exceeded")])
async def test_what_cannot_be_done_in_time_is_not_started(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, judges: str, code: str
) -> None:
    monkeypatch.setattr("streamfleet.worker.service_times.BEHIND_S", 0.0)
    async with Client(redis_url) as client:
        await Broker.of(client.broker).set_configuration({"judge_deadlines": judges})
        async with worker_inside(redis_url, small_engine(slots=4), prefetch=0):
            asks = [{"body": BODY, "ttl_ms": ttl_ms} for ttl_ms in [SHORT_MS] * 20 + [30_000] * 60]
            handles = await client.enqueue_many(asks)
            rest = [await handle.result(20) for handle in handles][20:]
            # All slots are free: it is pulled at once, however busy the machine is.
            late = await (await client.enqueue(BODY, ttl_ms=SHORT_MS)).result(10)
    assert all(result.ok for result in rest)
    assert (late.status.value, (late.error or {})["code"]) == ("expired", code)
    assert (late.attempt == 0) is (judges == "on"), "not started, or stopped"
