"""The health server's answers about a worker, which stays off the queue while its engine is broken."""

from __future__ import annotations

import signal
import socket

import pytest

from streamfleet.common.clock import SystemClock
from tests.constants import QUICK_RETRIES, UNREADY
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.own_pages import Answer
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
BROKEN = Reply(500, {"error": {"message": "CUDA error", "type": "server_error", "param": None, "code": None}})
FAMILIES = (
    "streamfleet_build_info",
    "streamfleet_requests_claimed_total",
    "streamfleet_requests_finished_total",
    "streamfleet_queued_seconds_bucket",
    "streamfleet_run_seconds_bucket",
    "streamfleet_total_seconds_bucket",
    "streamfleet_first_token_seconds_bucket",
    "streamfleet_tokens_total",
    "streamfleet_leases_lost_total",
    "streamfleet_running",
    "streamfleet_credit",
    "streamfleet_ready",
)


async def test_the_pages_follow_the_workers_state(fleet: Fleet) -> None:
    worker = await fleet.worker("w1")
    port = worker.events("worker_starting")[0]["health_port"]
    with socket.create_connection(("127.0.0.1", port)):  # a client that says nothing silences nobody
        assert worker.get("/livez") == Answer(200, "ok\n")
        assert worker.get("/readyz") == Answer(200, "ok\n")
    assert worker.get("/elsewhere").status == 404
    assert worker.metric("streamfleet_ready") == 1
    await fleet.result(await fleet.add())

    def missing() -> list[str]:
        page = worker.get("/metrics").text
        return [family for family in FAMILIES if f"\n{family}" not in page]

    # Counted once it is published: whoever waits for the result may look before that.
    await eventually(lambda: not missing(), what="every family is there")
    assert worker.metric('streamfleet_requests_finished_total{lane="normal",status="succeeded"}') == 1
    await fleet.add(body=chat(60))
    await fleet.runs({"w1": 1})
    worker.send(signal.SIGTERM)
    await worker.logged("draining")
    assert worker.get("/livez").status == 200
    assert worker.get("/readyz") == Answer(503, "draining\n")
    assert worker.metric("streamfleet_ready") == 0


async def test_a_stopped_event_loop_is_no_longer_live_and_a_hung_one_ends_the_process(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", ["freezable"], watchdog_s=1)
    worker.send(signal.SIGUSR2)
    assert await worker.ended() == 70
    assert worker.events("event_loop_hung")


async def test_an_unfit_worker_keeps_its_hands_off_the_queue_and_recovers(fleet: Fleet) -> None:
    async with HttpEngine(lambda _id, _n: BROKEN).serving() as engine:
        worker = await _unfit_worker(fleet, engine, ["short_rest"], max_deliveries=1_000)
        answer = worker.get("/readyz")
        assert answer.status == 503
        assert "answers 500" in answer.text
        assert worker.get("/livez").status == 200
        asked = engine.asked.total()
        started = SystemClock().monotonic()
        await eventually(lambda: engine.asked.total() >= asked + 3, what="it tries the engine now and then")
        assert SystemClock().monotonic() - started > 3 * 0.3 - 0.1  # one at a time, a rest before each
        assert sum((await fleet.running()).values()) <= 1
        engine.answer = lambda _id, _n: Reply()
        await eventually(lambda: worker.get("/readyz").status == 200, what="it is fit again")
        await eventually(lambda: _outstanding(fleet, 0), 20, "all is done")
    assert (await fleet.broker.audit()).ended["succeeded"] == 40
    await fleet.settled()


async def test_an_engine_that_breaks_on_everything_does_not_fail_the_whole_queue(fleet: Fleet) -> None:
    async with HttpEngine(lambda _id, _n: BROKEN).serving() as engine:
        await _unfit_worker(fleet, engine, [], max_deliveries=1)
        ended = sum((await fleet.broker.audit()).ended.values())
        assert ended <= 8  # five faults in a row, and what ran beside the fifth
        assert (await fleet.broker.audit()).outstanding >= 32


async def _unfit_worker(fleet: Fleet, engine: HttpEngine, patches: list[str], **settings: int) -> WorkerProcess:
    worker = await fleet.worker(
        "w1",
        patches,
        {UNREADY: 5, **QUICK_RETRIES},
        engine="openai",
        vllm_url=engine.url,
        batch_size=4,
        **settings,
    )
    await fleet.add_many(40)
    await worker.logged("fitness_changed")
    await eventually(lambda: worker.get("/readyz").status == 503, what="it is not ready")
    return worker


async def _outstanding(fleet: Fleet, count: int) -> bool:
    return (await fleet.broker.audit()).outstanding == count


async def test_refused_requests_do_not_hide_that_the_engine_is_broken(fleet: Fleet) -> None:
    """A worker is unfit by what its engine does; what never reached the engine says nothing about it."""
    engine = small_engine()
    engine.faults.unavailable = 1_000
    async with worker_inside(
        fleet.url, engine, changed={UNREADY: 10, **QUICK_RETRIES}, batch_size=1, max_deliveries=1
    ) as inside:
        for _ in range(12):
            await fleet.add()
            await fleet.add(body="no JSON")
        await eventually(lambda: not inside.worker.health().ready, what="it is unfit")


async def test_wrong_settings_end_the_process_with_a_line_for_each(fleet: Fleet) -> None:
    worker = fleet.start("w1", lease_ms="soon", drain_ms=-1)
    assert await worker.ended() == 2
    lines = worker.printed().strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["STREAMFLEET_LEASE_MS", "STREAMFLEET_DRAIN_MS"]


async def test_a_wrong_engine_url_is_a_wrong_setting(fleet: Fleet) -> None:
    worker = fleet.start("w1", engine="openai", vllm_url="ftp://example.org")
    assert await worker.ended() == 2
    assert worker.printed().splitlines()[-1].startswith("VLLM_URL: ")
    assert "Traceback" not in worker.printed()


async def test_a_taken_port_is_a_wrong_setting(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = fleet.start("w1", health_port=taken.getsockname()[1])
        assert await worker.ended() == 2
    assert "\nSTREAMFLEET_HEALTH_PORT: " in worker.printed()
    assert "Traceback" not in worker.printed()


async def test_four_variables_are_enough_for_a_worker_in_front_of_a_server(fleet: Fleet) -> None:
    """REDIS_URL, BATCH_SIZE, BATCH_TIMEOUT_MS and VLLM_URL; the first line of the log says what comes of them."""
    async with HttpEngine(lambda _id, _n: Reply(200, {"choices": []})).serving() as engine:
        worker = await fleet.worker("w1", engine="", batch_size=8, batch_timeout_ms=20, vllm_url=engine.url)
        assert (await fleet.result(await fleet.add())).ok
    (chosen,) = worker.events("engine_chosen")
    assert (chosen["engine"], chosen["because"]) == ("openai", "VLLM_URL is set, and no STREAMFLEET_MODEL")
    (useless,) = worker.events("setting_without_effect")
    assert useless["variable"] == "BATCH_TIMEOUT_MS"
    assert "STREAMFLEET_BATCHING=window" in useless["because"]


async def test_a_window_that_waits_is_no_reason_for_a_warning(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", batching="window", batch_timeout_ms=20)
    assert not worker.events("setting_without_effect")
    assert [each["engine"] for each in worker.events("engine_chosen")] == ["simulated"]
