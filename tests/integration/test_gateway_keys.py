"""API keys of the gateway: who gets in, where to and how often; nobody reads another's answers, and no key is shown."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import redis

from streamfleet.common.connection import Connection
from streamfleet.common.protocol import Lane
from streamfleet.gateway.api_keys import (
    GatewayNames,
    digest_of,
    id_of,
    looks_like_a_key,
    make_record,
    new_secret,
)
from streamfleet.gateway.broker.api_keys import GatewayBroker
from streamfleet.gateway.key_cache import MAX_AGE_S
from tests.integration.cli_processes import streamfleet
from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on
from tests.integration.worker_process import chat
from tests.waiting import eventually

PATH = "/v1/chat/completions"
BODY = chat(model="simulated")


@pytest.fixture(scope="module")
def strict(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A second gateway, which lets a key without a limit of its own send one request a minute."""
    with gateway_on(stage.url, tmp_path_factory.mktemp("strict"), gateway_requests_per_minute=1) as process:
        yield process


# -- getting in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Basic eDp5", "Bearer sk-proj-1", "Bearer sf-" + "A" * 43, "sf-" + "A" * 43],
)
async def test_nobody_gets_in_without_a_key(stage: Stage, header: str | None) -> None:
    async with stage.gateway.http() as http:
        for path in (PATH, "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/streams/x", "/v1/messages"):
            headers = {} if header is None else {"Authorization": header}
            method = "GET" if path.startswith(("/v1/models", "/v1/streams")) else "POST"
            answer = await http.request(method, path, json=BODY if method == "POST" else None, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
            error = answer.json()["error"]
            assert error.get("code") == "invalid_api_key" or error["type"] == "authentication_error"


async def test_what_comes_behind_a_refused_body_is_still_understood(stage: Stage) -> None:
    """The body of a refused request must not be taken for the next request of its connection."""
    async with stage.gateway.http() as http:
        for _ in range(3):
            assert (await http.post(PATH, json=BODY)).status_code == 401
        assert (await http.get("/livez")).status_code == 200


@pytest.mark.parametrize("key", ["dummy", "EMPTY", "sk-wrong", "sf-" + "A" * 43])
async def test_openais_client_is_told_and_its_user_what_to_do(stage: Stage, key: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=key, max_retries=0) as sdk:
        with pytest.raises(openai.AuthenticationError) as caught:
            await sdk.models.list()
    assert caught.value.code == "invalid_api_key"
    for step in ("streamfleet gateway keys create NAME", "STREAMFLEET_GATEWAY_KEYS=off"):
        assert step in str(caught.value)
    assert key not in str(caught.value)


def test_a_key_lives_from_create_to_revoke(stage: Stage) -> None:
    made = streamfleet(stage.url, "gateway", "keys", "create", "reports", "--tenant", "acme", "--lane", "low")
    key = made.stdout.strip()
    assert looks_like_a_key(key)
    assert "not shown again" in made.stderr
    assert key not in made.stderr
    with stage.gateway.http_blocking(key) as http:
        answer = http.post(PATH, json={**BODY, "service_tier": "flex"})
        assert answer.status_code == 200
        listed = [
            json.loads(line) for line in streamfleet(stage.url, "gateway", "keys", "list", "--json").stdout.splitlines()
        ]
        (mine,) = [row for row in listed if row["name"] == "reports"]
        assert (mine["tenant"], mine["lanes"]) == ("acme", ["low"])
        assert key not in str(listed)
        assert "reports" in streamfleet(stage.url, "gateway", "keys", "list").stdout
        assert streamfleet(stage.url, "gateway", "keys", "revoke", mine["id"]).returncode == 0
        assert (http.post(PATH, json=BODY)).status_code == 401, "at once, in every gateway"
    again = streamfleet(stage.url, "gateway", "keys", "revoke", mine["id"])
    assert (again.returncode, "there is no such key" in again.stderr) == (1, True)
    assert streamfleet(stage.url, "gateway", "keys", "revoke", "x").returncode == 2


async def test_a_gateway_remembers_a_key_and_hears_when_it_is_revoked(stage: Stage) -> None:
    """A key deleted by hand is announced to nobody: that it still works shows that the gateway remembers keys."""
    broker = GatewayBroker(Connection(stage.url), GatewayNames())
    try:
        with stage.gateway.http_blocking(new_secret()) as deleted, stage.gateway.http_blocking(new_secret()) as revoked:
            await eventually(lambda: _outlives_its_record(broker, deleted), within_s=10)
            await eventually(lambda: _status(deleted) == 401, within_s=MAX_AGE_S + 5)

            await eventually(lambda: _outlives_its_record(broker, revoked), within_s=10)
            digest = await _add(broker, revoked)
            assert await broker.revoke(id_of(digest))
            await eventually(lambda: _status(revoked) == 401, within_s=MAX_AGE_S / 2)
    finally:
        await broker.close()


async def _outlives_its_record(broker: GatewayBroker, http: httpx.Client) -> bool:
    digest = await _add(broker, http)
    assert _status(http) == 200
    await broker.connection.command("HDEL", broker.names.keys, digest)
    return _status(http) == 200


async def _add(broker: GatewayBroker, http: httpx.Client) -> str:
    digest = digest_of(http.headers["authorization"].removeprefix("Bearer "))
    await broker.add(digest, make_record(digest, "name", "acme"))
    return digest


def _status(http: httpx.Client) -> int:
    return http.get("/v1/models").status_code


def test_a_key_ends(stage: Stage) -> None:
    made = streamfleet(stage.url, "gateway", "keys", "create", "short", "--expires", "300ms", "--json")
    with stage.gateway.http_blocking(json.loads(made.stdout)["key"]) as http:
        answer = http.get("/v1/models")
        give_up = time.monotonic() + 5
        while answer.status_code == 200 and time.monotonic() < give_up:
            answer = http.get("/v1/models")
    assert answer.status_code == 401
    assert "expired" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["create", ""], "name: must not be empty"), (["create", "n", "--expires", "soon"], "--expires: must be a time")],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_what_makes_no_sense_is_refused(stage: Stage, words: list[str], said: str) -> None:
    ended = streamfleet(stage.url, "gateway", "keys", *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


# -- what a key may do -------------------------------------------------------------------------------------


async def test_a_key_keeps_to_its_lanes(stage: Stage) -> None:
    key, _ = await add_key(stage.url, "usual")
    async with stage.gateway.http(key) as http:
        critical = await http.post(PATH, json=BODY, headers={"X-Streamfleet-Lane": "critical"})
        assert (critical.status_code, critical.json()["error"]["code"]) == (403, "lane_not_allowed")
        assert (await http.post(PATH, json=BODY, headers={"X-Streamfleet-Lane": "high"})).status_code == 200
    low, _ = await add_key(stage.url, "low", lanes=(Lane.LOW,))
    async with stage.gateway.http(low) as http:
        assert (await http.post(PATH, json={**BODY, "service_tier": "default"})).status_code == 403
        assert (await http.post(PATH, json=BODY, headers={"X-Streamfleet-Lane": "normal"})).status_code == 403
        assert (await http.post(PATH, json={**BODY, "service_tier": "flex"})).status_code == 200


@pytest.mark.parametrize(
    ("lanes", "used"),
    [
        ((Lane.LOW,), "low"),
        ((Lane.CRITICAL,), "critical"),
        ((Lane.CRITICAL, Lane.HIGH), "high"),
        ((Lane.HIGH, Lane.LOW), "low"),
        ((Lane.CRITICAL, Lane.LOW), "low"),
        ((Lane.NORMAL, Lane.LOW), None),
    ],
)
async def test_a_call_that_names_no_lane_runs_in_the_nearest_that_its_key_may_use(
    stage: Stage, lanes: tuple[Lane, ...], used: str | None
) -> None:
    key, _ = await add_key(stage.url, "nearest", lanes=lanes)
    async with stage.gateway.http(key) as http:
        prompts = await http.post("/v1/batch/sync", json={"model": "simulated", "prompts": ["hi"], "max_tokens": 2})
        streamed = await http.post(PATH, json={**BODY, "stream": True})
        told = await http.post(PATH, json={**BODY, "service_tier": "auto"})
        for answer in (await http.post(PATH, json=BODY), told, streamed, prompts):
            assert (answer.status_code, answer.headers.get("x-streamfleet-lane")) == (200, used), answer.text
        tier = {"low": "flex", None: "default"}.get(used, "priority")
        assert told.json()["service_tier"] == tier
        job = await http.post("/v1/batch/async", json={"model": "simulated", "prompts": ["hi"], "max_tokens": 2})
        assert (job.status_code, job.headers.get("x-streamfleet-lane")) == (202, None if Lane.LOW in lanes else used)


async def test_tenants_cannot_reach_each_others_requests(stage: Stage) -> None:
    """Not by the same Idempotency-Key, and not by the id."""
    mine, _ = await add_key(stage.url, "mine")
    other, _ = await add_key(stage.url, "other")
    headers = {"Idempotency-Key": "order-42"}
    async with stage.gateway.http(mine) as me, stage.gateway.http(other) as them:
        one = await me.post(PATH, json={**BODY, "max_tokens": 3}, headers=headers)
        two = await them.post(PATH, json={**BODY, "max_tokens": 2}, headers=headers)
        assert (one.status_code, two.status_code) == (200, 200), "no conflict between them"
        assert one.headers["x-streamfleet-id"] != two.headers["x-streamfleet-id"]
        assert one.json()["usage"] != two.json()["usage"]
        stolen = await them.get(f"/v1/streams/{one.headers['x-streamfleet-id']}")
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (404, "request_not_found")


async def test_requests_per_minute_hold_across_gateways(stage: Stage, strict: GatewayProcess) -> None:
    key, _ = await add_key(stage.url, "few", limits=(3, None))
    async with stage.gateway.http(key) as one, strict.http(key) as two:
        first = await one.post(PATH, json=BODY)
        assert first.headers["x-ratelimit-limit-requests"] == "3"
        assert first.headers["x-ratelimit-remaining-requests"] == "2"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        found = [(await http.post(PATH, json=BODY)).status_code for http in (two, one, two, one)]
        assert found == [200, 200, 429, 429]
        refused = await two.post(PATH, json=BODY)
        assert refused.json()["error"] | {"message": ""} == {
            "message": "", "type": "requests", "param": None, "code": "rate_limit_exceeded",
        }  # fmt: skip
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await two.get("/v1/models")).status_code == 200, "looking is not counted"
    assert strict.metric('streamfleet_gateway_refused_total{reason="requests_per_minute"}') == 2


