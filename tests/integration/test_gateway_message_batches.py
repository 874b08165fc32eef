"""Message batches with Anthropic's own client, on real parts: what a caller gets, bounds, kills."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.constants import BATCH_WINDOW
from tests.integration.gateway_process import Stage, add_key, gateway_on, stage_in
from tests.integration.uploads import begun, contents, peak_while, send
from tests.waiting import eventually

PATH = "/v1/messages/batches"
MOST_BYTES, MOST_REQUESTS = 32 * 1_048_576, 3_000
CONSTANTS = {
    BATCH_WINDOW: 200,
    "gateway.messages.batches.MOST_ON_PAGE": 3,
    "gateway.messages.batches.MOST_REQUESTS": MOST_REQUESTS,
}
Claude = anthropic.AsyncAnthropic


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("batches")
    with stage_in(
        folder,
        speed=20.0,
        gateway_files=f"file://{folder}/files",
        gateway_file_max_bytes=MOST_BYTES,
        constants=CONSTANTS,
    ) as stage:
        yield stage


@pytest.fixture
async def claude(stage: Stage) -> AsyncIterator[Claude]:
    """Anthropic's client, as it is but for the address."""
    async with Claude(base_url=stage.gateway.url, api_key=stage.key, max_retries=0) as client:
        yield client


def asked(name: str, tokens: int = 2, **changes: Any) -> Any:
    """One request."""
    say = [{"role": "user", "content": f"This is {name}."}]
    params = {"model": "simulated", "messages": say, "max_tokens": tokens, "ignore_eos": True}
    return {"custom_id": name, "params": params | changes}


async def ended(client: Claude, batch_id: str, within_s: float = 30.0) -> Any:
    """The batch, once it has ended."""

    async def look() -> Any:
        batch = await client.messages.batches.retrieve(batch_id)
        return batch if batch.processing_status == "ended" else None

    return await eventually(look, within_s, f"{batch_id} ends")


async def results(client: Claude, batch_id: str) -> dict[str, Any]:
    """The result of each request."""
    found = [(each.custom_id, each.result) async for each in await client.messages.batches.results(batch_id)]
    assert len(found) == len(dict(found)), "each once"
    return dict(found)


def counts(batch: Any) -> dict[str, int]:
    """Its counts that are not 0."""
    return {name: count for name, count in batch.request_counts.model_dump().items() if count}


async def test_a_batch_from_its_creation_to_its_end(stage: Stage, claude: Claude, rows: Any) -> None:
    requests = [asked("good"), asked("none", model="nothing"), asked("hot", temperature=9), asked("also-good")]
    made = await claude.messages.batches.create(requests=requests)
    assert (made.id[:9], made.type, counts(made)) == ("msgbatch_", "message_batch", {"processing": 4})
    assert (made.expires_at - made.created_at).total_seconds() == 86_400
    batch = await ended(claude, made.id)
    assert counts(batch) == {"succeeded": 2, "errored": 2}
    assert batch.ended_at >= batch.created_at
    found = await results(claude, made.id)
    assert {name: result.type for name, result in found.items()} == {
        "good": "succeeded",
        "also-good": "succeeded",
        "none": "errored",
        "hot": "errored",
    }
    assert found["good"].message.content[0].text == "[simulated] This"
    assert found["good"].message.usage.output_tokens == 2
    assert found["none"].error.error.type == "not_found_error"
    assert "nothing" in found["none"].error.error.message
    assert (found["hot"].error.error.type, bool(found["hot"].error.request_id)) == ("invalid_request_error", True)
    with pytest.raises(anthropic.BadRequestError, match="cannot be cancelled"):
        await claude.messages.batches.cancel(made.id)
    fields = await rows.hgetall(f"{{gateway}}/batch:{made.id[3:]}")
    await eventually(lambda: _gone(rows, f"{{gateway}}/file:{fields['input_file_id']}"), 5, "its input is erased")
    async with stage.client() as http:
        line = (await http.get(f"{PATH}/{made.id}/results")).text.splitlines()[0]
    assert set(json.loads(line)) == {"custom_id", "result"}


