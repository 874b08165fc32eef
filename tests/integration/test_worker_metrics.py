"""A real worker's metrics page after a history that is known: endings, reasons, room, what was thrown away."""

from __future__ import annotations

import pytest

from streamfleet.common import metrics
from streamfleet.common.envelope import MEANT
from streamfleet.common.protocol import LANES, Status
from tests.constants import QUICK_RETRIES
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
DOWN = Reply(500, {"error": {"message": "out of order", "type": "server_error", "param": None, "code": None}})
STATUSES = {*Status, "postponed", "released", "lost"}


async def counted(worker: WorkerProcess, **samples: float) -> None:
    """Samples come to these values; they are counted once Redis has the results, so a moment later."""
    for name, expected in samples.items():
        sample = f"streamfleet_{name}"
        await eventually(lambda sample=sample, n=expected: worker.metric(sample) == n, what=sample)  # type: ignore[misc]


async def test_counters_with_known_labels_stand_at_0_from_the_start(fleet: Fleet) -> None:
    """Else the first dead letter, or the first reclaim, would be no increase to an alert."""
    page = (await fleet.worker("w1")).get("/metrics").text
    for sample in (
        *(f'streamfleet_dead_letters_total{{reason="{reason}"}}' for reason in metrics.Reason),
        *(f'streamfleet_reclaimed_total{{outcome="{outcome}"}}' for outcome in metrics.RECLAIM_OUTCOMES),
        *(f'streamfleet_tokens_wasted_total{{reason="{reason}"}}' for reason in metrics.WASTED_REASONS),
        *(f'streamfleet_requests_retried_total{{lane="{lane}"}}' for lane in LANES),
        *(f'streamfleet_unknown_fields_total{{meant="{meant.decode()}"}}' for meant in MEANT),
    ):
        assert f"{sample} 0.0\n" in page


async def test_endings_reasons_and_room(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", batch_size=1)
    await fleet.results([await fleet.add(), await fleet.add(body="no JSON")])
    await fleet.add("long", body=chat(60))
    await fleet.runs({"w1": 1})
    await counted(worker, running=1, credit=0)
    assert worker.metric("streamfleet_slots") > 0
    await fleet.results([await fleet.add(ttl="50")])
    await fleet.broker.cancel("long")
    labels = '{lane="normal",status="%s"}'
    for status in ("succeeded", "failed", "cancelled"):
        for name in ("requests_finished_total", "total_seconds_count"):
            await counted(worker, **{name + labels % status: 1})
        await counted(worker, **{"run_seconds_count" + labels % status: 1})
    await counted(worker, **{"first_token_seconds_count" + labels % "succeeded": 1})
    await counted(worker, **{'dead_letters_total{reason="refused"}': 1})
    await counted(worker, **{'dead_letters_total{reason="deadline"}': 1})
    assert len(await fleet.dead_letters()) == 2
    bounded(worker.get("/metrics").text)


async def test_what_is_given_up_after_faults(fleet: Fleet) -> None:
    async with HttpEngine(lambda _id, _n: DOWN).serving() as engine:
        worker = await fleet.worker(
            "w1", constants=QUICK_RETRIES, engine="openai", vllm_url=engine.url, max_deliveries=2
        )
        result = await fleet.result(await fleet.add(lane="high"))
        assert result.status is Status.DEAD
        dead = '{lane="high",status="dead"}'
        await counted(worker, **{f"requests_finished_total{dead}": 1})
        await counted(worker, **{'run_seconds_count{lane="high",status="postponed"}': 2})
        await counted(worker, **{'dead_letters_total{reason="engine"}': 1})


def bounded(page: str) -> None:
    """Labels have values of the known few."""
    allowed = {
        "lane": {*LANES},
        "status": STATUSES,
        "reason": {*metrics.Reason, *metrics.WASTED_REASONS, *metrics.ByApplication},
    }
    allowed["meant"] = {meant.decode() for meant in MEANT}
    allowed["outcome"] = {*metrics.RECLAIM_OUTCOMES}
    for line in page.splitlines():
        if not line.startswith("streamfleet_") or "{" not in line or line.startswith("streamfleet_build_info"):
            continue
        for pair in line.partition("{")[2].rpartition("}")[0].split(","):
            name, _, value = pair.partition("=")
            assert name == "le" or value.strip('"') in allowed.get(name, {"prompt", "completion"}), line