async def test_tokens_per_minute(stage: Stage) -> None:
    """The largest possible use is taken before a request runs, and the unused part is put back."""
    key, _ = await add_key(stage.url, "thrifty", limits=(None, 400))
    async with stage.gateway.http(key) as http:
        large = await http.post(PATH, json={**BODY, "max_tokens": 1_000})
        assert large.status_code == 429
        assert large.headers["x-should-retry"] == "false", "it will never fit"
        used = (await http.post(PATH, json={**BODY, "max_tokens": 5})).json()["usage"]["total_tokens"]

        async def left() -> bool:
            found = await http.get("/v1/models")
            return bool(int(found.headers["x-ratelimit-remaining-tokens"]) >= 400 - used - 1)

        await eventually(left, 2, "what was reserved and not used is back")
        body = {**BODY, "max_tokens": 250}
        both = await asyncio.gather(http.post(PATH, json=body), http.post(PATH, json=body))
    assert sorted(answer.status_code for answer in both) == [200, 429]
    (refused,) = [answer for answer in both if answer.status_code == 429]
    assert refused.json()["error"]["type"] == "tokens"
    assert int(refused.headers["retry-after"]) >= 1


async def test_keys_without_limits_have_the_gateways_own(stage: Stage, strict: GatewayProcess) -> None:
    key, _ = await add_key(stage.url, "plain")
    async with strict.http(key) as http:
        assert [(await http.post(PATH, json=BODY)).status_code for _ in range(2)] == [200, 429]


