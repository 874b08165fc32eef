"""The gateway as OpenAI's own Python client sees it; with real Redis and a real worker on the simulated engine."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from streamfleet.common.protocol import LANES
from tests.integration.cli_processes import streamfleet
from tests.integration.gateway_process import GatewayProcess, Stage, gateway_on, status_of
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.worker_process import WorkerProcess, chat
from tests.waiting import eventually

MODEL = "simulated"
MESSAGES: list[Any] = [{"role": "user", "content": "Say hi"}]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def special(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A second gateway, with lanes for a single request, models of its own, and a page elsewhere that may call it."""
    with gateway_on(
        stage.url,
        tmp_path_factory.mktemp("special"),
        lane_limit=1,
        gateway_models="small=default=simulated,other=elsewhere",
        gateway_origins="https://app.example",
    ) as process:
        yield process


# -- answers -----------------------------------------------------------------------------------------------


async def test_chat(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert answer.choices[0].message.content == "[simulated] Say hi Say hi"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


async def test_a_chat_with_an_image_of_three_megabytes(sdk: openai.AsyncOpenAI) -> None:
    """A body had at most 1 MiB, which few images fit into."""
    image = {"url": f"data:image/png;base64,{base64.b64encode(bytes(2_359_296)).decode()}"}
    parts: list[Any] = [{"type": "text", "text": "Say hi"}, {"type": "image_url", "image_url": image}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    answer = await sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
    assert answer.choices[0].message.content


async def test_completions(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model=MODEL, prompt="Once upon", max_tokens=3)
    assert answer.choices[0].text == "[simulated] Once upon"


async def test_embeddings(sdk: openai.AsyncOpenAI) -> None:
    """The client asks for base64 by itself, and makes numbers of it."""
    answer = await sdk.embeddings.create(model=MODEL, input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    assert len(answer.data[0].embedding) == 32
    raw = await sdk.embeddings.with_raw_response.create(model=MODEL, input="one", encoding_format="base64")
    text = json.loads(raw.content)["data"][0]["embedding"]
    assert struct.unpack("<32f", base64.b64decode(text)) == pytest.approx(tuple(answer.data[0].embedding))


async def test_responses(stage: Stage, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model=MODEL, instructions="Be kind", input="Say hi", max_output_tokens=5)
    assert answer.output_text == "[simulated] Be kind Say hi"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5
    assert answer.status == "incomplete"
    assert stage.gateway.metric('streamfleet_gateway_requests_total{code="200",endpoint="/v1/responses"}') == 1
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.responses.create(model=MODEL, input="Say hi", conversation="conv_1")
    assert caught.value.param == "conversation"


POOLED: dict[str, dict[str, Any]] = {
    "/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/rerank": {"query": "a", "documents": ["b", "c"]},
    "/v2/rerank": {"query": "a", "documents": ["b", "c"]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1, 2]},
    "/classify": {"input": ["a"]},
    "/pooling": {"input": "a"},
}


@pytest.mark.parametrize("path", POOLED)
async def test_what_no_worker_serves_is_refused_at_once(stage: Stage, path: str) -> None:
    async with stage.client() as http:
        answer = await http.post(path, json={"model": MODEL, **POOLED[path]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_endpoint")
    assert "x-streamfleet-id" not in answer.headers, "it was not enqueued"


async def test_what_pooling_models_do(stage: Stage, special: GatewayProcess, tmp_path: Path) -> None:
    """By a worker whose server does not tell what it serves."""
    answered = {"object": "list", "data": [{"index": 0, "score": 0.5}], "usage": {"total_tokens": 7}}
    async with HttpEngine(lambda _id, _n: Reply(body=answered)).serving() as engine:
        with WorkerProcess(
            stage.url, tmp_path, "pooling", engine="openai", vllm_url=engine.url, queue="elsewhere", lane_limit=1
        ) as worker:
            await worker.ready()
            async with special.http(stage.key) as http:
                for path, body in POOLED.items():
                    answer = await http.post(path, json={"model": "other", **body})
                    assert (answer.status_code, answer.json()) == (200, answered), path


@pytest.mark.parametrize(("asked", "told"), [("flex", "flex"), ("auto", "default"), (None, None)])
async def test_the_service_tier_that_was_used_is_told(sdk: openai.AsyncOpenAI, asked: Any, told: str | None) -> None:
    tier = {} if asked is None else {"service_tier": asked}
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, **tier)
    assert answer.service_tier == told
    stream = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, stream=True, **tier)
    assert {chunk.service_tier async for chunk in stream} == {told}


async def test_models(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == [MODEL]
    assert (await sdk.models.retrieve(MODEL)).owned_by == "streamfleet"
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.models.retrieve("gpt-9/turbo")
    assert caught.value.code == "model_not_found"


async def test_the_answer_says_what_it_is_about(stage: Stage, rows: redis.asyncio.Redis) -> None:
    async with stage.client() as http:
        answer = await http.post("/v1/chat/completions", json=chat(model=MODEL))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert int(answer.headers["openai-processing-ms"]) < 10_000
    stored = await rows.hgetall(f"{{default}}:result:{answer.headers['x-streamfleet-id']}")
    assert stored["response"] == answer.text, "it is handed on as the engine gave it"

    def lines() -> list[dict[str, Any]]:
        logged = stage.gateway.events("http_request")
        return [event for event in logged if event["http_id"] == answer.headers["x-request-id"]]

    (logged,) = await eventually(lines, what="its line, which is written when the answer is out")
    assert logged["request_id"] == answer.headers["x-streamfleet-id"]
    assert "Say hi" not in stage.gateway.printed()


async def test_what_the_caller_says_goes_with_the_request(stage: Stage, rows: redis.asyncio.Redis) -> None:
    headers = {"traceparent": TRACE, "X-Streamfleet-Lane": "critical"}
    async with stage.client() as http:
        body = chat(model=MODEL, user="ann", service_tier="flex")
        answer = await http.post("/v1/chat/completions", json=body, headers=headers)
        low = await http.post("/v1/chat/completions", json=body)
    stored = await rows.hgetall(f"{{default}}:result:{answer.headers['x-streamfleet-id']}")
    assert stored["lane"] == "critical"
    assert stored["tenant"] == "everything"
    assert stored["session"] == "ann"
    assert stored["traceparent"] == TRACE
    assert (await rows.hgetall(f"{{default}}:result:{low.headers['x-streamfleet-id']}"))["lane"] == "low"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/v1/batches")]
)
async def test_a_mistyped_header_of_our_own_is_refused(stage: Stage, method: str, path: str) -> None:
    names = {"X-Streamfleet-Lanes": "Lane", "x-streamfleet-deadline": "Deadline-Ms", "X-StreamFleet-Tll": "Ttl"}
    async with stage.client() as http:
        for name, meant in names.items():
            answer = await http.request(method, path, json=chat(model=MODEL), headers={name: "high"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", name.title())
            assert f"did you mean X-Streamfleet-{meant}?" in error["message"]
        other = await http.get(
            "/v1/models", headers={"X-Streamfleets": "1", "X-Priority": "1", "X-Streamfleet-Ttl": "1s"}
        )
    assert other.status_code == 200, "headers of others pass"


async def test_the_same_idempotency_key_is_the_same_request(stage: Stage, sdk: openai.AsyncOpenAI) -> None:
    create, headers = sdk.chat.completions.with_raw_response.create, {"Idempotency-Key": "order-42"}
    one = await create(model=MODEL, messages=MESSAGES, extra_headers=headers)
    two = await create(model=MODEL, messages=MESSAGES, extra_headers=headers)
    assert one.headers["x-streamfleet-id"] == two.headers["x-streamfleet-id"]
    assert one.content == two.content
    with pytest.raises(openai.ConflictError) as caught:
        await create(model=MODEL, messages=MESSAGES, max_tokens=7, extra_headers=headers)
    assert caught.value.code == "idempotency_conflict"
    assert caught.value.response.headers["x-should-retry"] == "false"


# -- errors ------------------------------------------------------------------------------------------------


async def test_an_unknown_model(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_what_the_engine_refuses_is_the_callers_error(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
    assert caught.value.param == "temperature"
    assert caught.value.request_id is not None


async def test_a_deadline_that_passes_is_a_504_that_nobody_tries_again(stage: Stage) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=stage.key, max_retries=2) as sdk:
        asked = len(stage.gateway.events("http_request"))
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
                max_tokens=1_000,
                extra_headers={"X-Streamfleet-Ttl": "300ms"},
                extra_body={"ignore_eos": True},
            )
        await sdk.models.list()

    def paths() -> list[str]:
        return [event["path"] for event in stage.gateway.events("http_request")[asked:]]

    await eventually(lambda: "/v1/models" in paths(), what="the line of what was asked last")
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert paths() == ["/v1/chat/completions", "/v1/models"]


async def test_flex_is_refused_where_it_would_be_late(stage: Stage, rows: redis.asyncio.Redis) -> None:
    async def nothing_waits() -> bool:
        return not any([await rows.xlen(f"{{default}}:lane:{lane}") for lane in LANES])

    await eventually(nothing_waits, 20, "what earlier tests left has gone: it would go first")
    now_ms = (await rows.time())[0] * 1000
    groups = [(await rows.xinfo_groups(f"{{default}}:lane:{lane}"))[0] for lane in LANES]
    lanes = [  # as if nothing had come since: the worker may measure it meanwhile
        {"read": int(group.get("entries-read") or 0), "last": str(group["last-delivered-id"]), "waits": False}
        | {"came": 0, "gone": 0, "who": {}, "spans": {}}
        for group in groups
    ]
    pace = {"at": now_ms, "busy": False, "gone": 0, "took": 60_000, "left": 1, "span": 60_000, "run": 100}
    await rows.set("{default}:pace", json.dumps(pace | {"lanes": lanes}))  # one request a minute
    body, headers = chat(model=MODEL, service_tier="flex"), {"X-Streamfleet-Ttl": "5s"}
    try:
        async with stage.client() as http:
            refused = await http.post("/v1/chat/completions", json=body, headers=headers)
            others = await http.post("/v1/chat/completions", json=body | {"service_tier": "auto"}, headers=headers)
    finally:
        await rows.delete("{default}:pace")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "resource_unavailable")
    assert int(refused.headers["retry-after"]) == pytest.approx(55, abs=2)
    assert not await rows.exists(f"{{default}}:request:{refused.headers['x-streamfleet-id']}"), "nothing is enqueued"
    assert others.status_code == 200


async def test_the_clients_own_timeout_goes_before_the_deadline_that_follows_it(stage: Stage) -> None:
    """It leaves at its time-out with its own error; the request ends soon after: no worker goes on for nobody."""
    seen = len(stage.gateway.events("http_request"))
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=stage.key, max_retries=0) as sdk:
        with pytest.raises(openai.APITimeoutError):
            await sdk.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
                max_tokens=1_500,
                timeout=1.0,
                extra_headers={"Idempotency-Key": "slow", "X-Stainless-Retry-Count": "2"},  # the last try
                extra_body={"ignore_eos": True},
            )
    (logged,) = await eventually(lambda: stage.gateway.events("http_request")[seen:], 5)
    asked = logged["request_id"]

    assert await eventually(lambda: status_of(stage.url, asked), 5) == "expired"


async def test_the_client_tries_again_when_a_lane_is_full(stage: Stage, special: GatewayProcess) -> None:
    """The first try finds the lane full, a later one does not."""
    async with (
        stage.client() as http,
        openai.AsyncOpenAI(base_url=f"{special.url}/v1", api_key=stage.key, max_retries=1) as sdk,
    ):
        first = asyncio.create_task(http.post("/v1/chat/completions", json=chat(15, model=MODEL)))
        await eventually(lambda: stage.worker.metric("streamfleet_running") == 1, 5)
        answer = asyncio.create_task(sdk.chat.completions.create(model="small", messages=MESSAGES, max_tokens=2))
        refused = 'streamfleet_gateway_refused_total{reason="queue_full"}'
        await eventually(lambda: special.metric(refused) == 1, 10, "the lane is full")
        first.cancel()
        assert (await answer).choices

    def statuses() -> list[int]:
        return [event["status"] for event in special.events("http_request") if event["path"].startswith("/v1")]

    # The line of an answer is written when the answer is out.
    await eventually(lambda: statuses()[-2:] == [429, 200], what="both tries are in the log")
    assert special.metric(refused) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/nonsense", None, 404, "not_found"),
        ("PUT", "/v1/models", None, 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", None, 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", b"", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[1]", 400, "invalid_type"),
        ("POST", "/v1/chat/completions", b"\xff", 400, "invalid_encoding"),
        ("POST", "/v1/chat/completions", b'{"messages": "\\ud800"}', 400, "invalid_encoding"),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"model": "simulated"}', 400, "missing_required_parameter"),
        ("POST", "/v1/chat/completions", b'{"messages": [], "model": 7}', 400, "invalid_type"),
        ("POST", "/v1/chat/completions", b'{"messages": [], "stream": "yes"}', 400, "invalid_type"),
        ("POST", "/v1/chat/completions", b'{"messages": [], "service_tier": "gold"}', 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"messages": [], "user": {}}', 400, "invalid_type"),
        ("POST", "/v1/embeddings", b'{"input": NaN}', 400, "invalid_json"),
        ("GET", "/v1/streams/somebody-elses", None, 404, "request_not_found"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
async def test_every_error_is_openai_shaped(
    stage: Stage, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    async with stage.client() as http:
        answer = await http.request(method, path, content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    assert answer.headers["x-request-id"].startswith("req_")


# -- the process itself ------------------------------------------------------------------------------------


def test_pages(stage: Stage) -> None:
    for ask in (stage.gateway.get, stage.gateway.probe):
        assert ask("/livez").status == 200
        assert ask("/readyz").text == "ok\n"
    health = json.loads(stage.gateway.get("/health").text)
    assert (health["status"], health["keys"], health["warnings"]) == ("healthy", "on", [])
    assert "streamfleet_build_info" in stage.gateway.probe("/metrics").text
    assert stage.gateway.get("/metrics").status == 404, "what callers reach needs a key"
    paths = json.loads(stage.gateway.get("/openapi.json").text)["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/health"} <= set(paths)


async def test_probes_take_head_and_a_slash_more_is_no_redirect(stage: Stage) -> None:
    async with stage.client() as http:
        for path in ("/livez", "/readyz", "/health"):
            answer = await http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        answer = await http.post("/v1/chat/completions/", json=chat(model=MODEL))
        assert answer.status_code == 404, "a redirect would have named http://, in front of which a proxy speaks TLS"
    async with httpx.AsyncClient() as http:
        health = f"http://127.0.0.1:{stage.gateway.events('gateway_ready')[0]['health_port']}"
        answer = await http.head(f"{health}/livez")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_what_is_answered_is_counted(stage: Stage) -> None:
    sample = 'streamfleet_gateway_requests_total{code="200",endpoint="/v1/chat/completions"}'
    before = stage.gateway.metric(sample)
    async with stage.client() as http:
        await http.post("/v1/chat/completions", json=chat(model=MODEL))
    assert stage.gateway.metric(sample) == before + 1
    assert stage.gateway.metric('streamfleet_gateway_requests_total{code="200",endpoint="/v1/embeddings"}') >= 0
    assert stage.gateway.metric("streamfleet_gateway_requests_open") == 0


async def test_models_that_settings_name_go_to_their_queue(stage: Stage, special: GatewayProcess) -> None:
    async with special.http(stage.key) as http:
        listed = (await http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["other", "small"]
        answer = await http.post("/v1/chat/completions", json=chat(model="small"))
        assert answer.json()["model"] == MODEL
        unknown = await http.post("/v1/chat/completions", json=chat(model=MODEL))
        assert unknown.status_code == 404
        late = await http.post("/v1/chat/completions", json=chat(model="other"), headers={"X-Streamfleet-Ttl": "1ms"})
        assert late.status_code == 504, "nobody works there, so that nobody ends it: the gateway does not wait"


async def test_pages_of_other_origins_may_call_where_they_are_named(stage: Stage, special: GatewayProcess) -> None:
    origin = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with stage.client() as http:
        assert "access-control-allow-origin" not in (await http.options("/v1/models", headers=origin)).headers
    async with special.http(stage.key) as http:
        preflight = await http.options("/v1/chat/completions", headers=origin)
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        answer = await http.get("/v1/models", headers={"Origin": "https://app.example"})
        shown = answer.headers["access-control-expose-headers"]
        assert "x-streamfleet-id" in shown
        assert "x-ratelimit-remaining-tokens" in shown


def test_wrong_settings_and_a_port_that_is_taken_are_one_line(stage: Stage) -> None:
    taken = streamfleet(stage.url, "gateway", "--port", str(stage.gateway.port))
    assert taken.returncode == 2
    assert "--port: cannot listen on 127.0.0.1" in taken.stderr
    wrong = streamfleet(stage.url, "gateway", "--models", "small")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("streamfleet: --models: must be MODEL=QUEUE")
