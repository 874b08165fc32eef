"""The gateway's pure parts: errors as OpenAI has them, models and their queues, keys, tokens, settings."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common import errors as common
from streamfleet.common.errors import InvalidRequest, SettingsError, StreamfleetError
from streamfleet.common.numbers import USUAL_OUTPUT
from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, SCORE, Lane, Status
from streamfleet.common.results import Result, decode_result
from streamfleet.common.settings import load
from streamfleet.common.settings_gateway import GatewaySettings, ModelRoute
from streamfleet.gateway import metrics
from streamfleet.gateway.api_keys import (
    KeyRecord,
    digest_of,
    id_of,
    looks_like_a_key,
    make_record,
    new_secret,
    read_record,
)
from streamfleet.gateway.authentication import format_duration
from streamfleet.gateway.broker.api_keys import Held
from streamfleet.gateway.errors import (
    ApiError,
    exception_to_api_error,
    http_status_to_api_error,
    result_to_api_error,
    retry_after,
)
from streamfleet.gateway.models import REUSE_S, Chosen, Models, announced_models
from streamfleet.gateway.token_budget import (
    UNTOLD_CONTEXT,
    Demand,
    Reservation,
    expected_tokens,
    used_tokens,
)
from streamfleet.operator.fleet import WorkerView, worker_views
from tests.clocks import HandClock

NOW = 1_790_000_000_000
DIGEST = digest_of("sf-x")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("is not JSON", "body", "invalid_json"), 400, "invalid_json"),
        (InvalidRequest("is 9 bytes", "body", "request_too_large"), 413, "request_too_large"),
        (common.Conflict("id: x belongs"), 409, "idempotency_conflict"),
        (common.QueueFull("lane high holds 3", "high"), 429, "queue_full"),
        (common.LikelyLate("low", 20.0, 3.0, 13.0), 429, "resource_unavailable"),
        (common.BrokerUnavailable("no answer from Redis at redis://secret-host"), 503, "queue_unavailable"),
        (common.BrokerOutOfMemory("Redis at redis://secret-host is full"), 503, "queue_unavailable"),
        (common.NotReplicated("redis://secret-host"), 503, "queue_unavailable"),
        (common.UnknownProtocol("queue secret-host has protocol 7"), 503, "queue_unavailable"),
        (common.ResultTimeout("late"), 504, "deadline_exceeded"),
        (common.NotPermitted("redis://secret-host lacks"), 500, "internal_error"),
        (SettingsError("redis://secret-host"), 500, "internal_error"),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, Exception) else str(value),
)
def test_what_the_client_raises_has_its_status(error: StreamfleetError, status: int, code: str) -> None:
    found = exception_to_api_error(error)
    assert (found.status, found.code) == (status, code)
    shown = json.loads(found.body())
    assert set(shown["error"]) == {"message", "type", "param", "code"}
    assert "secret-host" not in found.body().decode()
    if status in (429, 503):
        assert int(found.headers["retry-after"]) >= 1
    if status in (409, 504):
        assert found.headers["x-should-retry"] == "false", "SDKs would send it again"


def ended(status: Status, **fields: Any) -> Result:
    """A result as it stands in Redis."""
    raw = {"status": status, **fields}
    result = decode_result("r-1", {name.encode(): str(value).encode() for name, value in raw.items()})
    assert result is not None
    return result


def test_a_request_that_failed_says_what_the_engine_said() -> None:
    error = common.openai_error("must be at most 2", "BadRequestError", "temperature", "invalid_value")
    found = result_to_api_error(ended(Status.FAILED, error=error, http_status=422))
    assert (found.status, found.param, found.code) == (422, "temperature", "invalid_value")
    assert found.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("kind", "code", "param", "status", "wanted"),
    [
        ("BadRequestError", "400", "temperature", 400, ("invalid_request_error", "invalid_request")),
        ("NotFoundError", "404", "model", 404, ("invalid_request_error", "model_not_found")),
        ("NotFoundError", "404", None, 404, ("invalid_request_error", "not_found")),
        ("Unprocessable Entity", "422", None, 422, ("invalid_request_error", "invalid_request")),
        ("InternalServerError", "500", None, 500, ("server_error", "engine_error")),
        ("NotImplementedError", "501", None, 501, ("server_error", "engine_error")),
        ("rate_limit_error", "insufficient_quota", None, 400, ("rate_limit_error", "insufficient_quota")),
        ("invalid_request_error", None, None, 400, ("invalid_request_error", "failed")),
    ],
)
def test_types_and_codes_of_an_engine_become_openais(
    kind: str, code: str | None, param: str | None, status: int, wanted: tuple[str, str]
) -> None:
    found = result_to_api_error(
        ended(Status.FAILED, error=common.openai_error("said so", kind, param, code), http_status=status)
    )
    assert (found.kind, found.code) == wanted
    assert (found.status, found.message, found.param) == (status, "said so", param)


@pytest.mark.parametrize(
    ("status", "http"), [(Status.EXPIRED, 504), (Status.CANCELLED, 499), (Status.DEAD, 500), (Status.FAILED, 400)]
)
def test_every_ending_has_an_answer(status: Status, http: int) -> None:
    found = result_to_api_error(ended(status))
    assert found.status == http
    assert found.message
    assert found.code == status


@pytest.mark.parametrize("error", ['{"error": 7}', "text", '{"error": {"message": 7, "code": []}}', "[]", '{"a": {}}'])
def test_an_error_that_somebody_wrote_by_hand_is_none_for_the_caller(error: str) -> None:
    found = result_to_api_error(ended(Status.FAILED, error=error, http_status=99))
    assert found.status == 500 if found.status != 400 else True
    assert json.loads(found.body())["error"]["message"]


def test_what_the_framework_refuses() -> None:
    assert http_status_to_api_error(404, "/v1/nonsense", "GET").code == "not_found"
    assert http_status_to_api_error(405, "/v1/models", "PUT").code == "method_not_allowed"
    assert http_status_to_api_error(422, "/x", "GET").status == 422


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    assert [retry_after(seconds)["retry-after"] for seconds in (0, 0.2, 1, 1.01)] == ["1", "1", "1", "2"]


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0ms"), (20, "20ms"), (999, "999ms"), (1_500, "1.5s"), (59_000, "59s"), (360_000, "6m0s")]
)
def test_spans_as_openai_writes_them(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def workers(**seen_ms_ago: tuple[int, list[str]]) -> Sequence[WorkerView]:
    """Workers by name: how long ago each was seen, and its models."""
    described = {name: {"seen_ms": NOW - ago, "models": models} for name, (ago, models) in seen_ms_ago.items()}
    return worker_views(described, {}, NOW)


def test_the_living_say_which_models_there_are() -> None:
    assert announced_models(workers(a=(0, ["m1", "m2"]), b=(0, ["m1"]), c=(900_000, ["old"]))) == ["m1", "m2"]
    assert announced_models(workers(c=(900_000, ["old"]))) == ["old"], "a fleet that is scaled to zero is still there"
    assert announced_models([]) == []


async def test_a_model_is_looked_up_among_the_workers() -> None:
    clock, looks = HandClock(NOW - 100_000), 0

    async def look(_queue: str) -> Sequence[WorkerView]:
        nonlocal looks
        looks += 1
        return workers(a=(0, ["m1"]))

    models = Models((), "q", look, clock)
    assert await asyncio.gather(*(models.choose("m1") for _ in range(5))) == [Chosen("q", "m1")] * 5
    assert looks == 1, "one look serves all who wait"
    with pytest.raises(ApiError) as caught:
        await models.choose("m2")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert looks == 1
    clock.seconds += REUSE_S
    assert await models.names() == ["m1"]
    assert looks == 2
    assert await models.choose(None) == Chosen("q", None)
    with pytest.raises(InvalidRequest):
        await models.choose(["m1"])


async def test_without_any_worker_one_is_told_to_try_again() -> None:
    async def look(_queue: str) -> Sequence[WorkerView]:
        return []

    with pytest.raises(ApiError) as caught:
        await Models((), "q", look, HandClock(NOW - 100_000)).choose("m1")
    assert (caught.value.status, caught.value.code) == (503, "no_worker")


@pytest.mark.parametrize(
    ("described", "served"),
    [
        ({"a": (0, ["/v1/chat/completions"])}, False),
        ({"a": (0, ["/v1/chat/completions"]), "b": (0, ["/v1/rerank"])}, False),
        ({"a": (0, ["/v1/rerank"]), "older": (0, None)}, True),
        ({"a": (0, ["/v1/chat/completions"]), "older": (0, None)}, False),
        ({"a": (900_000, ["/v1/chat/completions"]), "b": (0, ["/v1/rerank"])}, True),
        ({"a": (0, ["/v1/chat/completions"]), "gone": (900_000, ["/v1/rerank"])}, False),
        ({"gone": (900_000, ["/v1/chat/completions"])}, True),
    ],
    ids=["no", "one does not", "one does not say", "no, one does not say", "one did not", "one did", "nobody lives"],
)
@pytest.mark.parametrize("routed", [False, True])
async def test_an_endpoint_that_a_living_worker_does_not_serve_is_refused(
    described: dict[str, tuple[int, list[str] | None]], served: bool, routed: bool
) -> None:
    asked: list[str] = []

    async def look(queue: str) -> Sequence[WorkerView]:
        asked.append(queue)
        found = {
            name: {"seen_ms": NOW - ago, "models": ["m"], "endpoints": endpoints}
            for name, (ago, endpoints) in described.items()
        }
        return worker_views(found, {}, NOW)

    models = Models([ModelRoute("m", "elsewhere", "m")] if routed else (), "q", look, HandClock(NOW - 100_000))
    if served:
        assert (await models.choose("m", "/v1/rerank")).served == "m"
    else:
        with pytest.raises(ApiError) as caught:
            await models.choose("m", "/v1/rerank")
        assert (caught.value.status, caught.value.code) == (404, "unknown_endpoint")
    assert asked == ["elsewhere" if routed else "q"]


async def test_models_that_the_settings_name_go_to_their_queues() -> None:
    async def look(_queue: str) -> Sequence[WorkerView]:
        raise AssertionError("nobody is asked")

    routes = load(GatewaySettings, gateway_models="small=default, big=gpu-big=Qwen/Qwen2.5-72B").routes
    models = Models(routes, "q", look, HandClock(NOW - 100_000))
    assert await models.names() == ["big", "small"]
    assert models.queues == ["default", "gpu-big"]
    assert await models.choose("small") == Chosen("default", "small")
    assert await models.choose("big") == Chosen("gpu-big", "Qwen/Qwen2.5-72B")
    with pytest.raises(InvalidRequest) as refused:
        await models.choose(None)
    assert refused.value.param == "model"
    with pytest.raises(ApiError) as caught:
        await models.choose("Qwen/Qwen2.5-72B")
    assert caught.value.status == 404
    assert await Models([ModelRoute("one", "q1", "one")], "q", look, HandClock(NOW - 100_000)).choose(None) == Chosen(
        "q1", "one"
    )


@pytest.mark.parametrize("text", ["small", "=default", "small=", "a=b=c=d", "a={q}", "a=x,a=y", "small=a b"])
def test_routes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="STREAMFLEET_GATEWAY_MODELS"):
        load(GatewaySettings, gateway_models=text)


@pytest.mark.parametrize("text", ["example.com", "https://a.example/path", "ftp://a"])
def test_origins_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="STREAMFLEET_GATEWAY_ORIGINS"):
        load(GatewaySettings, gateway_origins=text)
    assert load(GatewaySettings, gateway_origins="https://a.example, *").gateway_origins == ("https://a.example", "*")


def test_a_key_is_random_and_only_its_hash_is_kept() -> None:
    one, other = new_secret(), new_secret()
    assert one != other
    assert looks_like_a_key(one)
    assert not looks_like_a_key(f"{one}x")
    assert not looks_like_a_key("sk-proj-1234")
    record = make_record(digest_of(one), "n", "t")
    assert one not in record.encoded()
    assert one[3:] not in repr(record)


def test_records_survive_being_stored() -> None:
    record = make_record(DIGEST, "näme", "ten ant", (Lane.LOW, Lane.CRITICAL), (5, None), NOW, NOW + 1)
    assert record.lanes == (Lane.CRITICAL, Lane.LOW)
    assert read_record(DIGEST, record.encoded().encode()) == record
    assert record.id == id_of(DIGEST)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"name": " "}, "name"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a\nb"}, "tenant"),
        ({"name": "x" * 300}, "name"),
        ({"limits": (-1, None)}, "requests_per_minute"),
        ({"limits": (None, 10**13)}, "tokens_per_minute"),
        ({"lanes": ()}, "lanes"),
        ({"created_ms": NOW, "expires_ms": NOW}, "expires"),
    ],
    ids=str,
)
def test_a_record_that_makes_no_sense_is_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_record(DIGEST, **({"name": "n", "tenant": "t"} | options))
    assert caught.value.param == param


@given(st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr)))
def test_what_somebody_wrote_there_by_hand_is_no_record(text: bytes | str) -> None:
    assert read_record(DIGEST, text if isinstance(text, bytes) else text.encode(errors="replace")) is None


def test_a_record_with_odd_parts_is_none() -> None:
    good = json.loads(KeyRecord("x", "n", "t").encoded())
    assert read_record(DIGEST, json.dumps(good).encode()) is not None
    for name, odd in (("lanes", ["fast"]), ("lanes", 7), ("name", ""), ("requests_per_minute", -5)):
        assert read_record(DIGEST, json.dumps(good | {name: odd}).encode()) is None


def test_without_its_extra_there_is_one_line_that_says_so() -> None:
    code = "import sys; sys.modules['fastapi'] = None; sys.argv = ['streamfleet', 'gateway']; "
    code += "from streamfleet.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the gateway needs fastapi, which is not installed: pip install '.[gateway]' in a clone" in done.stderr
    assert done.stderr.count("\n") == 1


def test_tokens_that_a_request_may_use() -> None:
    def tokens(endpoint: str, body: Any, size: int, context: int | None = None) -> int:
        demand = expected_tokens(endpoint, body, size, context)
        assert demand.least == demand.most
        return demand.most

    assert tokens(CHAT, {"max_tokens": 50}, 400) == 151
    assert tokens(CHAT, {"max_completion_tokens": 10, "max_tokens": 50, "n": 3}, 40) == 41
    assert tokens(CHAT, {"max_completion_tokens": "50", "max_tokens": 1}, 40) == 61, "what the engine takes"
    assert tokens(CHAT, {"max_tokens": 5.0, "n": "2"}, 40) == 21
    assert tokens(CHAT, {"max_tokens": 10**6}, 40, context=100) == 111, "no more than the engine has"
    assert tokens(EMBEDDINGS, {"max_tokens": 9}, 40) == 11
    assert tokens(EMBEDDINGS, {"input": [[1] * 30, [2]]}, 40) == 31, "prompts in tokens"
    assert tokens(RESPONSES, {"max_output_tokens": 9}, 40) == 20
    assert tokens(RERANK, {"max_tokens": 9}, 40) == 11
    assert tokens(COMPLETIONS, {"max_tokens": 20, "max_completion_tokens": 1}, 40) == 31
    assert tokens(COMPLETIONS, {"prompt": "a"}, 40) == 27, "by OpenAI's API"
    assert tokens(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 5, "n": 2}, 40) == 31, "each prompt"
    assert tokens(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 5, "n": 2, "best_of": "3"}, 40) == 41
    assert tokens(COMPLETIONS, {"prompt": [1, 2], "max_tokens": 5}, 40) == 16, "one prompt in tokens"


@pytest.mark.parametrize(
    ("endpoint", "body", "tokens"),
    [
        (RERANK, {"query": "q" * 400, "documents": ["d"] * 11}, 1_101),
        (SCORE, {"text_1": "q" * 400, "text_2": ["d"] * 11}, 1_101),
        (SCORE, {"queries": ["q" * 400], "documents": ["d"] * 11}, 1_101),
        (SCORE, {"text_1": ["q" * 200] * 2, "text_2": ["d"] * 2}, 101),
        (SCORE, {"text_1": "q" * 400, "text_2": "d"}, 101),
        (RERANK, {"query": None, "documents": 7}, 101),
    ],
)
def test_a_query_is_read_with_each_document(endpoint: str, body: Any, tokens: int) -> None:
    assert expected_tokens(endpoint, body, 400).most == tokens


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
@pytest.mark.parametrize("limit", [{}, {"max_tokens": None}, {"max_tokens": -1}, {"max_tokens": "many"}])
def test_what_limits_no_output_may_use_all_that_the_engine_has(endpoint: str, limit: Any) -> None:
    if endpoint == RESPONSES:
        limit = {"max_output_tokens": limit.get("max_tokens")}
    assert expected_tokens(endpoint, limit, 40, context=100) == Demand(111, 12, prompt=11, guess=111)
    assert expected_tokens(endpoint, limit | {"n": 3}, 40, context=100) == Demand(311, 212, 11, 311), "one as a debt"
    assert expected_tokens(endpoint, limit, 40) == Demand(11 + UNTOLD_CONTEXT, 12, 11, 11 + USUAL_OUTPUT)


def test_a_message_needs_no_more_than_one_token_of_what_it_asks_for() -> None:
    """Its limit is required, so that clients send what no model can write; the worker cuts it."""
    asked = {"max_tokens": 32_000}
    assert expected_tokens(MESSAGES, asked, 40, context=8_000) == Demand(8_011, 12, prompt=11, guess=11 + USUAL_OUTPUT)
    assert expected_tokens(MESSAGES, {"max_tokens": 9}, 40, context=8_000) == Demand(20, 12, 11, 20)


GONE: dict[str, Any] = {"entry": "normal:1-0"}


def charged(status: Status, guess: int = 1_010, prompts: int = 0, **fields: Any) -> int | None:
    held = Held("default", "r", prompts, prompt=10 * (prompts or 1), guess=guess * (prompts or 1))
    return used_tokens(ended(status, **fields), Reservation(held, "key", "serial", 1_010 * (prompts or 1)))


def test_tokens_that_it_used() -> None:
    assert charged(Status.SUCCEEDED, usage='{"total_tokens": 7}') == 7
    assert charged(Status.FAILED, http_status=400, waited_ms=1) == 0
    assert charged(Status.CANCELLED) is None, "it may still run"
    assert charged(Status.CANCELLED, **GONE) == 0, "it never ran"
    assert charged(Status.CANCELLED, **GONE, waited_ms=1, usage='{"total_tokens": 7}') == 7
    assert charged(Status.EXPIRED) == 0, "it expired in its queue"
    assert charged(Status.EXPIRED, waited_ms=1, usage='{"total_tokens": 9}') == 9
    assert charged(Status.DEAD) == 0, "its workers died"


@pytest.mark.parametrize("prompts", [0, 3])
@pytest.mark.parametrize(
    ("status", "fields"), [(Status.SUCCEEDED, {}), (Status.EXPIRED, {"waited_ms": 1}), (Status.CANCELLED, GONE)]
)
def test_a_run_that_nobody_counted_counts_as_its_limit_or_as_a_usual_answer(
    status: Status, fields: dict[str, Any], prompts: int
) -> None:
    fields = {"waited_ms": 1, **fields}
    assert charged(status, prompts=prompts, **fields) == 1_010, "it had a limit"
    assert charged(status, 266, prompts, **fields) == 266
    assert charged(status, 266, prompts, streamed=300, **fields) == 310, "more was seen"
    assert charged(status, 266, prompts, streamed=10**6, **fields) == 1_010, "no more than it may have"
    assert charged(status, 266, prompts, response=json.dumps("x" * 1_598), **fields) == 410


@pytest.mark.parametrize("guess", [266, 1_010])
def test_a_run_that_failed_without_a_token_counts_as_its_prompt(guess: int) -> None:
    assert charged(Status.FAILED, guess, http_status=500, waited_ms=1) == 10
    assert charged(Status.FAILED, guess, 2, http_status=503, waited_ms=1) == 10
    assert charged(Status.FAILED, guess, http_status=500) == 0, "it never ran"
    assert charged(Status.FAILED, guess, http_status=500, waited_ms=1, first_token_ms=3) == guess
    assert charged(Status.FAILED, guess, http_status=500, waited_ms=1, streamed=3) == guess


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/models/a/b", "/v1/models"),
        ("/v1/streams/x", "/v1/streams"),
        ("/v1/modelsx", "other"),
        ("/" + "x" * 500, "other"),
    ],
)
def test_labels_are_few(path: str, label: str) -> None:
    assert metrics.endpoint_label(path) == label
    assert metrics.code_label(418) == "other"
    assert metrics.code_label(429) == "429"
