"""The API behind the page /ui: who may look and act, what is shown of anything, and that acting acts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import redis

from streamfleet.producer.client import Client
from tests.integration.cli_processes import streamfleet
from tests.integration.gateway_process import Stage, add_key, make_key, stage_in
from tests.integration.worker_process import chat
from tests.waiting import eventually

API = "/ui/api"
READS = ("overview", "requests", "requests/x", "dead")
ACTS = ("dead/requeue", "dead/purge", "pause", "resume", "requests/x/cancel")
PATHS = [*(("GET", path) for path in READS), *(("POST", path) for path in ACTS)]
HOSTILE = {
    "markup": b'{"messages":[{"role":"user","content":"<img src=x onerror=alert(1)></script>"}]}',
    "nul": b'{"a":"\x00"}',
    "surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "no_utf8": b"\xff\xfe<b>",
    "deep": b"[" * 3000 + b"]" * 3000,
    "empty": b"",
    "large": b'{"messages":"' + b"x" * 300_000 + b'"}',
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage of its own: lanes are paused, and odd things are written by hand."""
    with stage_in(tmp_path_factory.mktemp("ui")) as stage:
        yield stage


@pytest.fixture(scope="module")
def operator(stage: Stage) -> str:
    """An operator's key."""
    return make_key(stage.url, "ops", operator=True)[0]


@pytest.fixture
async def ops(stage: Stage, operator: str) -> AsyncIterator[httpx.AsyncClient]:
    """The operator's client; all lanes go on at its end."""
    async with stage.gateway.http(operator) as http:
        yield http
        await http.post(f"{API}/resume", json={})


@pytest.fixture
def rows(stage: Stage) -> Iterator[redis.Redis]:
    """The stage's Redis."""
    with redis.Redis.from_url(stage.url) as client:
        yield client


