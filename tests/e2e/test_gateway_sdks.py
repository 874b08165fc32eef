"""OpenAI's own clients, in Python and in Node, at gateway, Redis and real vLLM: a model that writes, one that embeds.

In this order, because two engines must never run at once, and to start one takes half a minute.
"""

from __future__ import annotations

import base64
import math
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from streamfleet.worker.engine.processes import alive, descendants
from tests.e2e.gateway_stack import MODELS, WATCHDOG_S, Stack, stack_in
from tests.e2e.sdk_findings import Json
from tests.waiting import eventually, eventually_blocking

pytestmark = [pytest.mark.needs_vllm, pytest.mark.timeout(400)]

ENGINE_FAILED = 3
LANE = "{default}:lane:high"
HI = '{"messages":[{"role":"user","content":"Say hi"}],"max_tokens":8}'
GREEDY = {"max_tokens": 24, "temperature": 0}
LONG = {"max_tokens": 1_900, "ignore_eos": True}
WORDS = ["The cat sat on the mat", "Redis keeps data in memory, and answers within a millisecond"]
TOKENS = [[504, 2644, 3233], [28, 29, 30, 31]]
CLIENTS = pytest.mark.parametrize("language", ["python", "node"])


def messages(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


def line(kind: str, custom_id: str, **body: Any) -> Json:
    url = "/v1/chat/completions" if kind == "generating" else "/v1/embeddings"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODELS[kind], **body}}


def question(custom_id: str, **body: Any) -> Json:
    return line("generating", custom_id, **{"messages": messages(f"Who is {custom_id}?"), "max_tokens": 4} | body)


