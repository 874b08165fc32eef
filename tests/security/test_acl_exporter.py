"""The exporter runs as an operator; an autoscaler may not see enough for it, and is told so."""

from __future__ import annotations

import asyncio

from streamfleet.common.protocol import Lane
from streamfleet.operator.access_rules import Role
from tests.integration.exporter_process import exporter
from tests.security.guarded import Guarded
from tests.security.jobs import add
from tests.security.test_acl_jobs import refusals

DEFAULT = "default"


async def fill(guarded: Guarded) -> None:
    async with guarded.broker(queue=DEFAULT) as fleet:
        await fleet.ensure_groups()
        await add(fleet, Lane.HIGH, ttl="60000")
        await fleet.heartbeat("w1", {"state": "ready"})
        await fleet.pull("w2", 0)


def test_as_an_operator_it_sees_everything(guarded: Guarded) -> None:
    asyncio.run(fill(guarded))
    with exporter(guarded.enlist(Role.OPERATOR, DEFAULT)) as exporting:
        page = exporting.get()
        assert exporting.get("/readyz").status == 200
    assert page.value("streamfleet_exporter_up") == 1
    assert page.value("streamfleet_queue_ready", lane="high") == 1
    assert page.value("streamfleet_queue_workers", state="ready") == 1
    with guarded.admin() as admin:
        assert refusals(admin.execute_command("ACL", "LOG"), Role.OPERATOR) == []


def test_as_an_autoscaler_it_says_what_it_lacks(guarded: Guarded) -> None:
    asyncio.run(fill(guarded))
    with exporter(guarded.enlist(Role.AUTOSCALER, DEFAULT)) as exporting:
        assert exporting.get().value("streamfleet_exporter_up") == 0
        ready = exporting.get("/readyz")
    assert ready.status == 503
    assert "permission" in ready.text