async def get(http: httpx.AsyncClient, path: str, **query: Any) -> Any:
    """An answer that is right, as strict JSON."""
    answer = await http.get(f"{API}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.content.decode(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """The same of what acts."""
    answer = await http.post(f"{API}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def paused_in(page: Any) -> list[str]:
    """The lanes that are paused."""
    return [lane["lane"] for lane in page["lanes"] if lane["paused_s"] is not None]


async def overview(http: httpx.AsyncClient) -> Any:
    """A reading that is not older than this call."""
    await post(http, "resume", lanes=["critical"])
    return await get(http, "overview")


def lane_of(page: Any, name: str) -> Any:
    return next(lane for lane in page["lanes"] if lane["lane"] == name)


# -- who may ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_only_operators_get_in(stage: Stage, method: str, path: str) -> None:
    body: dict[str, Any] | None = {} if method == "POST" else None
    expected = {None: (401, "invalid_api_key"), "sf-" + "A" * 43: (401, "invalid_api_key")}
    expected[stage.key] = (403, "operator_key_required")
    for key, (status, code) in expected.items():
        async with stage.gateway.http(key) as http:
            answer = await http.request(method, f"{API}/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_the_key_counts_in_its_header_alone(stage: Stage, operator: str) -> None:
    async with stage.gateway.http() as http:
        for query, cookies in (({"key": operator, "api_key": operator}, ""), ({}, f"key={operator}; token={operator}")):
            answer = await http.get(f"{API}/overview", params=query, headers={"Cookie": cookies})
            assert answer.status_code == 401


def test_an_operators_key_is_made_on_the_command_line(stage: Stage) -> None:
    made = streamfleet(stage.url, "gateway", "keys", "create", "by-hand", "--operator")
    assert "the page /ui" in made.stderr
    with stage.gateway.http_blocking(made.stdout.strip()) as http:
        assert http.get(f"{API}/overview").status_code == 200
    listed = streamfleet(stage.url, "gateway", "keys", "list", "--json").stdout
    assert {row["name"]: row["operator"] for row in map(json.loads, listed.splitlines())}["by-hand"] is True
    assert "operator" in streamfleet(stage.url, "gateway", "keys", "list").stdout


async def test_an_operators_key_has_no_limit_here(stage: Stage) -> None:
    key, _ = await add_key(stage.url, "limited", operator=True, limits=(1, None))
    async with stage.gateway.http(key) as http:
        assert [(await http.get(f"{API}/overview")).status_code for _ in range(5)] == [200] * 5


async def test_what_acts_is_json(stage: Stage, operator: str) -> None:
    async with stage.gateway.http(operator) as http:
        for path in ACTS:
            plain = await http.post(f"{API}/{path}", content=b"{}", headers={"Content-Type": "text/plain"})
            assert (plain.status_code, plain.json()["error"]["code"]) == (415, "json_required")
            wrong = await http.post(f"{API}/{path}", content=b"[", headers={"Content-Type": "application/json"})
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_json")
            large = await http.post(f"{API}/{path}", json={"ids": "x" * 70_000})
            assert large.status_code == 413


# -- files -----------------------------------------------------------------------------------------------


async def test_the_page_needs_no_key_and_runs_nothing_of_others(stage: Stage) -> None:
    async with stage.gateway.http() as http:
        page = await http.get("/ui")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        again = await http.get("/ui", headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"]
        for name in ("../routes.py", "%2e%2e%2froutes.py", "nothing.js"):
            assert (await http.get(f"/ui/static/{name}")).status_code == 404
        assert stage.gateway.metric('streamfleet_gateway_requests_total{code="304",endpoint="/ui"}') >= 1


# -- looking ---------------------------------------------------------------------------------------------


async def test_a_queue_at_work(stage: Stage, ops: httpx.AsyncClient) -> None:
    await post(ops, "pause", lanes=["low", "normal"])
    async with Client(stage.url) as fleet:
        resting = [
            await fleet.enqueue(chat(), lane="low", id=f"rest-{n}", ttl_ms=60_000, tenant="acme") for n in range(3)
        ]
        running = await fleet.enqueue(chat(30), lane="high", id="long-1")

        async def held() -> Any:
            page = await overview(ops)
            return page if lane_of(page, "high")["running"] == 1 and lane_of(page, "low")["ready"] == 3 else None

        page = await eventually(held, 10, "one runs and three wait")
        low = lane_of(page, "low")
        assert (page["queue"], page["queues"]) == ("default", ["default"])
        assert (low["paused_s"] >= 0, low["cause"]) == (True, "paused")
        assert [each["count"] for each in low["pressure"]][:2] == [0, 0]
        worker = page["workers"][0]
        assert (worker["name"], worker["running"], worker["models"]) == ("w1", 1, ["simulated"])
        assert page["outstanding"] == 4
        story = await get(ops, "requests/long-1")
        assert (story["state"], story["worker"], story["can_cancel"]) == ("running", "w1", True)
        assert "Say hi" in story["body"]["text"]
        assert [event["kind"] for event in story["events"]] == ["enqueued", "started"]
        found = await get(ops, "requests", lane="low", tenant="acme", state="waiting")
        assert {row["id"] for row in found["data"]} == {"rest-0", "rest-1", "rest-2"}
        assert [row["id"] for row in (await get(ops, "requests", state="running"))["data"]] == ["long-1"]
        assert (await post(ops, "requests/long-1/cancel"))["cancelled"] is True
        assert (await running.result(10)).status == "cancelled"
        after = await post(ops, "requests/long-1/cancel")
        assert after == {"object": "ui.cancelled", "id": "long-1", "cancelled": True, "state": "cancelled"}
        assert sorted((await post(ops, "resume"))["changed"]) == ["low", "normal"]
        assert [(await each.result(10)).status for each in resting] == ["succeeded"] * 3
        done = await get(ops, "requests/rest-0")
        assert (done["state"], done["output"], done["can_cancel"]) == ("succeeded", "[simulated]", False)
        assert [event["kind"] for event in done["events"]][:2] == ["enqueued", "started"]
        ended = await post(ops, "requests/rest-0/cancel")
        assert (ended["cancelled"], ended["state"]) == (False, "succeeded")
    rates = (await overview(ops))["rates"]
    assert (rates["enqueued_per_s"] > 0, rates["finished_per_s"] > 0) == (True, True)
    assert rates["latency"]["total_s"] >= rates["latency"]["running_s"] > 0


async def test_what_runs_next_stands_in_its_order(stage: Stage, ops: httpx.AsyncClient, rows: redis.Redis) -> None:
    """A lane that was put in order and then paused."""
    async with Client(stage.url) as fleet:
        holders = [await fleet.enqueue(chat(30), lane="critical", id=f"hold-{n}") for n in range(256)]
        waiting = [await fleet.enqueue(chat(), id=f"next-{n}", ttl_ms=400_000 - 50_000 * n) for n in range(7)]

        async def ordered() -> Any:
            page = await get(ops, "overview")
            lane = lane_of(page, "normal")  # what comes next is read a moment after the sample of deadlines
            return page if len(lane["next"]) == 5 and lane["pressure"][3]["count"] else None

        page = await eventually(ordered, 15, "they stand in order")
        lane = lane_of(page, "normal")
        assert [each["id"] for each in lane["next"]] == [f"next-{n}" for n in (6, 5, 4, 3, 2)]
        assert [round(each["left_s"], -1) for each in lane["next"]] == pytest.approx([100, 150, 200, 250, 300], abs=21)
        assert lane["next"][0]["bytes"] > 10
        assert [each["count"] for each in lane["pressure"]][:3] == [0, 0, 0]
        assert 3 <= lane["pressure"][3]["count"] <= 5
        assert lane["pressure_exact"]
        for each in (*waiting, *holders):
            await each.cancel()
    await eventually(lambda: rows.hlen("{default}:tries") >= 0 and rows.xlen("{default}:lane:critical") == 0, 10)


async def test_search_is_bounded_and_says_how_far_it_looked(ops: httpx.AsyncClient, rows: redis.Redis) -> None:
    await post(ops, "pause", lanes=["low"])
    with rows.pipeline() as pipe:
        for n in range(400):
            pipe.xadd("{default}:lane:low", {"id": f"many-{n}", "body": json.dumps(chat()), "ttl": "600000"})
        entry = pipe.execute()[399].decode()
    found = await get(ops, "requests", query="many-", lane="low", limit=7)
    assert ([row["id"] for row in found["data"]], found["more"]) == ([f"many-{n}" for n in range(399, 392, -1)], True)
    none = await get(ops, "requests", query="many-1", lane="low", tenant="nobody")
    assert (none["data"], none["more"]) == ([], False)
    assert (none["looked"]["entries"], none["looked"]["outstanding"]) == (200, 400)
    assert "200 of 400" in none["note"]
    (exact,) = (await get(ops, "requests", query=f"low:{entry}"))["data"]
    assert (exact["exact"], exact["state"], exact["entry"]) == (True, "waiting", f"low:{entry}")
    await post(ops, "resume")
    await eventually(lambda: rows.xlen("{default}:lane:low") == 0, 20, "they run")
    ended = await get(ops, "requests", query="any-39")
    assert "many-399" in {row["id"] for row in ended["data"]}
    assert ended["looked"]["results"] >= 400


async def test_what_there_is_not(ops: httpx.AsyncClient) -> None:
    for path, code in (
        ("requests/nobody-knows-this", "request_not_found"),
        ("requests/high:1-1", "request_not_found"),
        ("requests/%00%ff%3Cb%3E", "request_not_found"),
        ("overview?queue=other", "queue_not_found"),
        ("overview?queue=%00%ff", "queue_not_found"),
    ):
        answer = await ops.get(f"{API}/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, code), path
    assert (await ops.post(f"{API}/requests/nobody/cancel", json={})).status_code == 404
    for path, param in (("requests?limit=1000", "limit"), ("dead?before=x", "before"), ("requests?state=x", "state")):
        answer = await ops.get(f"{API}/{path}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# -- dead letters ----------------------------------------------------------------------------------------


async def test_dead_letters_are_read_requeued_and_purged(ops: httpx.AsyncClient, stage: Stage) -> None:
    await purge_all(ops)
    async with Client(stage.url) as fleet:
        await post(ops, "pause", lanes=["low"])
        late = await fleet.enqueue(chat(), lane="low", id="late-1", ttl_ms=50)
        assert (await late.result(10)).status == "expired"
        for n in range(3):
            handle = await fleet.enqueue(chat(model="another"), id=f"wrong-{n}")
            assert (await handle.result(10)).status == "failed"
        first = await get(ops, "dead", limit=3)
        assert ([each["request_id"] for each in first["data"]], first["total"]) == (
            ["wrong-2", "wrong-1", "wrong-0"],
            4,
        )
        rest = await get(ops, "dead", limit=3, before=first["next"])
        assert ([each["request_id"] for each in rest["data"]], rest["next"]) == (["late-1"], None)
        letter = rest["data"][0]
        assert (letter["status"], letter["code"], letter["lane"]) == ("expired", "deadline_exceeded", "low")
        await post(ops, "resume")
        gone = "1-1"
        done = await post(ops, "dead/requeue", ids=[letter["letter_id"], gone])
        assert (done["done"], done["data"][0]["dropped"], done["data"][1]["ok"]) == (1, ["ttl"], False)
        assert (await late.result(10)).status in ("expired", "succeeded")
        await eventually(lambda: state_is(ops, "late-1", "succeeded"), 10, "it ran after all")
        ids = [each["letter_id"] for each in first["data"]]
        assert (await post(ops, "dead/purge", ids=ids[:2]))["deleted"] == 2
        assert [each["request_id"] for each in (await get(ops, "dead"))["data"]] == ["wrong-0"]
        assert (await post(ops, "dead/purge", ids=ids))["deleted"] == 1
        assert (await overview(ops))["dead_letters"] == 0


async def purge_all(http: httpx.AsyncClient) -> None:
    while ids := [each["letter_id"] for each in (await get(http, "dead", limit=100))["data"]]:
        assert (await post(http, "dead/purge", ids=ids))["deleted"] == len(ids)


async def state_is(http: httpx.AsyncClient, request_id: str, state: str) -> bool:
    answer = await http.get(f"{API}/requests/{request_id}")
    return answer.status_code == 200 and answer.json()["state"] == state


async def test_pause_keeps_workers_away(ops: httpx.AsyncClient, stage: Stage) -> None:
    assert paused_in(await get(ops, "overview")) == []
    paused = await post(ops, "pause")
    assert paused["changed"] == ["critical", "high", "normal", "low"]
    assert paused_in(await get(ops, "overview")) == ["critical", "high", "normal", "low"]
    async with Client(stage.url) as fleet:
        handle = await fleet.enqueue(chat(), id="kept-back")
        with pytest.raises(TimeoutError):
            await handle.result(0.4)
        assert (await post(ops, "resume", lanes=["normal"]))["changed"] == ["normal"]
        assert (await handle.result(10)).status == "succeeded"


# -- hostile content -------------------------------------------------------------------------------------


async def test_whatever_stands_in_redis_there_is_an_answer(
    stage: Stage, ops: httpx.AsyncClient, rows: redis.Redis
) -> None:
    await post(ops, "pause")
    entries = {}
    for name, body in HOSTILE.items():
        fields: dict[Any, Any] = {
            "id": f"odd-{name}",
            "body": body,
            b"\xff\x00<i>": b"\xff" * 5000,
            "tenant": b"<b>\xff\x00",
        }
        entry: Any = rows.xadd("{default}:lane:high", fields)
        entries[name] = entry.decode()
    rows.xadd("{default}:lane:high", {"id": b"\xff\x00", "body": b"\xff"})
    rows.hset(
        "{default}:result:odd-result",
        mapping={
            "status": "odd\x00",
            "response": b'{"x":NaN,"usage":1}',
            "usage": b'{"a":1e999}',
            "lane": b"\xff",
            "enqueued_ms": "9" * 15,
        },
    )
    rows.hset(
        "{default}:result:odd-ok",
        mapping={"status": "succeeded", "response": b"\xff\x00", "usage": b"[1]", "entry": "x"},
    )
    rows.xadd(
        "{default}:dead",
        {"_id": b"\xff\x00", "_status": b"\xff", "_error": b'{"message":NaN}', "_entry": "x:y", "body": b"\x00"},
    )
    rows.xadd("{default}:dead", {"x": "y"})
    worker = b'{"state":"\\ud800","models":["<b>",1e999],"seen_ms":NaN,"slots":-1}'

    async def both_are_shown() -> bool:
        rows.hset("{default}:workers", "<w>\xff", worker)  # the other one, when it is its turn, forgets it
        return bool((await overview(ops))["workers_total"] == 2)

    await eventually(both_are_shown, what="both workers are shown")
    for path in ("requests", "dead", "requests?state=failed", "requests?query=odd-", "requests?query=%00"):
        await get(ops, path)
    for name, entry in entries.items():
        for asked in (f"odd-{name}", f"high:{entry}"):
            story = await get(ops, f"requests/{asked}")
            assert story["id"] == f"odd-{name}"
            assert story["body"]["bytes"] == len(HOSTILE[name])
            assert len(story["body"]["text"]) <= 65_536
            assert "\x00" not in json.dumps(story, ensure_ascii=False)
    assert (await get(ops, "requests/odd-markup"))["fields"]["tenant"] == "<b>\\xff\\x00"
    assert (await get(ops, "requests/odd-large"))["body"]["cut"] is True
    assert (await get(ops, "requests/odd-result"))["state"] == "failed"
    assert (await get(ops, "requests/odd-ok"))["result"]["text"] == "\ufffd\\x00"
    letters = await get(ops, "dead", limit=100)
    assert [each["can_requeue"] for each in letters["data"][:2]] == [False, False]
    done = await post(ops, "dead/requeue", ids=[each["letter_id"] for each in letters["data"][:2]])
    assert done["done"] == 0
    rows.zadd("{default}:ready:high", {"junk": 1, "T99999999999999999999-A0": 2})
    await overview(ops)
    rows.zrem("{default}:ready:high", "junk", "T99999999999999999999-A0")
    rows.hdel("{default}:workers", "<w>\xff")
    await post(ops, "resume")
    await eventually(lambda: rows.xlen("{default}:lane:high") == 0, 15, "the worker ends them all")
    after = await get(ops, "dead", limit=100)
    assert any(each["request_id"] == "odd-no_utf8" for each in after["data"])
    assert not stage.gateway.events("request_broke")