async def _gone(rows: Any, key: str) -> bool:
    return not await rows.exists(key)


async def test_every_request_of_a_batch_may_be_wrong(claude: Claude) -> None:
    """More than a batch of a file may have: here none may be without its result."""
    requests = [asked(f"r{number}", model="nothing") for number in range(2_500)]
    batch = await ended(claude, (await claude.messages.batches.create(requests=requests)).id)
    assert counts(batch) == {"errored": 2_500}
    found = await results(claude, batch.id)
    assert {result.type for result in found.values()} == {"errored"}
    assert set(found) == {each["custom_id"] for each in requests}


async def test_a_cancelled_batch_tells_what_was_not_run(claude: Claude) -> None:
    requests = [asked(f"r{number}", 2 if number < 20 else 7_000) for number in range(1_000)]
    made = await claude.messages.batches.create(requests=requests)
    told = await claude.messages.batches.cancel(made.id)
    assert (told.processing_status, told.cancel_initiated_at is not None) == ("canceling", True)
    batch = await ended(claude, made.id)
    found = await results(claude, made.id)
    assert len(found) == 1_000
    canceled = sum(result.type == "canceled" for result in found.values())
    assert canceled == batch.request_counts.canceled > 0
    assert batch.request_counts.succeeded == 1_000 - canceled


