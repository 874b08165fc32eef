"""The page /ui by Redis's own rules: a gateway's user may not do what it does; with an operator's, all of it works."""

from __future__ import annotations

import httpx

from streamfleet.operator.access_rules import Role
from streamfleet.producer.client import Client
from tests.integration.gateway_here import gateway_here
from tests.integration.gateway_process import add_key
from tests.security.guarded import Guarded
from tests.security.test_acl_jobs import refusals

BODY = {"messages": [{"role": "user", "content": "Say hi"}]}


async def test_a_gateways_own_user_is_not_enough_and_it_is_said_what_is(guarded: Guarded) -> None:
    url = guarded.enlist(Role.GATEWAY, "default")
    key, _ = await add_key(guarded.server.url, "ops", operator=True)
    async with gateway_here(url, key) as http:
        for path in ("overview", "dead", "requests"):
            answer = await http.get(f"/ui/api/{path}")
            said = answer.json()["error"]
            assert (answer.status_code, said["code"]) == (503, "ui_not_permitted"), path
            assert "STREAMFLEET_GATEWAY_UI_REDIS_URL" in said["message"]
            assert guarded.server.url.rpartition(":")[2] not in said["message"]
        assert (await http.post("/ui/api/pause", json={})).status_code == 503


async def test_an_operators_user_is_enough_for_all_of_it(guarded: Guarded) -> None:
    gateway, operator = guarded.enlist(Role.GATEWAY, "default"), guarded.enlist(Role.OPERATOR, "default")
    key, _ = await add_key(guarded.server.url, "ops", operator=True)
    async with Client(guarded.server.url) as fleet:
        for n in range(3):
            await fleet.enqueue(BODY, id=f"r-{n}", lane="low")
    with guarded.admin() as admin:
        admin.xadd(
            "{default}:dead", {"_id": "d-1", "_status": "failed", "_entry": "low:1-0", "id": "d-1", "body": "{}"}
        )
        admin.execute_command("ACL", "LOG", "RESET")
    async with gateway_here(gateway, key, ui_redis_url=operator) as http:
        await everything(http)
    with guarded.admin() as admin:
        log = admin.execute_command("ACL", "LOG")
    assert refusals(log, Role.OPERATOR) == refusals(log, Role.GATEWAY) == []


async def everything(http: httpx.AsyncClient) -> None:
    """All that the page asks for."""
    reads = (
        "overview",
        "requests",
        "requests?query=r-",
        "requests?state=running",
        "requests?query=r-1",
        "requests/r-1",
    )
    for path in (*reads, "requests?query=nobody"):
        answer = await http.get(f"/ui/api/{path}")
        assert answer.status_code == 200, answer.text
    (letter,) = (await http.get("/ui/api/dead")).json()["data"]
    ids = {"ids": [letter["letter_id"]]}
    for path, body, told in (
        ("pause", {}, {"changed": ["critical", "high", "normal", "low"]}),
        ("resume", {}, {"changed": ["critical", "high", "normal", "low"]}),
        ("requests/r-0/cancel", {}, {"cancelled": True}),
        ("dead/requeue", ids, {"done": 1}),
        ("dead/purge", ids, {"deleted": 0}),
    ):
        answer = await http.post(f"/ui/api/{path}", json=body)
        assert answer.status_code == 200, answer.text
        assert told.items() <= answer.json().items()
