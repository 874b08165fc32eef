"""A real gateway as the user of its role: it serves, streams and cancels by its rules, and makes no keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
import structlog

from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.gateway.api_keys import GatewayNames, digest_of, make_record, new_secret, with_rule
from streamfleet.gateway.broker.api_keys import GatewayBroker
from streamfleet.operator.access_rules import Patterns, Role, grants
from tests.integration.cli_processes import streamfleet
from tests.integration.gateway_here import gateway_here
from tests.integration.gateway_process import gateway_on, status_of
from tests.integration.worker_process import WorkerProcess, chat
from tests.security.guarded import QUEUE, Guarded, rendered
from tests.security.test_acl_jobs import refusals
from tests.waiting import eventually

PATH, COUNT = "/v1/chat/completions", "X-Stainless-Retry-Count"


@pytest.mark.kill
def test_a_gateway_does_its_work_in_its_role(guarded: Guarded, tmp_path: Path) -> None:
    urls = {role: guarded.enlist(role, "default") for role in Role}
    key = streamfleet(
        urls[Role.OPERATOR], "gateway", "keys", "create", "me", "--requests-per-minute", "50"
    ).stdout.strip()
    refused = streamfleet(urls[Role.GATEWAY], "gateway", "keys", "create", "mine")
    assert (refused.returncode, "lacks a permission" in refused.stderr) == (2, True)
    with guarded.admin() as admin:
        admin.execute_command("ACL", "LOG", "RESET")
    worker = WorkerProcess(urls[Role.WORKER], tmp_path, "w1")
    try:
        worker.ready_blocking()
        with gateway_on(urls[Role.GATEWAY], tmp_path) as gateway:
            asyncio.run(serves(gateway.http(key), worker, guarded.server.url))
            assert gateway.stop() == 0
            assert "lacks a permission" not in gateway.printed()
    finally:
        worker.destroy()
    with guarded.admin() as admin:
        # A client tries to cancel by itself once, before it asks a worker to.
        assert refusals(admin.execute_command("ACL", "LOG"), Role.GATEWAY) == ["lua key {default}:lane:critical"]


async def serves(http: httpx.AsyncClient, worker: WorkerProcess, url: str) -> None:
    """Models, an answer, a stream, a caller that leaves, and one that tries again."""
    async with http:
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "simulated"
        assert (await http.post(PATH, json=chat(model="simulated"))).status_code == 200
        ids = {"X-Streamfleet-Event-Ids": "send"}
        streamed = await http.post(PATH, json=chat(0.1, model="simulated", stream=True), headers=ids)
        assert streamed.text.endswith("data: [DONE]\n\n")
        again = await http.get(f"/v1/streams/{streamed.headers['x-streamfleet-id']}")
        assert again.text == streamed.text
        async with http.stream("POST", PATH, json=chat(30, model="simulated", stream=True)) as answer:
            left = answer.headers["x-streamfleet-id"]
        assert await eventually(lambda: status_of(url, left), 8, "it is cancelled") == "cancelled"
        first = asyncio.create_task(http.post(PATH, json=chat(1, model="simulated"), headers={COUNT: "0"}))
        await eventually(lambda: worker.metric("streamfleet_running") == 1, 5)
        first.cancel()
        again = await http.post(PATH, json=chat(1, model="simulated"), headers={COUNT: "1"})
        assert again.status_code == 200
        await eventually(lambda: worker.metric("streamfleet_running") == 0, 5, "the engine has dropped it")


async def test_a_gateway_that_may_not_write_what_keys_name_serves_without(guarded: Guarded) -> None:
    """It says so each minute, in the log, and callers get their answers."""
    today = grants(Role.GATEWAY, Patterns(Keys(QUEUE)))
    less = [grant for grant in today if not any(key.endswith(":tenants") for key in grant.keys)]
    assert len(less) < len(today)
    operator = GatewayBroker(Connection(guarded.enlist(Role.OPERATOR), patience_s=0), GatewayNames())
    secret = new_secret()
    record = make_record(digest_of(secret), "name", "acme", created_ms=1)
    try:
        await operator.add(digest_of(secret), with_rule(record, 3.0, None, 1))
    finally:
        await operator.close()
    url = guarded.enlist_with(Role.GATEWAY, rendered(less))
    with structlog.testing.capture_logs() as logs:
        async with gateway_here(url, secret, models=f"m={QUEUE}") as http:
            for _ in range(2):
                assert (await http.get("/v1/models")).status_code == 200
    (line,) = [each for each in logs if each["event"] == "background_task_failed"]
    assert (line["errand"], "lacks a permission" in line["error"]) == ("set a tenant's weight and limit", True)
