"""Problems of users of other job queues, row by row, and the tests that show what happens here instead.

The table names tests by their node ids; those that no other module has are below it. What is not covered is said.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamfleet.producer import Client
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

LIFE = "tests/integration/test_worker_life.py"
OUTCOMES = "tests/integration/test_worker_outcomes.py"
DEATH = "tests/integration/test_worker_engine_death.py"
HERE = "tests/fault/test_peers.py"


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        seen: what happened to users of others.
        here: what holds here instead.
        tests: node ids of the tests that show it.
        missing: the part that nothing shows, and why; empty when there is none.
    """

    seen: str
    here: str
    tests: tuple[str, ...]
    missing: str = ""


TABLE = (
    Row(
        "pop before work, then a hard kill: batch stuck at 54 of 64",
        "entries stay in the stream until the result is written",
        (
            f"{LIFE}::test_kill_9_in_the_middle_loses_nothing_and_repeats_nothing",
            "tests/scripts/test_pull_take.py::test_a_claim_is_pending_under_its_worker_and_nowhere_else",
        ),
    ),
    Row(
        "two replicas pop one shared result list: 33 of 64 delivered",
        "results are keyed: whoever asks gets them, as often as they like",
        (f"{HERE}::test_two_processes_that_wait_for_the_same_64_both_get_64",),
    ),
    Row(
        "retry backoff in the same set: 593 attempts in 50 s, ahead of fresh work",
        "a set of its own for what is delayed; back to the original rank when due",
        (
            f"{HERE}::test_what_keeps_failing_is_tried_now_and_then_and_holds_up_nobody",
            "tests/scripts/test_retry_later.py::test_delayed_work_is_not_given_out_before_it_is_due",
            "tests/scripts/test_retry_later.py::test_returned_work_has_its_old_rank_and_somebody_is_woken",
        ),
    ),
    Row(
        "equal deadlines in random order (whole seconds, random member)",
        "first in, first out among equals; deadlines in ms",
        ("tests/scripts/test_pull_take.py::test_equal_deadlines_go_first_in_first_out_across_digit_lengths",),
    ),
    Row(
        "strict tiers starve the lowest",
        "a guaranteed minimum share",
        ("tests/scripts/test_pull_choose.py::test_lower_lanes_get_their_share_under_sustained_critical_load",),
    ),
    Row(
        "polls of 0.05 to 1 s: a result takes 50 to 1,000 ms at defaults",
        "wake-ups: an idle fleet sleeps in Redis, and an arrival ends the sleep",
        (
            f"{HERE}::test_an_idle_fleet_asks_for_nothing_and_has_an_arrival_at_once",
            "tests/scripts/test_pull_roles.py::test_a_watcher_blocks_until_an_entry_comes",
        ),
    ),
    Row(
        "unchecked acknowledgement: a zombie finishes someone else's work",
        "every write is fenced by worker and attempt",
        (
            f"{LIFE}::test_a_zombie_writes_nothing_and_works_on_afterwards",
            "tests/scripts/test_complete.py::test_a_zombies_outcome_after_the_reclaim_writes_nothing",
            "tests/scripts/test_complete.py::test_a_late_outcome_of_an_earlier_attempt_of_the_same_worker_writes_nothing",
        ),
    ),
    Row(
        "unacknowledged entries made an autoscaler add useless replicas",
        "scale on outstanding work and deadline pressure",
        (f"{LIFE}::test_the_keys_read_as_the_protocol_says_while_requests_run",),
        missing="there is no autoscaler yet. The test shows what one will read: XLEN is all that is outstanding, and "
        "only what runs is pending",
    ),
    Row(
        "malformed or expired messages dropped without a result",
        "exactly one terminal status, always",
        (
            "tests/integration/test_worker_input.py::test_bad_input_gets_one_result_that_names_the_field",
            f"{OUTCOMES}::test_a_request_expires_in_the_queue",
            f"{OUTCOMES}::test_a_request_expires_in_the_queue_while_the_engine_stays_full",
        ),
    ),
    Row(
        "cancelled work keeps burning the GPU",
        "aborted in the engine",
        (
            f"{OUTCOMES}::test_a_running_request_is_cancelled_and_gone_from_the_engine",
            f"{OUTCOMES}::test_cancelling_hangs_up_on_a_remote_engine",
        ),
    ),
    Row(
        "a lone over-long prompt or CUDA error fails or hangs the whole batch",
        "each request fails by itself; a dead or hung engine is found, and its work goes back",
        (
            f"{HERE}::test_the_bad_ones_of_a_batch_fail_by_themselves",
            f"{DEATH}::test_a_dead_engine_ends_the_process_and_hands_its_work_back_counted",
            f"{DEATH}::test_a_hung_engine_is_noticed",
            f"{DEATH}::test_a_hung_remote_server_holds_no_request_and_its_worker_is_unfit",
            "tests/integration/test_worker_poison.py::test_of_201_requests_only_the_poison_dies",
        ),
    ),
    Row(
        "fixed 300 s lease, graceful stop waits it out too",
        "leases of seconds that are renewed; released at once",
        (
            f"{LIFE}::test_a_request_longer_than_the_lease_stays_with_its_worker",
            f"{LIFE}::test_sigterm_lets_a_lone_worker_finish_what_fits_and_hands_back_the_rest",
            "tests/fault/test_recovery.py::test_after_sigkill_another_worker_has_it_within_the_lease_and_two_seconds",
            "tests/fault/test_recovery.py::test_after_sigterm_another_worker_has_it_without_waiting_for_a_lease",
        ),
    ),
    Row(
        "a refused head is picked again ten times in one poll; a blocked tenant blocks all",
        "whatever is picked leaves its place: no entry is looked at twice",
        (
            f"{HERE}::test_a_refused_head_is_picked_once",
            f"{HERE}::test_what_keeps_failing_is_tried_now_and_then_and_holds_up_nobody",
        ),
        missing="tenants are carried, but there are no limits or sub-queues of tenants yet, so none can be blocked",
    ),
)