# -- keys off ----------------------------------------------------------------------------------------------


async def test_keys_can_be_off_but_not_silently(stage: Stage, tmp_path: Path) -> None:
    with gateway_on(stage.url, tmp_path, gateway_keys="off") as trusting:
        async with trusting.http() as http:
            answer = await http.post(PATH, json=BODY, headers={"X-Streamfleet-Lane": "critical"})
            assert answer.status_code == 200
            assert answer.headers["x-streamfleet-id"].startswith("open-")
        (warning,) = trusting.events("gateway_is_open")
        assert warning["level"] == "warning"
        health = json.loads(trusting.get("/health").text)
        assert health["keys"] == "off"
        assert "keys are off" in health["warnings"][0]
        assert trusting.stop() == 0


# -- secrets -----------------------------------------------------------------------------------------------


def test_a_key_is_written_nowhere(stage: Stage) -> None:
    key = streamfleet(stage.url, "gateway", "keys", "create", "secret").stdout.strip()
    with stage.gateway.http_blocking(key) as http:
        answers = [http.post(PATH, json=BODY), http.post(PATH, content=b"{"), http.get("/v1/x"), http.get("/v1/models")]
    shown = [answer.text + str(answer.headers) for answer in answers]
    with redis.Redis.from_url(stage.url, decode_responses=True, encoding_errors="replace") as client:
        names = list(client.scan_iter())
        stored = str([client.hgetall(name) for name in names if client.type(name) == "hash"])
    assert answers[0].status_code == 200
    for text in (stage.gateway.printed(), stored, str(names), *shown):
        assert key not in text
        assert key[3:] not in text
