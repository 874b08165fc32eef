"""Real vLLM behind Redis and a gateway, with a model that writes: a plain XADD, OpenAI's own clients in Python and in
Node, hostile bodies, cancellation, and a killed worker.

All on one worker, because to start one takes half a minute. The first test looks at the first request of all, and the
last one kills the worker.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from streamfleet.common.protocol import RESPONSES
from streamfleet.producer import Chunk, Client
from streamfleet.worker.engine.engine_thread import alive, descendants
from tests.e2e.gateway_stack import CLIENTS, MODELS, Stack, stack_in
from tests.e2e.sdk_findings import GOOD, Json, check_batch, kind_and_code, line, messages, names, only_answers
from tests.hostile.__main__ import SETTINGS
from tests.hostile.catalogue import FAMILIES
from tests.hostile.report import table
from tests.hostile.run import GOOD as GOOD_BODY
from tests.hostile.run import plan, play
from tests.waiting import eventually, eventually_blocking

if TYPE_CHECKING:
    from tests.integration.otlp import Receiver

pytestmark = [pytest.mark.needs_vllm, pytest.mark.timeout(480)]

WELL_BEFORE_ITS_END_S = 3.0
LANE = "{default}:lane:high"
HI = '{"messages":[{"role":"user","content":"Say hi"}],"max_tokens":8}'
GREEDY = {"max_tokens": 24, "temperature": 0}
LONG = {"max_tokens": 1_900, "ignore_eos": True}
# A gateway keeps a run that an SDK left for 10 s, for its next try: this one ends before.
SLOW = {"max_tokens": 200, "ignore_eos": True}
STORY = {"messages": messages("Tell me a very long story."), **LONG}
# These take as long as they are allowed to, which is longer than this test has.
PATIENT = {"long_answers", "long_prompts"}


def question(custom_id: str, **body: Any) -> Json:
    asked = {"model": MODELS["generating"], "messages": messages(f"Who is {custom_id}?"), "max_tokens": 4} | body
    return line("/v1/chat/completions", custom_id, **asked)


SETUP: Json = {
    "chat": {"messages": messages("Count to ten."), **GREEDY},
    "completion": {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
    "response": {"input": "Count to ten.", "service_tier": "flex", "temperature": 0, "max_output_tokens": 24},
    "slow": SLOW,
    "long": LONG,
    "soon": {"X-Streamfleet-Ttl": "3s"},
    "batch": [*map(question, GOOD), question("cold", temperature=-5)],
    "batches": {
        "/v1/completions": line("/v1/completions", "a", model=MODELS["generating"], prompt="Once", max_tokens=4),
        "/v1/responses": line(
            "/v1/responses",
            "a",
            model=MODELS["generating"],
            input="Say hi",
            max_output_tokens=4,
            tools=[{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {"type": "object"}}],
            tool_choice="none",
        ),
    },
    "long_batch": [question("short"), *(question(f"long{number}", **LONG) for number in range(4))],
}


@pytest.fixture(scope="module")
def collected() -> Iterator[Receiver]:
    from tests.integration.otlp import receiver  # needs OpenTelemetry, which comes with vLLM

    with receiver() as collected:
        yield collected


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, smollm2: Path, collected: Receiver) -> Iterator[Stack]:
    """A stack whose worker and engine send their spans to the collector; r-42 was there before the worker."""

    def add_the_first(url: str) -> None:
        with redis.Redis.from_url(url) as rows:
            rows.xadd(LANE, {"id": "r-42", "body": HI})

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        environment.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        settings = {
            "traces": "otlp",
            "engine_args": f"--otlp-traces-endpoint {collected.url}/v1/traces",
            "max_prompt_bytes": SETTINGS["STREAMFLEET_MAX_PROMPT_BYTES"],
        }
        folder = tmp_path_factory.mktemp("generating")
        with stack_in(folder, smollm2, "generating", add_the_first, **settings) as stack:
            yield stack


@pytest.fixture
async def rows(stack: Stack) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(stack.url, decode_responses=True) as rows:
        yield rows


async def test_what_was_enqueued_before_the_worker_started_is_answered(
    stack: Stack, rows: redis.asyncio.Redis, collected: Receiver
) -> None:
    """The groups start at 0, so nothing is missed."""
    status = await eventually(lambda: rows.hget("{default}:result:r-42", "status"), 30, "r-42 has a result")
    result = await rows.hgetall("{default}:result:r-42")
    assert status == "succeeded"
    assert json.loads(result["response"])["choices"][0]["message"]["content"]
    assert json.loads(result["usage"])["completion_tokens"] > 0
    assert float(result["first_token_ms"]) > 0
    assert await rows.xlen(LANE) == 0
    # Two processes send them, each when it gets to it.
    (generated,) = await eventually(lambda: collected.named("llm_request"), 10, "vLLM's own span")
    (ran,) = await eventually(lambda: collected.named("streamfleet.run"), 10, "the worker's span around it")
    assert (generated.trace, generated.parent) == (ran.trace, ran.id)


async def test_tokens_come_before_the_result(stack: Stack) -> None:
    """A streamed answer says the same as one that is not, and begins before it ends."""
    body = {"messages": [{"role": "user", "content": "Count to twenty."}], "max_tokens": 64, "temperature": 0}
    body["min_tokens"] = 64  # long enough to be looked at meanwhile
    async with Client(stack.url) as client:
        plain = await (await client.enqueue(body)).result(120)
        handle = await client.enqueue(body, stream=True)
        chunks: list[Chunk] = []
        async for chunk in handle.stream():
            if not any(before.text for before in chunks) and chunk.text:
                assert await client.broker.result(handle.id) is None, "the first token comes before the result"
            chunks.append(chunk)
        result = await handle.result(10)
    assert "".join(chunk.text for chunk in chunks) == result.text == plain.text
    assert len(chunks) > 10
    assert result.finish_reason == plain.finish_reason
    assert (result.usage or {})["completion_tokens"] == (plain.usage or {})["completion_tokens"]
    assert result.timings.first_token_ms is not None


# -- OpenAI's own clients ----------------------------------------------------------------------------------


def found(stack: Stack, language: str) -> Json:
    return stack.found(language, SETUP)


@CLIENTS
def test_models(stack: Stack, language: str) -> None:
    models = found(stack, language)["models"]
    assert models == {"listed": sorted(MODELS.values()), "one": MODELS["generating"]}


@CLIENTS
def test_chat_and_the_same_streamed(stack: Stack, language: str) -> None:
    chat = found(stack, language)["chat"]
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
    completion = found(stack, language)["completion"]
    assert completion["text"] == completion["streamed"]
    assert completion["tokens"] == 8
    assert completion["chunks"] > 2


@CLIENTS
def test_a_response(stack: Stack, language: str) -> None:
    response = found(stack, language)["response"]
    assert response["text"].strip()
    assert 0 < response["tokens"] <= 24
    assert response["tier"] == "flex"


async def test_a_chain_of_responses_is_the_conversation_put_together_by_hand(stack: Stack) -> None:
    asked: Json = {"model": MODELS["generating"], "temperature": 0, "max_output_tokens": 24}
    conversation: list[Json] = []
    turn: Json = {"id": None}
    async with stack.gateway.http(stack.key, 120) as http:
        for text in ("Count to ten.", "Say the last word again.", "What did I ask first?"):
            turn = (
                await http.post(RESPONSES, json={**asked, "input": text, "previous_response_id": turn["id"]})
            ).json()
            conversation.append({"role": "user", "content": text})
            by_hand = (await http.post(RESPONSES, json={**asked, "input": conversation, "store": False})).json()
            assert turn["output"][0]["content"] == by_hand["output"][0]["content"]
            assert turn["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
            conversation += turn["output"]
        assert (await http.get(f"{RESPONSES}/{turn['id']}")).json() == {**turn, "error": None, "store": True}


@CLIENTS
def test_errors_are_raised_by_their_types(stack: Stack, language: str) -> None:
    errors = found(stack, language)["errors"]
    assert {name: error["status"] for name, error in errors.items()} == {
        "no_key": 401,
        "no_model": 404,
        "bad_value": 400,
        "bad_value_streamed": 400,
        "no_embeddings": 404,
        "no_file": 404,
        "too_slow": None,
        "late_in_its_stream": None,  # the stream began with 200: the error is one of its events
    }
    assert kind_and_code(errors["no_key"]) == ("AuthenticationError", "invalid_api_key")
    assert kind_and_code(errors["no_model"]) == ("NotFoundError", "model_not_found")
    assert kind_and_code(errors["no_embeddings"]) == ("NotFoundError", "unknown_endpoint")
    assert kind_and_code(errors["no_file"]) == ("NotFoundError", "file_not_found")
    for name in ("bad_value", "bad_value_streamed"):
        assert (errors[name]["kind"], errors[name]["param"]) == ("BadRequestError", "temperature")
    too_slow = {"python": "APITimeoutError", "node": "APIConnectionTimeoutError"}
    assert errors["too_slow"]["kind"] == too_slow[language]
    assert kind_and_code(errors["late_in_its_stream"]) == ("APIError", "deadline_exceeded")


@CLIENTS
def test_a_file_from_upload_to_deletion(stack: Stack, language: str) -> None:
    file = found(stack, language)["files"]
    assert file.pop("lines") == SETUP["batch"]
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
    batch = found(stack, language)["batch"]
    check_batch(batch, "cold")
    for answer in batch["output"]:
        assert answer["response"]["body"]["choices"][0]["message"]["content"]
    assert batch["errors"][0]["response"]["body"]["error"]["param"] == "temperature"


@CLIENTS
def test_batches_of_other_endpoints(stack: Stack, language: str) -> None:
    answers = only_answers(found(stack, language))
    assert answers["/v1/completions"]["body"]["choices"][0]["text"]
    response = answers["/v1/responses"]
    assert response["body"]["usage"]["output_tokens"] > 0
    assert [tool["type"] for tool in response["body"]["tools"]] == ["function"]
    assert response["x-streamfleet-ignored"] == "tools.web_search"


@CLIENTS
def test_a_batch_is_cancelled_and_nothing_of_it_runs_on(stack: Stack, language: str) -> None:
    batch = found(stack, language)["cancelled"]
    assert batch["status"] == "cancelled"
    lines = batch["output"] + batch["errors"]
    assert names(lines) == sorted(each["custom_id"] for each in SETUP["long_batch"])
    late = [each for each in batch["errors"] if each["custom_id"].startswith("long")]
    assert [each["error"]["code"] for each in late] == ["batch_cancelled"] * 4
    assert batch["counts"]["completed"] == len(batch["output"])
    # What an SDK left is kept for its next try, for 10 s.
    eventually_blocking(lambda: stack.running_in_engine() == 0, 15, "nothing runs in the engine")


def test_what_an_evaluation_asks_for_is_there_by_default(stack: Stack) -> None:
    """Tokens of a text and back, and log probabilities of a prompt, as lm-eval's loglikelihood asks for them."""
    with stack.gateway.http_blocking(stack.key) as http:

        def post(path: str, **body: Any) -> Any:
            answer = http.post(path, json={"model": MODELS["generating"], **body})
            return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["error"]["code"])

        text = "The cat sat on the mat"
        tokens = post("/tokenize", prompt=text)["tokens"]
        assert post("/detokenize", tokens=tokens)["prompt"] == text
        assert post("/tokenize", messages=messages("Hi"))["count"] > 1
        for most in (0, 1):
            asked = {"max_tokens": most, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
            (choice,) = post("/v1/completions", prompt=[tokens], **asked)["choices"]
            told = choice["logprobs"]["token_logprobs"]
            assert choice["text"].startswith(text)
            assert (len(told), told[0]) == (len(tokens) + most, None)
            assert all(each <= 0 for each in told[1:])
            assert post("/v1/completions", prompt=text, **asked)["choices"][0]["logprobs"]["token_logprobs"] == told
        for path in ("/score", "/v1/score", "/rerank", "/v2/rerank"):
            assert post(path, query="a", documents=["b"]) == (404, "unknown_endpoint"), path
        prompts = post("/v1/completions", prompt=["Say hi."] * 20, max_tokens=2_040, stop=[" ", "e"])
        assert len(prompts["choices"]) == 20
        assert (
            len(
                post("/v1/chat/completions", messages=messages("Hi"), n=3, max_tokens=1_500, stop=[" ", "e"])["choices"]
            )
            == 3
        )


@pytest.mark.long
def test_both_clients_find_the_same(stack: Stack) -> None:
    """All was asked for above; nothing is asked again."""
    for part in ("chat", "completion"):
        one, other = (found(stack, language)[part]["text"] for language in ("python", "node"))
        assert one == other


# -- hostile bodies, cancellation, the end -----------------------------------------------------------------


async def test_every_hostile_body_has_its_end_and_every_good_one_its_answer(stack: Stack) -> None:
    """The short form of `python -m tests.hostile`."""
    families = tuple(name for name in FAMILIES if name not in PATIENT)
    planned = plan(16, len(families), rate=4.0, seed=7, families=families)
    ended = await play(stack.url, lambda: stack.worker.alive, planned, within_s=60, tell=print)
    assert stack.worker.alive, stack.worker.printed()[-3_000:]
    shown = "\n".join(table(ended))
    assert None not in ended.values(), shown
    assert {end.status for end in ended.values() if end and end.family == GOOD_BODY} == {"succeeded"}, shown
    # A body is at fault for what became of it: an engine that breaks on one is something to close.
    assert not [end for end in ended.values() if end and end.status == "failed" and end.http_status >= 500], shown


async def runs_in_the_engine(stack: Stack) -> bool:
    return await asyncio.to_thread(stack.running_in_engine) > 0


async def test_a_cancelled_request_is_gone_from_the_engine(stack: Stack) -> None:
    async with Client(stack.url) as client:
        handle = await client.enqueue(STORY)
        await eventually(lambda: runs_in_the_engine(stack), 20, "it runs in the engine")
        cancelled_at = time.monotonic()
        await handle.cancel()

        async def gone() -> bool:
            return not await runs_in_the_engine(stack)

        await eventually(gone, WELL_BEFORE_ITS_END_S, "it is gone from the engine")
        assert time.monotonic() - cancelled_at < WELL_BEFORE_ITS_END_S
        assert (await handle.result(timeout=5)).status == "cancelled"


@pytest.mark.kill
async def test_a_killed_worker_leaves_no_process_of_its_engine(stack: Stack) -> None:
    async with Client(stack.url) as client:
        await client.enqueue(STORY)
        await eventually(lambda: runs_in_the_engine(stack), 20, "a request runs in the engine")
    family = descendants(stack.worker.pid)
    assert set(stack.engine_processes()) == {"EngineCore", "Worker"}
    stack.worker.destroy()
    await eventually(lambda: not [p for p in family if alive(p)], 10, "no process of the engine is left")
