"""A model that embeds, with real vLLM behind Redis and a gateway: OpenAI's own clients in Python and in Node, and an
engine that hangs.

All on one worker, because to start one takes half a minute. The last test ends it.
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

from streamfleet.common.protocol import EMBEDDINGS
from streamfleet.worker.engine.engine_thread import alive, descendants
from tests.e2e.gateway_stack import CLIENTS, MODELS, Stack, stack_in
from tests.e2e.sdk_findings import GOOD, Json, check_batch, kind_and_code, line, messages, only_answers
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.needs_vllm, pytest.mark.timeout(400)]

ENGINE_FAILED = 3
WATCHDOG_S = 8.0
LANE = "{embeddings}:lane:high"
WORDS = ["The cat sat on the mat", "Redis keeps data in memory, and answers within a millisecond"]
TOKENS = [[504, 2644, 3233], [28, 29, 30, 31]]


def text(custom_id: str, given: Any) -> Json:
    return line("/v1/embeddings", custom_id, model=MODELS["embedding"], input=given)


SETUP: Json = {
    "chat": {"messages": messages("Count to ten.")},
    "input": WORDS,
    "tokens": TOKENS,
    "batches": {
        "/v1/score": line("/v1/score", "a", model=MODELS["embedding"], text_1=WORDS[0], text_2=WORDS),
        "/v1/rerank": line("/v1/rerank", "a", model=MODELS["embedding"], query=WORDS[1], documents=WORDS),
    },
    "batch": [*(text(name, f"This is {name}.") for name in GOOD), text("empty", [])],
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Stack]:
    with stack_in(tmp_path_factory.mktemp("embedding"), smollm2, "embedding", watchdog_s=WATCHDOG_S) as stack:
        yield stack


def found(stack: Stack, language: str) -> Json:
    return stack.found(language, SETUP)


def close(one: list[list[float]], other: list[list[float]]) -> bool:
    """The same but for rounding, which hangs on what else is in the engine's batch. Vectors have a length of 1."""
    return all(math.dist(a, b) < 0.1 for a, b in zip(one, other, strict=True))


@CLIENTS
def test_embeddings(stack: Stack, language: str) -> None:
    vectors = found(stack, language)["vectors"]
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
    vectors = found(stack, language)["vectors"]
    for name in ("dimensions", "too_long", "nothing"):
        assert (vectors[name]["kind"], vectors[name]["status"]) == ("BadRequestError", 400), name
    assert kind_and_code(vectors["no_chat"]) == ("NotFoundError", "unknown_endpoint")


@CLIENTS
def test_a_batch_of_embeddings(stack: Stack, language: str) -> None:
    batch = found(stack, language)["batch"]
    check_batch(batch, "empty")
    for answer in batch["output"]:
        (only,) = answer["response"]["body"]["data"]
        assert len(only["embedding"]) == 576


@CLIENTS
def test_batches_of_scores_and_of_ranks(stack: Stack, language: str) -> None:
    answers = only_answers(found(stack, language))
    same, other = (each["score"] for each in answers["/v1/score"]["body"]["data"])
    assert same > other
    assert [each["index"] for each in answers["/v1/rerank"]["body"]["results"]] == [1, 0]


def test_texts_are_scored_and_pooled(stack: Stack) -> None:
    """An embedding model does these too, and says so; it does not classify."""
    with stack.gateway.http_blocking(stack.key) as http:

        def post(path: str, **body: Any) -> httpx.Response:
            return http.post(path, json={"model": MODELS["embedding"], **body})

        for path in ("/score", "/rerank", "/v2/rerank"):
            assert post(path, query=WORDS[0], documents=WORDS, text_1="a", text_2=["b"]).status_code == 200, path
        assert post("/tokenize", prompt=WORDS[0]).json()["count"] > 1
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
    one, other = (found(stack, language)["vectors"]["usual"] for language in ("python", "node"))
    assert close(one, other)


@pytest.mark.kill
async def test_a_hung_engine_ends_its_worker_and_its_requests_go_back(stack: Stack) -> None:
    family = descendants(stack.worker.pid)
    async with redis.asyncio.Redis.from_url(stack.url, decode_responses=True) as rows:
        os.kill(stack.engine_processes()["Worker"].pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        entry = await rows.xadd(LANE, {"id": "stuck", "endpoint": EMBEDDINGS, "body": '{"input":"one"}'})
        assert await stack.worker.ended(WATCHDOG_S + 15) == ENGINE_FAILED, stack.worker.printed()[-3_000:]
        assert time.monotonic() - stopped_at < WATCHDOG_S + 10
        # Back at once, without waiting for a lease to run out, and this delivery counted.
        assert (await rows.xpending(LANE, "workers"))["pending"] == 0
        assert await rows.zcard("{embeddings}:ready:high") == 1
        assert str(await rows.hget("{embeddings}:tries", "2|" + str(entry))).split(" ")[0] == "1"
    await eventually(lambda: not [each for each in family if alive(each)], 10, "no process of the engine is left")