@pytest.fixture(scope="module")
def collected(repository: Path) -> set[str]:
    """Node ids of all tests in the files that the table names, without their parameters."""
    files = sorted({test.split("::")[0] for row in TABLE for test in row.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, timeout=50)
    assert found.returncode == 0, found.stdout + found.stderr
    return {line.partition("[")[0] for line in found.stdout.splitlines() if "::" in line}


def test_each_row_is_shown_by_tests_that_exist(collected: set[str]) -> None:
    assert len(TABLE) == 13
    assert [row.seen for row in TABLE if not row.tests] == []
    assert [test for row in TABLE for test in row.tests if test not in collected] == []


async def test_two_processes_that_wait_for_the_same_64_both_get_64(fleet: Fleet) -> None:
    for number in range(2):
        await fleet.worker(f"w{number}")
    ids = await fleet.add_many(64)
    async with Client(fleet.url) as one, Client(fleet.url) as other:
        waits = [client.result(request_id, timeout=20) for client in (one, other) for request_id in ids]
        results = await asyncio.gather(*waits)
    assert Counter(result.id for result in results) == dict.fromkeys(ids, 2)
    assert all(result.ok for result in results)


async def test_what_keeps_failing_is_tried_now_and_then_and_holds_up_nobody(fleet: Fleet) -> None:
    broken = Reply(500, {"error": {"message": "not this one", "type": "server_error", "param": None, "code": None}})
    asked: list[str] = []

    def answer(request_id: str, _: int) -> Reply:
        asked.append(request_id)
        return broken if request_id == "bad" else Reply()

    # Three fresh ones take less, on a busy machine too.
    pauses = {"worker.complete.RETRY_BASE_MS": 3_000, "worker.complete.RETRY_MAX_MS": 3_000}
    async with HttpEngine(answer).serving() as engine:
        await fleet.add("bad")
        fresh = await fleet.add_many(60)
        worker = await fleet.worker("w1", (), pauses, engine="openai", vllm_url=engine.url, batch_size=1)
        assert all(result.ok for result in await fleet.results(fresh))
        bad = await fleet.result("bad", 30)
    assert (bad.status, bad.attempt, asked.count("bad")) == ("dead", 5, 5)
    assert asked[:4] == ["bad", *fresh[:3]]  # fresh work waits for none of its tries
    assert worker.metric('streamfleet_requests_claimed_total{lane="normal"}') == 65
    await fleet.settled()


async def test_an_idle_fleet_asks_for_nothing_and_has_an_arrival_at_once(fleet: Fleet) -> None:
    for number in range(4):
        await fleet.worker(f"w{number}", lease_ms=60_000)
    await eventually(lambda: _blocked(fleet, 4), what="all four wait inside Redis")
    calls = await _calls(fleet)
    took_ms = []
    for _ in range(20):
        asked_s = time.monotonic()
        request = await fleet.add()
        await fleet.result(request)
        took_ms.append((time.monotonic() - asked_s) * 1000)
    # Polling takes half its period in the median: 25 ms at the very best of the others' defaults, beside the work.
    assert statistics.median(took_ms) < 250
    # The worker that took a request sleeps again, and so does its successor as watcher; nobody wakes up in between.
    assert await _calls(fleet) - calls < 20 * 3


async def _blocked(fleet: Fleet, count: int) -> bool:
    # Each worker also reads cancellations, blocking.
    return int((await fleet.redis.info("clients"))["blocked_clients"]) >= 2 * count


async def _calls(fleet: Fleet) -> int:
    """Blocking reads begun so far: one for each time that an idle worker went to sleep."""
    stats = await fleet.redis.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("xreadgroup", "blpop"))


async def test_the_bad_ones_of_a_batch_fail_by_themselves(fleet: Fleet) -> None:
    engine = small_engine(8)
    async with worker_inside(fleet.url, engine, batching="window", batch_size=8, batch_timeout_ms=10_000):
        engine.faults.errors = 1  # as after a CUDA error that only one request met: the first of the batch
        unlucky = await fleet.add()
        too_long = await fleet.add(body={**chat(), "max_tokens": 1_000_000})
        good = await fleet.add_many(6, chat(0.2))
        results = await fleet.results([unlucky, too_long, *good])
    assert [(result.status, result.http_status) for result in results[:2]] == [("failed", 500), ("failed", 400)]
    assert [result.ok for result in results[2:]] == [True] * 6
    assert {result.attempt for result in results} == {1}


async def test_a_refused_head_is_picked_once(fleet: Fleet) -> None:
    """Malformed, expired and cancelled ones in front, in an engine with one slot: each is decided at its first pick."""
    for number in range(10):
        await fleet.add(f"bad{number}", body="no JSON")
        await fleet.add(f"late{number}", ttl=1)
        await fleet.broker.cancel(f"cancelled{number}", before_ms=60_000)
        await fleet.add(f"cancelled{number}")
    good = await fleet.add()
    worker = await fleet.worker("w1", batch_size=1)
    assert (await fleet.result(good)).ok
    assert (
        worker.metric('streamfleet_requests_claimed_total{lane="normal"}') == 11
    )  # the malformed ones, and the good one
    assert (await fleet.broker.audit()).ended == {
        "succeeded": 1,
        "failed": 10,
        "expired": 10,
        "cancelled": 10,
        "dead": 0,
    }
    await fleet.settled()