GOOD = [f"r{number}" for number in range(6)]
SETUPS: dict[str, Json] = {
    "generating": {
        "chat": {"messages": messages("Count to ten."), **GREEDY},
        "completion": {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
        "response": {"input": "Count to ten.", "service_tier": "flex", "temperature": 0, "max_output_tokens": 24},
        "long": LONG,
        "batch": [*map(question, GOOD), question("cold", temperature=-5)],
        "long_batch": [question("short"), *(question(f"long{number}", **LONG) for number in range(4))],
    },
    "embedding": {
        "chat": {"messages": messages("Count to ten.")},
        "input": WORDS,
        "tokens": TOKENS,
        "batch": [
            *(line("embedding", name, input=f"This is {name}.") for name in GOOD),
            line("embedding", "empty", input=[]),
        ],
    },
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Stack]:
    with stack_in(tmp_path_factory.mktemp("sdks"), smollm2) as stack:
        yield stack


def found(stack: Stack, kind: str, language: str) -> Json:
    return stack.found(kind, language, SETUPS[kind])


def names(lines: list[Json]) -> list[str]:
    return sorted(each["custom_id"] for each in lines)


def kind_and_code(error: Json) -> tuple[str, object]:
    return error["kind"], error["code"]


# -- a model that writes -----------------------------------------------------------------------------------


@CLIENTS
def test_models(stack: Stack, language: str) -> None:
    models = found(stack, "generating", language)["models"]
    assert models == {"listed": sorted(MODELS.values()), "one": MODELS["generating"]}


@CLIENTS
def test_chat_and_the_same_streamed(stack: Stack, language: str) -> None:
    chat = found(stack, "generating", language)["chat"]
    assert chat["text"].strip()
    assert 0 < chat["tokens"] <= GREEDY["max_tokens"]
    assert chat["request_id"].startswith("req_")
    streamed = chat["streamed"]
    assert streamed["chunks"] > 2
    assert streamed["text"] == chat["text"]
    assert streamed["finish_reason"] == chat["finish_reason"]
    assert (streamed["usages"], streamed["last_has_choices"]) == ([chat["tokens"]], False)


@CLIENTS
def test_a_completion_and_the_same_streamed(stack: Stack, language: str) -> None:
    completion = found(stack, "generating", language)["completion"]
    assert completion["text"] == completion["streamed"]
    assert completion["tokens"] == 8
    assert completion["chunks"] > 2


@CLIENTS
def test_a_response(stack: Stack, language: str) -> None:
    response = found(stack, "generating", language)["response"]
    assert response["text"].strip()
    assert 0 < response["tokens"] <= 24
    assert response["tier"] == "flex"


@CLIENTS
def test_errors_are_raised_by_their_types(stack: Stack, language: str) -> None:
    errors = found(stack, "generating", language)["errors"]
    assert {name: error["status"] for name, error in errors.items()} == {
        "no_key": 401,
        "no_model": 404,
        "bad_value": 400,
        "bad_value_streamed": 400,
        "no_embeddings": 404,
        "no_file": 404,
        "too_slow": None,
    }
    assert kind_and_code(errors["no_key"]) == ("AuthenticationError", "invalid_api_key")
    assert kind_and_code(errors["no_model"]) == ("NotFoundError", "model_not_found")
    assert kind_and_code(errors["no_embeddings"]) == ("NotFoundError", "unknown_endpoint")
    assert kind_and_code(errors["no_file"]) == ("NotFoundError", "file_not_found")
    for name in ("bad_value", "bad_value_streamed"):
        assert (errors[name]["kind"], errors[name]["param"]) == ("BadRequestError", "temperature")
    too_slow = {"python": "APITimeoutError", "node": "APIConnectionTimeoutError"}
    assert errors["too_slow"]["kind"] == too_slow[language]


@CLIENTS
def test_a_file_from_upload_to_deletion(stack: Stack, language: str) -> None:
    file = found(stack, "generating", language)["files"]
    assert file.pop("lines") == SETUPS["generating"]["batch"]
    assert file == {
        "filename": "requests.jsonl",
        "purpose": "batch",
        "same_size": True,
        "listed": True,
        "deleted": True,
        "gone": "file_not_found",
    }


@CLIENTS
def test_a_batch_of_chats(stack: Stack, language: str) -> None:
    batch = found(stack, "generating", language)["batch"]
    check_batch(batch, "cold")
    for answer in batch["output"]:
        assert answer["response"]["body"]["choices"][0]["message"]["content"]
    assert batch["errors"][0]["response"]["body"]["error"]["param"] == "temperature"


def check_batch(batch: Json, refused: str) -> None:
    """It completed, with the line that the engine refuses in its error file, and each custom_id once."""
    assert batch["status"] == "completed"
    assert batch["counts"] == {"total": len(GOOD) + 1, "completed": len(GOOD), "failed": 1}
    assert batch["metadata"] == {"for": "a test"}
    assert batch["listed"]
    assert (names(batch["output"]), names(batch["errors"])) == (sorted(GOOD), [refused])
    assert {each["response"]["status_code"] for each in batch["output"]} == {200}
    assert batch["errors"][0]["response"]["status_code"] == 400


@CLIENTS
def test_a_batch_is_cancelled_and_nothing_of_it_runs_on(stack: Stack, language: str) -> None:
    batch = found(stack, "generating", language)["cancelled"]
    assert batch["status"] == "cancelled"
    lines = batch["output"] + batch["errors"]
    assert names(lines) == sorted(each["custom_id"] for each in SETUPS["generating"]["long_batch"])
    late = [each for each in batch["errors"] if each["custom_id"].startswith("long")]
    assert [each["error"]["code"] for each in late] == ["batch_cancelled"] * 4
    assert batch["counts"]["completed"] == len(batch["output"])
    eventually_blocking(lambda: stack.running_in_engine() == 0, 5, "nothing runs in the engine")


@pytest.mark.kill
async def test_a_hung_engine_ends_its_worker_and_its_requests_go_back(stack: Stack) -> None:
    """On the engine that is there already: a start takes half a minute."""
    worker = stack.worker("generating")
    family = descendants(worker.pid)
    async with redis.asyncio.Redis.from_url(stack.url, decode_responses=True) as rows:
        os.kill(stack.engine_process("Worker").pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        entry = await rows.xadd(LANE, {"id": "stuck", "body": HI})
        assert await worker.ended(WATCHDOG_S + 15) == ENGINE_FAILED, worker.printed()[-3_000:]
        assert time.monotonic() - stopped_at < WATCHDOG_S + 10
        # Back at once, without waiting for a lease to run out, and this delivery counted.
        assert (await rows.xpending(LANE, "workers"))["pending"] == 0
        assert await rows.zcard("{default}:ready:high") == 1
        assert str(await rows.hget("{default}:tries", "2|" + str(entry))).split(" ")[0] == "1"
    await eventually(lambda: not [each for each in family if alive(each)], 10, "no process of the engine is left")


# -- a model that embeds -----------------------------------------------------------------------------------


def close(one: list[list[float]], other: list[list[float]]) -> bool:
    """The same but for rounding, which hangs on what else is in the engine's batch. Vectors have a length of 1."""
    return all(math.dist(a, b) < 0.1 for a, b in zip(one, other, strict=True))


@CLIENTS
def test_embeddings(stack: Stack, language: str) -> None:
    vectors = found(stack, "embedding", language)["vectors"]
    assert vectors["indexes"] == [0, 1]
    assert vectors["usage"] >= len(" ".join(WORDS).split())
    usual = vectors["usual"]
    assert [len(each) for each in usual] == [576, 576]
    assert [math.hypot(*each) for each in usual] == pytest.approx([1, 1], abs=0.01)
    assert not close(usual[:1], usual[1:])
    assert close(usual, vectors["float"])
    assert close(usual[:1], vectors["one"])
    assert close([list(struct.unpack("<576f", base64.b64decode(vectors["base64"])))], usual[:1])
    assert close(vectors["of_tokens"], vectors["of_token_lists"][:1])
    assert len(vectors["of_token_lists"]) == 2


@CLIENTS
def test_what_an_embedding_model_does_not_do(stack: Stack, language: str) -> None:
    vectors = found(stack, "embedding", language)["vectors"]
    for name in ("dimensions", "too_long", "nothing"):
        assert (vectors[name]["kind"], vectors[name]["status"]) == ("BadRequestError", 400), name
    assert kind_and_code(vectors["no_chat"]) == ("NotFoundError", "unknown_endpoint")


@CLIENTS
def test_a_batch_of_embeddings(stack: Stack, language: str) -> None:
    batch = found(stack, "embedding", language)["batch"]
    check_batch(batch, "empty")
    for answer in batch["output"]:
        (only,) = answer["response"]["body"]["data"]
        assert len(only["embedding"]) == 576


def test_texts_are_scored_and_pooled(stack: Stack) -> None:
    """An embedding model does these too, and says so; it does not classify."""
    stack.worker("embedding")
    with stack.gateway.http_blocking(stack.key) as http:

        def post(path: str, **body: Any) -> httpx.Response:
            return http.post(path, json={"model": MODELS["embedding"], **body})

        scored = post("/v1/score", text_1=WORDS[0], text_2=WORDS)
        assert scored.status_code == 200, scored.text
        same, other = (each["score"] for each in scored.json()["data"])
        assert same > other
        ranked = post("/v1/rerank", query=WORDS[1], documents=WORDS).json()["results"]
        assert [each["index"] for each in ranked] == [1, 0]
        assert len(post("/pooling", input=WORDS).json()["data"]) == 2
        for path in ("/classify", "/v1/responses"):
            refused = post(path, input=WORDS[0])
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_endpoint"), path


def test_both_clients_find_the_same(stack: Stack) -> None:
    """All was asked for above; nothing is asked again."""
    for kind, part in (("generating", "chat"), ("generating", "completion")):
        one, other = (found(stack, kind, language)[part]["text"] for language in ("python", "node"))
        assert one == other
    one, other = (found(stack, "embedding", language)["vectors"]["usual"] for language in ("python", "node"))
    assert close(one, other)
