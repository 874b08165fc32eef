"""Refusals of gateway and worker name the field in their message; fields that a model ignores are named in a header."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
import redis.asyncio

from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, RESPONSES
from streamfleet.gateway import inference
from streamfleet.gateway.request_parameters import MOST_IGNORED_CHARS
from streamfleet.worker.cost.check import pack_fields
from tests.integration.gateway_here import gateway_here
from tests.integration.worker_process import WorkerProcess, chat

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {
    "no messages": (CHAT, {"model": "simulated"}, {}, "messages"),
    "no prompt": (COMPLETIONS, {}, {}, "prompt"),
    "no input": (EMBEDDINGS, {}, {}, "input"),
    "no query": (RERANK, {}, {}, "query"),
    "a stored response": (RESPONSES, {"input": "x", "previous_response_id": "r"}, {}, "previous_response_id"),
    "a reference": (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, {}, "input.0"),
    "a stream of vectors": (RERANK, {"query": "x", "stream": True}, {}, "stream"),
    "a stream flag in words": (CHAT, chat(stream="yes"), {}, "stream"),
    "a tier": (CHAT, chat(service_tier="gold"), {}, "service_tier"),
    "a user that is a number": (CHAT, chat(user=7), {}, "user"),
    "a model that is a number": (CHAT, chat(model=7), {}, "model"),
    "no such model": (CHAT, chat(model="gpt-9"), {}, "model"),
    "a lane": (CHAT, chat(), {"X-Streamfleet-Lane": "fast"}, "X-Streamfleet-Lane"),
    "a deadline": (CHAT, chat(), {"X-Streamfleet-Deadline-Ms": "soon"}, "X-Streamfleet-Deadline-Ms"),
    "a ttl": (CHAT, chat(), {"X-Streamfleet-Ttl": "soon"}, "X-Streamfleet-Ttl"),
    "restarts": (CHAT, chat(), {"X-Streamfleet-Restarts": "x"}, "X-Streamfleet-Restarts"),
    "expected": (CHAT, chat(), {"X-Streamfleet-Expected": "x"}, "X-Streamfleet-Expected"),
    "on disconnect": (CHAT, chat(), {"X-Streamfleet-On-Disconnect": "x"}, "X-Streamfleet-On-Disconnect"),
    "an event id": (CHAT, chat(), {"Last-Event-ID": "x"}, "Last-Event-ID"),
    "a long key": (CHAT, chat(), {"Idempotency-Key": "k" * 2_000}, "Idempotency-Key"),
    "n": (CHAT, chat(n=99), {}, "n"),
    "tools that are no list": (CHAT, chat(tools={}), {}, "tools"),
    "a removed field": (CHAT, chat(guided_decoding_backend="x"), {}, "guided_decoding_backend"),
    "a temperature of the engine": (CHAT, chat(temperature=-3), {}, "temperature"),
}
TALK = chat()
TOO_LONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "output": (CHAT, chat(max_tokens=8_193), "max_tokens"),
    "output by its newer name": (CHAT, chat(max_completion_tokens=8_193), "max_completion_tokens"),
    "a prompt that the engine counts": (
        CHAT,
        TALK | {"messages": [{"role": "user", "content": "x " * 20_000}]},
        "messages",
    ),
    "a prompt that the worker refuses": (
        CHAT,
        TALK | {"messages": [{"role": "user", "content": "x" * 200_000}]},
        "messages",
    ),
    "a text": (COMPLETIONS, {"prompt": "x " * 20_000}, "prompt"),
}


@pytest.fixture
async def http(redis_url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    with WorkerProcess(redis_url, tmp_path, "w1") as worker:
        await worker.ready()
        async with gateway_here(redis_url, keys="off") as client:
            yield client


async def test_every_message_names_the_field(http: httpx.AsyncClient) -> None:
    silent = {}
    for name, (path, body, headers, param) in REFUSED.items():
        answer = await http.post(path, json=body, headers=headers)
        error = answer.json()["error"]
        assert 400 <= answer.status_code < 500, name
        if error["param"] != param or param not in error["message"]:
            silent[name] = error
    assert not silent


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_too_long_for_the_model_has_openais_code(http: httpx.AsyncClient, stream: bool) -> None:
    for name, (path, body, param) in TOO_LONG.items():
        answer = await http.post(path, json={**body, "stream": stream})
        said = answer.text.partition("data: ")[2] if answer.status_code == 200 else answer.text
        error = json.loads(said.splitlines()[0])["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param), name
        assert param in error["message"]


async def test_models_say_how_long_their_context_is(http: httpx.AsyncClient) -> None:
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["max_model_len"] == 8_192
    assert (await http.get(f"/v1/models/{model['id']}")).json() == model


async def ignored(url: str, told: Mapping[str, Any], body: dict[str, Any]) -> str | None:
    """The header of an answer; only the description of a worker is there, so the request is not run."""
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.delete("{default}:workers")
        now_ms = (await client.time())[0] * 1_000
        for name, fields in told.items():
            said = {
                "seen_ms": now_ms - (900_000 if name == "gone" else 0),
                "models": ["m"],
                "fields": pack_fields(fields) if fields else None,
            }
            await client.hset("{default}:workers", name, json.dumps(said))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "GRACE_S", 0.0)  # nobody answers late, where nobody is
        async with gateway_here(url, keys="off", models="m=default") as http:
            answer = await http.post(CHAT, json=body, headers={"X-Streamfleet-Ttl": "100ms"})
    shown: str | None = answer.headers.get("x-streamfleet-ignored")
    return shown


FIELDS = {CHAT: ["messages", "max_tokens", "ignore_eos", "temperature", "seed", "priority"]}


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"w": FIELDS}, "odd, priority"),
        ({"w": FIELDS, "older": {CHAT: [*FIELDS[CHAT][:3], "seed"]}}, "odd, priority, temperature"),
        ({"w": FIELDS, "other": None}, "odd, priority"),
        ({"other": None}, None),
        ({"gone": FIELDS}, None),
        ({"embeds": {EMBEDDINGS: ["input"]}}, None),
        ({}, None),
    ],
    ids=["one", "two releases", "beside the openai engine", "openai alone", "gone", "another endpoint", "nobody"],
)
async def test_ignored_fields_are_named(redis_url: str, told: dict[str, Any], named: str | None) -> None:
    """Null is no wish; what gateway and worker obey is not ignored; what never reaches the engine is."""
    body = chat(temperature=0, seed=1, priority=3, odd=1, absent=None, guided_json={}, service_tier="auto", user="u")
    assert await ignored(redis_url, told, {**body, "stream": False}) == named


async def test_the_header_is_escaped(redis_url: str) -> None:
    names = ["a\r\nset-cookie: x", "n" * 500, "é,😀"]
    shown = await ignored(redis_url, {"w": FIELDS}, {"messages": [], **dict.fromkeys(names, 1)})
    assert shown is not None
    assert shown.isascii()
    assert shown.isprintable()
    assert [unquote(part) for part in shown.split(", ")] == [name[:64] for name in names]


async def test_the_header_is_bounded(redis_url: str) -> None:
    names = [f"field-{number:04}" for number in range(900)]
    shown = await ignored(redis_url, {"w": FIELDS}, {"messages": [], **dict.fromkeys(names, 1)})
    assert shown is not None
    assert len(shown) <= MOST_IGNORED_CHARS + 8
    *parts, left = shown.split(", ")
    assert int(left) == len(names) - len(parts)
