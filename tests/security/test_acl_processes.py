"""Real processes, each as the user of its role: workers, the client, every command of the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from streamfleet.common.errors import NotPermitted, ResultTimeout
from streamfleet.common.protocol import Status
from streamfleet.operator.access_rules import Role
from streamfleet.producer import client
from streamfleet.producer.client import Client
from tests.integration.cli_processes import Ended, streamfleet
from tests.integration.worker_process import WorkerProcess, chat
from tests.security.guarded import Guarded
from tests.security.test_acl_jobs import EXPECTED, refusals
from tests.waiting import eventually

DEFAULT = "default"


@pytest.fixture
def urls(guarded: Guarded) -> dict[Role, str]:
    """Returns the URLs at which the user of each role logs in, for the queue `default`."""
    return {role: guarded.enlist(role, DEFAULT) for role in Role}


def test_a_fleet_works_with_every_part_in_its_role(guarded: Guarded, urls: dict[Role, str], tmp_path: Path) -> None:
    # A long lease: what renewals tell a worker of a cancel would come too late for this test.
    worker = WorkerProcess(urls[Role.WORKER], tmp_path, "w1", lease_ms=120_000)
    try:
        worker.ready_blocking()
        asyncio.run(asks(urls[Role.PRODUCER], worker))
        commands(urls, tmp_path)
        worker.send(signal.SIGTERM)
        assert asyncio.run(worker.ended()) == 0
        assert "lacks a permission" not in worker.printed()
    finally:
        worker.destroy()
    with guarded.admin() as admin:
        said = admin.execute_command("ACL", "LOG")
    assert {role: refusals(said, role) for role in Role} == EXPECTED


async def asks(url: str, worker: WorkerProcess) -> None:
    """A service that enqueues, waits and cancels."""
    async with Client(url, DEFAULT) as fleet:
        handles = await fleet.enqueue_many([{"body": chat(), "id": f"r-{n}"} for n in range(20)])
        assert all([(await handle.result(10)).ok for handle in handles])
        refused = await fleet.enqueue({"messages": "wrong"}, id="wrong")
        assert (await refused.result(10)).status is Status.FAILED
        late = await fleet.enqueue(chat(30), id="late", ttl_ms=300)
        assert (await late.result(10)).status is Status.EXPIRED
        running = await fleet.enqueue(chat(60), id="long")

        async def runs() -> bool:
            return (await running.status()).state == "running"

        await eventually(runs)
        asked_at = time.monotonic()
        assert await running.cancel()
        assert time.monotonic() - asked_at < 20
        await worker.logged("cancelled", 15)


def commands(urls: dict[Role, str], folder: Path) -> None:
    """Every command, as the user of the role that it is for."""

    def run(role: Role, *words: str, status: int = 0) -> Ended:
        ended = streamfleet(urls[role], *words)
        assert ended.returncode == status, (words, ended)
        return ended

    source, out = folder / "in.jsonl", folder / "out.jsonl"
    line = {"custom_id": "c-1", "method": "POST", "url": "/v1/chat/completions", "body": chat()}
    source.write_text(json.dumps(line) + "\n", encoding="utf-8")
    run(Role.PRODUCER, "enqueue", "--prompt", "Say hi", "--id", "by-hand", "--wait")
    run(Role.PRODUCER, "result", "by-hand")
    run(Role.PRODUCER, "result", "nobody", status=1)
    run(Role.PRODUCER, "cancel", "not-yet", status=3)
    run(Role.PRODUCER, "cancel", "not-yet", "--before-it-comes")
    run(Role.PRODUCER, "cancel", "by-hand", status=1)
    run(Role.PRODUCER, "batch", str(source), str(out))
    run(Role.OPERATOR, "backlog")
    run(Role.OPERATOR, "workers")
    run(Role.OPERATOR, "trace", "r-1")
    run(Role.OPERATOR, "trace", "nobody", status=1)
    run(Role.OPERATOR, "audit")
    run(Role.OPERATOR, "dead", "list")
    run(Role.OPERATOR, "dead", "list", "--reason", "expired")
    run(Role.OPERATOR, "dead", "show", "wrong")
    run(Role.OPERATOR, "dead", "requeue", "wrong")
    run(Role.OPERATOR, "dead", "purge", "late")
    run(Role.OPERATOR, "result", "r-1")
    run(Role.OPERATOR, "result", "wrong", "--wait", "--timeout", "10", status=1)
    run(Role.OPERATOR, "cancel", "too-early", status=3)
    run(Role.OPERATOR, "cancel", "too-early", "--before-it-comes")


def test_what_a_role_may_not_do_says_so(guarded: Guarded) -> None:
    producer = guarded.enlist(Role.PRODUCER, DEFAULT)
    for words in (("audit",), ("backlog",), ("dead", "list"), ("dead", "purge", "--all", "--yes")):
        ended = streamfleet(producer, *words)
        assert ended.returncode == 2, ended
        assert "REDIS_URL" in ended.stderr
        assert "lacks a permission" in ended.stderr
    with guarded.admin() as admin:
        assert admin.keys() == []


async def test_a_producer_does_not_half_cancel(guarded: Guarded) -> None:
    async with guarded.broker(guarded.enlist(Role.PRODUCER, DEFAULT), DEFAULT) as broker:
        with pytest.raises(NotPermitted):
            await broker.cancel("r-1")
    with guarded.admin() as admin:
        assert admin.keys() == []


async def test_a_cancel_that_nobody_sees_to_says_so_and_stays_asked_for(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.ask_to_cancel, "__defaults__", (0.2, None))
    async with Client(guarded.enlist(Role.PRODUCER, DEFAULT), DEFAULT) as fleet:
        await fleet.enqueue(chat(), id="r-1")
        with pytest.raises(ResultTimeout, match=r"r-1: no worker has cancelled it within 0\.2 s; the next one"):
            await fleet.cancel("r-1")
        with pytest.raises(ResultTimeout):
            await fleet.cancel("r-1")
    with guarded.admin() as admin:
        assert [fields for _, fields in admin.xrange("{default}:cancel_requests")] == [{"id": "r-1"}] * 2
        tried = [entry for entry in admin.acl_log() if entry["object"] == "xack"]
        assert [entry["count"] for entry in tried] == [1], "a client that may not cancel tries it once"
