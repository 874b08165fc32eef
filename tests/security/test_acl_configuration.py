"""The queue's configuration under ACL rules: those of the roles, and those that an earlier release made."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamfleet.common.broker.types import Completion
from streamfleet.common.errors import NotPermitted
from streamfleet.common.protocol import Status
from streamfleet.common.settings import QueueSettings, load
from streamfleet.operator.access_rules import Role
from streamfleet.producer.client import Client
from tests.integration.cli_processes import command, environment
from tests.integration.worker_process import WorkerProcess, chat
from tests.security.guarded import Guarded
from tests.upgrade.kept import kept, unpack

QUEUE = "default"
RULES = """
import sys
from streamfleet.common.acl import Patterns, Role, rules
from streamfleet.common.keys import Keys
print("\\n".join(rules(Role(sys.argv[1]), Patterns(Keys(sys.argv[2])))))
"""


def earlier(role: Role, root: Path) -> list[str]:
    """The rules of a role, as a kept release makes them."""
    words = [sys.executable, "-c", RULES, role, QUEUE]
    variables = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run(words, env=variables, capture_output=True, text=True, check=True, cwd=os.sep)
    return ended.stdout.splitlines()


async def told(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, run beside this event loop."""
    words, settings = command(*arguments), environment(url)
    return await asyncio.to_thread(subprocess.run, words, env=settings, capture_output=True, text=True, check=False)


async def test_a_producer_reads_and_a_worker_adds_and_only_an_operator_changes(guarded: Guarded) -> None:
    async with guarded.broker(guarded.enlist(Role.WORKER)) as worker:
        agreed = await worker.agree()
        with pytest.raises(NotPermitted):
            await worker.set_configuration({"lease_ms": "7000"})
    async with guarded.broker(guarded.enlist(Role.PRODUCER)) as producer:
        assert await producer.configuration() == agreed
        with pytest.raises(NotPermitted):
            await producer.agree()
    async with guarded.broker(guarded.enlist(Role.OPERATOR)) as operator:
        assert await operator.set_configuration({"lease_ms": "7000"}) == {**agreed, "lease_ms": "7000"}


async def test_with_rules_of_an_earlier_release_doctor_looks_at_all_else(guarded: Guarded, tmp_path: Path) -> None:
    url = guarded.enlist_with(Role.OPERATOR, earlier(Role.OPERATOR, unpack(kept()[-1], tmp_path)))
    levels = {check["name"]: check["level"] for check in json.loads((await told(url, "doctor", "--json")).stdout)}
    assert levels["configuration"] == "unknown"
    assert (levels["workers"], levels["lanes"]) == ("warn", "ok")


async def test_with_rules_of_an_earlier_release_all_go_on_with_their_environments(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack(kept()[-1], tmp_path)
    urls = {role: guarded.enlist_with(role, earlier(role, root)) for role in (Role.WORKER, Role.PRODUCER)}
    async with guarded.broker(queue=QUEUE) as admin:
        await admin.agree()
        await admin.set_configuration({"result_ttl_ms": "5000"})
        warned: list[str] = []
        monkeypatch.setattr("streamfleet.common.broker.client.log.warning", lambda event, **_: warned.append(event))
        worker = WorkerProcess(urls[Role.WORKER], tmp_path, "w1")
        try:
            await worker.ready()
            async with Client(settings=load(QueueSettings, redis_url=urls[Role.PRODUCER])) as client:
                await client.enqueue(chat())
                client.broker._fresh_until = 0.0
                handle = await client.enqueue(chat())
                assert (await handle.result(10)).ok
            assert warned == ["queue_configuration_not_followed"], "said once"
            life_ms = await admin.connection.command("PTTL", admin.keys.result(handle.id))
            assert life_ms > 5_000
            await worker.logged("queue_configuration_not_followed")
            refused = await told(guarded.server.url, "queue", "set", "max_deliveries=3")
        finally:
            worker.destroy()
        assert len(worker.events("queue_configuration_not_followed")) == 1
    assert refused.returncode == 1
    assert "do not follow the queue's configuration: w1;" in refused.stderr


async def test_with_rules_of_an_earlier_release_a_worker_takes_tenants_by_deadline_and_logs_no_refusal(
    guarded: Guarded, tmp_path: Path
) -> None:
    old = guarded.enlist_with(Role.WORKER, earlier(Role.WORKER, unpack(kept()[-1], tmp_path)))
    async with guarded.broker(queue=QUEUE) as admin, guarded.broker(old, queue=QUEUE) as worker:
        await admin.ensure_groups()
        for i, tenant in enumerate("aab"):
            await admin.connection.command(
                "XADD", admin.keys.lane("high"), "*", "body", "{}", "tenant", tenant, "id", f"r{i}"
            )
        await admin.pull("w0", 0)
        assert await admin.connection.command("ZCARD", admin.keys.turns("high")) == 2
        await admin.connection.command("ACL", "LOG", "RESET")
        found = (await worker.pull("w1", 2)).claims
        assert [row.lease.request_id for row in found] == ["r0", "r1"]
        assert await worker.complete("w1", [Completion(row.lease, Status.SUCCEEDED, {}, "") for row in found]) == [1, 1]
        log = await admin.connection.command("ACL", "LOG")
        assert not [
            entry for entry in log if b":turns:" in entry[7] or b":served" in entry[7] or b":waiting" in entry[7]
        ]