async def test_a_batch_whose_time_is_over_ends(
    stage: Stage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    constants = {"gateway.messages.batches.WINDOW": "2s"}
    folder = next(tmp_path_factory.getbasetemp().glob("batches*"))
    with gateway_on(stage.url, tmp_path, constants=constants, gateway_files=f"file://{folder}/files") as process:
        async with Claude(base_url=process.url, api_key=stage.key, max_retries=0) as client:
            requests = [asked("quick"), *(asked(f"r{number}", 8_000) for number in range(400))]
            made = await client.messages.batches.create(requests=requests)
            batch = await ended(client, made.id)
            found = await results(client, made.id)
    assert batch.request_counts.expired == sum(result.type == "expired" for result in found.values()) > 0
    assert len(found) == 401


async def test_only_a_batch_that_ended_is_deleted_or_read(stage: Stage, claude: Claude, rows: Any) -> None:
    made = await claude.messages.batches.create(requests=[asked("a", 8_000), asked("b", 8_000)])
    with pytest.raises(anthropic.BadRequestError, match="has not ended"):
        await claude.messages.batches.delete(made.id)
    async with stage.client() as http:
        early = await http.get(f"{PATH}/{made.id}/results")
    assert (early.status_code, early.json()["type"]) == (400, "error")
    await claude.messages.batches.cancel(made.id)
    await ended(claude, made.id)
    fields = await rows.hgetall(f"{{gateway}}/batch:{made.id[3:]}")
    assert (await claude.messages.batches.delete(made.id)).model_dump() == {
        "id": made.id,
        "type": "message_batch_deleted",
    }
    for gone in (claude.messages.batches.retrieve, claude.messages.batches.delete, claude.messages.batches.cancel):
        with pytest.raises(anthropic.NotFoundError):
            await gone(made.id)
    for name in ("input", "output", "error"):
        assert not await rows.exists(f"{{gateway}}/file:{fields[f'{name}_file_id']}")


@pytest.mark.parametrize("which", ["output", "error"])
async def test_results_whose_file_was_deleted_are_gone(
    stage: Stage, sdk: openai.AsyncOpenAI, claude: Claude, rows: Any, which: str
) -> None:
    made = await claude.messages.batches.create(requests=[asked("good"), asked("none", model="nothing")])
    await ended(claude, made.id)
    assert set(await results(claude, made.id)) == {"good", "none"}
    await sdk.files.delete(await rows.hget(f"{{gateway}}/batch:{made.id[3:]}", f"{which}_file_id"))
    async with stage.client() as http:
        answer = await http.get(f"{PATH}/{made.id}/results")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert "the results of the batch are gone" in answer.json()["error"]["message"]


async def test_a_batch_that_is_about_to_end_may_be_cancelled(claude: Claude, rows: Any) -> None:
    made = await claude.messages.batches.create(requests=[asked("a")])
    await ended(claude, made.id)
    await eventually(lambda: _not_open(rows, made.id[3:]), 5, "no gateway has it")
    await rows.hset(f"{{gateway}}/batch:{made.id[3:]}", "status", "finalizing")  # as it is for a moment before
    told = await claude.messages.batches.cancel(made.id)
    assert (told.id, told.processing_status) == (made.id, "in_progress")


async def _not_open(rows: Any, batch_id: str) -> bool:
    return await rows.zscore("{gateway}/open_batches", batch_id) is None


async def test_batches_are_listed_in_pages_from_both_ends(stage: Stage) -> None:
    secret, _ = await add_key(stage.url, "lister")
    async with Claude(base_url=stage.gateway.url, api_key=secret, max_retries=0) as client:
        batches = client.messages.batches
        made = [(await batches.create(requests=[asked("a")])).id for _ in range(7)][::-1]
        assert [each.id async for each in batches.list(limit=2)] == made
        assert [each.id async for each in batches.list()] == made, "more than a page holds"
        assert len((await batches.list()).data) == CONSTANTS["gateway.messages.batches.MOST_ON_PAGE"]
        first = await batches.list(limit=2)
        assert ([each.id for each in first.data], first.has_more) == (made[:2], True)
        assert (first.first_id, first.last_id) == (made[0], made[1])
        after = await batches.list(limit=2, after_id=made[4])
        assert ([each.id for each in after.data], after.has_more) == (made[5:], False)
        before = await batches.list(limit=2, before_id=made[3])
        assert ([each.id for each in before.data], before.has_more) == (made[1:3], True)
        assert not (await batches.list(before_id=made[0])).data
        for wrong in ({"before_id": made[0], "after_id": made[1]}, {"after_id": "batch_1"}, {"limit": 1_001}):
            with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
                await batches.list(**wrong)


async def test_a_list_does_not_read_batches_of_other_endpoints(stage: Stage, rows: Any) -> None:
    secret, _ = await add_key(stage.url, "evaluator")
    async with Claude(base_url=stage.gateway.url, api_key=secret, max_retries=0) as client:
        made = await client.messages.batches.create(requests=[asked("a")])
        others = [f"batch_{number:032x}" for number in range(600)]
        async with rows.pipeline() as pipeline:
            for each in others:
                pipeline.hset(f"{{gateway}}/batch:{each}", "endpoint", "/v1/chat/completions")
            pipeline.zadd("{gateway}/batches:evaluator", dict.fromkeys(others, 0))
            await pipeline.execute()
        await ended(client, made.id)
        await rows.config_resetstat()
        assert [each.id async for each in client.messages.batches.list()] == [made.id]
        stats = await rows.info("commandstats")
    assert stats["cmdstat_hget"]["calls"] > 600
    assert stats["cmdstat_hgetall"]["calls"] < 100, "read by the gateway for other things"


async def test_openais_calls_see_them_as_batches(stage: Stage, sdk: openai.AsyncOpenAI, claude: Claude) -> None:
    made = await claude.messages.batches.create(requests=[asked("a", 8_000)])
    batch = await sdk.batches.retrieve(made.id[3:])
    assert (batch.endpoint, batch.id in [each.id async for each in sdk.batches.list()]) == ("/v1/messages", True)
    await sdk.batches.cancel(batch.id)
    assert (await ended(claude, made.id)).cancel_initiated_at is not None
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(batch.input_file_id)
    kept = await claude.messages.batches.create(requests=[asked("a", 8_000)])
    hidden = (await sdk.batches.retrieve(kept.id[3:])).input_file_id
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        await sdk.batches.create(input_file_id=hidden, endpoint="/v1/chat/completions", completion_window="24h")
    await claude.messages.batches.cancel(kept.id)
    file = await sdk.files.create(file=b'{"custom_id": "a"}\n', purpose="batch")
    made_of_file: Any = "/v1/messages"
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        await sdk.batches.create(input_file_id=file.id, endpoint=made_of_file, completion_window="24h")
    other = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.batches.retrieve(f"msg{other.id}")
    assert f"msg{other.id}" not in [each.id async for each in claude.messages.batches.list()]


async def test_nobody_sees_another_tenants_batches(stage: Stage, claude: Claude) -> None:
    made = await claude.messages.batches.create(requests=[asked("a")])
    await ended(claude, made.id)
    secret, _ = await add_key(stage.url, "stranger")
    async with Claude(base_url=stage.gateway.url, api_key=secret, max_retries=0) as stranger:
        batches = stranger.messages.batches
        for call in (batches.retrieve, batches.cancel, batches.delete):
            with pytest.raises(anthropic.NotFoundError):
                await call(made.id)
        assert [each.id async for each in batches.list()] == []
    async with stage.gateway.http(secret) as http:
        assert (await http.get(f"{PATH}/{made.id}/results")).status_code == 404
    async with httpx.AsyncClient(base_url=stage.gateway.url) as nobody:
        assert (await nobody.post(PATH, json={"requests": [asked("a")]})).json()["error"]["type"] == (
            "authentication_error"
        )
    assert set(await results(claude, made.id)) == {"a"}


async def test_a_name_makes_one_batch(stage: Stage, claude: Claude, rows: Any) -> None:
    key = {"Idempotency-Key": "message batch"}
    made = await claude.messages.batches.create(requests=[asked("a")], extra_headers=key)
    await ended(claude, made.id)
    fields = await rows.hgetall(f"{{gateway}}/batch:{made.id[3:]}")
    await eventually(lambda: _gone(rows, f"{{gateway}}/file:{fields['input_file_id']}"), 5, "its input is erased")
    before = await rows.zcard(f"{{gateway}}/files:{fields['tenant']}")
    again = await claude.messages.batches.create(requests=[asked("a")], extra_headers=key)
    assert again.id == made.id
    assert await rows.zcard(f"{{gateway}}/files:{fields['tenant']}") == before, "its second input is gone"
    with pytest.raises(anthropic.ConflictError):
        await claude.messages.batches.create(requests=[asked("b")], extra_headers=key)


# -- bounds -------------------------------------------------------------------------------------------------


async def test_a_batch_has_at_most_so_many_requests(
    stage: Stage, claude: Claude, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = contents(stage, tmp_path_factory)
    requests = [asked(f"too-many-{number}") for number in range(MOST_REQUESTS + 1)]
    with pytest.raises(anthropic.RequestTooLargeError, match="requests: may have 3000"):
        await claude.messages.batches.create(requests=requests)
    new = contents(stage, tmp_path_factory) - before  # of batches that go on meanwhile
    assert not [path for path in new if b"too-many" in path.read_bytes()]


async def test_a_large_batch_takes_little_memory(stage: Stage, claude: Claude) -> None:
    """Requests are written as they come."""
    long = "word " * 2_000
    requests = [asked(f"r{number}", 1, system=long) for number in range(2_500)]
    before = stage.gateway.resident_bytes()
    made = list[Any]()

    async def create() -> None:
        made.append(await claude.messages.batches.create(requests=requests))

    peak = await peak_while(stage, create())
    await claude.messages.batches.cancel(made[0].id)
    assert peak - before < 20_000_000, "the body has 25 MB"
    await ended(claude, made[0].id)


async def test_unfinished_requests_are_bounded_together(
    stage: Stage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each upload held one of 6 MB that counted nowhere."""
    (first, _), (second, _), (third, _) = [await add_key(stage.url, f"sender-{number}") for number in range(3)]
    text = json.dumps({"requests": [asked("a"), asked("b", system="@")]}).replace("@", "\\u0061" * 70_000).encode()
    folder, before = next(tmp_path_factory.getbasetemp().glob("batches*")), contents(stage, tmp_path_factory)

    async def create(key: str, *waits: asyncio.Event) -> httpx.Response:
        async def pieces() -> AsyncIterator[bytes]:
            for piece, wait in zip((text[:-9], text[-9:-2]), waits, strict=False):
                yield piece
                await wait.wait()
            yield text[-2:] if waits else text

        async with gateway.http(key) as http:
            return await http.post(PATH, content=pieces())

    def held() -> float:
        return gateway.metric("streamfleet_gateway_body_bytes")

    limits = {"gateway_files": f"file://{folder}/files", "gateway_max_held_bytes": 1_048_576}
    with gateway_on(stage.url, tmp_path, **limits) as gateway:
        go_on, end = asyncio.Event(), asyncio.Event()
        uploads = [asyncio.create_task(create(first, go_on, end))]
        await eventually(lambda: held() > 420_000, 20, "the first request is held")
        answer = await create(first)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
        uploads.append(asyncio.create_task(create(second, go_on, end)))
        await eventually(lambda: held() > 840_000, 20, "the second is held")
        answer = await create(third)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")
        assert int(answer.headers["retry-after"]) > 0
        assert len(contents(stage, tmp_path_factory) - before) == 2, "nothing is kept of what was refused"
        go_on.set()
        await eventually(lambda: held() < 10, 20, "a request that was written is not held")
        torn = asyncio.create_task(create(third, asyncio.Event()))
        await eventually(lambda: held() > 420_000, 20, "the third is held")
        torn.cancel()
        end.set()
        for key, upload in zip((first, second), uploads, strict=True):
            made = await upload
            assert made.status_code == 200
            async with Claude(base_url=gateway.url, api_key=key, max_retries=0) as client:
                await ended(client, made.json()["id"])
        await eventually(lambda: held() == 0, 20, "nothing is left")


async def test_a_body_may_not_be_larger_than_a_file(stage: Stage) -> None:
    """It is refused by its length, before any of it is read."""
    with socket.create_connection(("127.0.0.1", httpx.URL(stage.gateway.url).port or 0), 10) as connection:
        send(connection, head_of(stage, MOST_BYTES + 1))
        told = connection.makefile("rb").read().decode()
    assert told.startswith("HTTP/1.1 413 ")
    assert '"type":"request_too_large"' in told


async def test_a_bad_request_is_told_with_its_number(stage: Stage) -> None:
    async with stage.client() as http:
        answer = await http.post(PATH, json={"requests": [asked("a"), asked("b", stream=True)]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "requests.1.params.stream" in answer.json()["error"]["message"]


def head_of(stage: Stage, length: int) -> bytes:
    """The head of a batch whose body has this length."""
    return f"POST {PATH} HTTP/1.1\r\nHost: a\r\nx-api-key: {stage.key}\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("cut", ["in a request", "behind the last"])
async def test_a_torn_upload_leaves_nothing(
    stage: Stage, rows: Any, tmp_path_factory: pytest.TempPathFactory, cut: str
) -> None:
    text = json.dumps({"requests": [asked(f"r{number}") for number in range(2_000)]}).encode()
    before, batches = contents(stage, tmp_path_factory), len(await rows.keys("{gateway}/batch:*"))
    with socket.create_connection(("127.0.0.1", httpx.URL(stage.gateway.url).port or 0)) as connection:
        send(connection, head_of(stage, len(text)) + text[: -3 if cut == "behind the last" else len(text) // 2])
        await begun(rows)

    async def nothing() -> bool:
        return contents(stage, tmp_path_factory) <= before and not await rows.zcard("{gateway}/loose")

    await eventually(nothing, 10, "its content is gone")
    assert len(await rows.keys("{gateway}/batch:*")) == batches


# -- kills --------------------------------------------------------------------------------------------------
