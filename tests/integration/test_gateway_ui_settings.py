"""/ui as the settings have it: without keys, where a browser's own words keep other sites out; and switched off."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.gateway_here import HOST, gateway_here
from tests.integration.gateway_process import add_key

OVERVIEW, PAUSE = "/ui/api/overview", "/ui/api/pause"
OWN = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}


async def paused(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> int:
    """Number of paused lanes."""
    lanes = (await http.get(OVERVIEW, headers=headers)).json()["lanes"]
    return sum(lane["paused_s"] is not None for lane in lanes)


async def test_without_keys_whoever_reaches_it_may(redis_url: str) -> None:
    async with gateway_here(redis_url, keys="off") as http:
        assert await paused(http) == 0
        assert (await http.post(PAUSE, json={"lanes": ["low"]}, headers=OWN)).json()["changed"] == ["low"]
        assert await paused(http, OWN) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{HOST}1"},
    ],
    ids=str,
)
async def test_without_keys_other_sites_neither_act_nor_read(redis_url: str, headers: dict[str, str]) -> None:
    async with gateway_here(redis_url, keys="off", origins="*") as http:
        for path in ("dead/requeue", "dead/purge", "pause", "resume", "requests/x/cancel"):
            answer = await http.post(f"/ui/api/{path}", json={}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
        assert (await http.get(OVERVIEW, headers=headers)).status_code == 403
        assert await paused(http) == 0, "nothing was done"


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}], ids=str)
async def test_without_keys_other_sites_ask_no_model(redis_url: str, headers: dict[str, str]) -> None:
    """A page of any site could have spent the GPUs of a gateway that its visitor reaches."""
    async with gateway_here(redis_url, keys="off", models="m=default", origins="https://app.example") as http:
        for path in ("/v1/chat/completions", "/v1/files", "/v1/batches", "/v1/batch/sync"):
            answer = await http.post(path, content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
        assert (await http.get("/v1/models", headers=headers)).status_code == 403
        named = {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}
        for allowed in ({}, OWN, named):
            assert (await http.get("/v1/models", headers=allowed)).status_code == 200


async def test_with_keys_a_page_of_another_origin_may_where_it_has_one(redis_url: str) -> None:
    key, _ = await add_key(redis_url, "ops", operator=True)
    async with gateway_here(redis_url, key, origins="https://ops.example") as http:
        answer = await http.get(OVERVIEW, headers={"Origin": "https://ops.example", "Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200


async def test_switched_off_there_is_no_page(redis_url: str) -> None:
    key, _ = await add_key(redis_url, "ops", operator=True)
    async with gateway_here(redis_url, key, ui="off") as http:
        for path in ("/ui", "/ui/", "/ui/static/app.js", OVERVIEW, "/ui/api/dead", "/ui/api/requests/x"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post(PAUSE, json={})).status_code == 404
        assert (await http.get("/livez")).status_code == 200


async def test_redis_away_is_said(redis_url: str) -> None:
    dead = "redis://127.0.0.1:1/0"
    async with gateway_here(redis_url, keys="off", ui_redis_url=dead) as http:
        answer = await http.get(OVERVIEW)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_unavailable")
        assert answer.headers["retry-after"]
        assert "127.0.0.1" not in answer.text


async def test_the_document_does_not_promise_it(redis_url: str) -> None:
    async with gateway_here(redis_url, keys="off") as http:
        assert not [path for path in (await http.get("/openapi.json")).json()["paths"] if path.startswith("/ui")]
