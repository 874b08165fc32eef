"""Files, batches and the simple service as OpenAI's own client and a plain one see them, on real parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane
from tests.broker import Broker
from tests.constants import BATCH_WINDOW
from tests.integration.batch_lines import (
    CHAT,
    NO_REQUESTS,
    TEXT,
    answered,
    both,
    ended,
    line,
    names,
    nothing_outstanding,
    start,
    write,
)
from tests.integration.gateway_process import Stage, add_key, stage_in
from tests.integration.uploads import LARGE, MEGABYTE, begun, contents, download, peak_while, quietly, send
from tests.waiting import eventually

CONSTANTS = {
    "gateway.batches.claimed_batch.MOST_LINES": 3_000,
    "gateway.files.upload.IDLE_S": 1,
    "gateway.simple.routes.MOST_PROMPTS": 50,
    BATCH_WINDOW: 200,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("batches")
    with stage_in(
        folder,
        speed=20.0,
        gateway_files=f"file://{folder}/files",
        gateway_file_max_bytes=LARGE,
        constants=CONSTANTS,
    ) as stage:
        yield stage


# -- files -------------------------------------------------------------------------------------------------


async def test_a_file_is_kept_until_it_is_deleted(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    path = write(tmp_path, [line("a")], "my requests.jsonl")
    file = await sdk.files.create(file=path, purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("my requests.jsonl", path.stat().st_size, "batch")
    assert await sdk.files.retrieve(file.id) == file
    assert (await sdk.files.content(file.id)).content == path.read_bytes()
    assert file.id in [each.id async for each in sdk.files.list(limit=1)]
    assert (await sdk.files.delete(file.id)).deleted
    for gone in (sdk.files.retrieve(file.id), sdk.files.content(file.id), sdk.files.delete(file.id)):
        with pytest.raises(openai.NotFoundError):
            await gone


async def test_lines_that_begin_alike_are_enqueued_together(
    stage: Stage, sdk: openai.AsyncOpenAI, rows: Any, tmp_path: Path
) -> None:
    """And each is answered, though the last lines of the window may be the first of the file."""

    def asked(number: int) -> str:
        system = {"role": "system", "content": f"You are assistant {number % 5}. " * 20}
        messages = [system, {"role": "user", "content": f"Question {number}"}]
        body = {"model": "simulated", "messages": messages, "max_tokens": 2, "ignore_eos": True}
        return line(f"c-{number}", body=body)

    async def window_is_full() -> bool:
        return bool(await rows.xlen("{default}:lane:low") == 200)

    broker = Broker(Connection(stage.url), Keys("default"))
    try:
        await broker.pause([Lane.LOW])
        batch = await start(sdk, write(tmp_path, map(asked, range(500))))
        await eventually(window_is_full, 20)
        entries = await rows.xrange("{default}:lane:low")
        await broker.resume([Lane.LOW])
    finally:
        await broker.close()
    shared = [json.loads(fields["body"])["messages"][0]["content"] for _, fields in entries]
    assert shared == sorted(shared)
    assert len(set(shared)) == 5
    done = await ended(sdk, batch.id)
    assert (done.request_counts.total, done.request_counts.completed) == (500, 500)
    assert done.usage.input_tokens_details.cached_tokens > done.usage.input_tokens / 2


async def test_nobody_sees_another_tenants_files_and_batches(
    stage: Stage, sdk: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    batch = await start(sdk, write(tmp_path, [line("a")]))
    secret, _ = await add_key(stage.url, "stranger")
    async with stage.gateway.http(secret) as stranger:
        for path in (f"files/{batch.input_file_id}", f"files/{batch.input_file_id}/content", f"batches/{batch.id}"):
            assert (await stranger.get(f"/v1/{path}")).status_code == 404
        assert (await stranger.delete(f"/v1/files/{batch.input_file_id}")).status_code == 404
        assert (await stranger.post(f"/v1/batches/{batch.id}/cancel")).status_code == 404
        for path in ("files", "batches"):
            assert (await stranger.get(f"/v1/{path}")).json()["data"] == []
        body = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
        refused = await stranger.post("/v1/batches", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "file_not_found")
    async with stage.gateway.http() as nobody:
        assert (await nobody.get("/v1/files")).status_code == 401
    await ended(sdk, batch.id)


async def test_a_large_upload_takes_little_memory(stage: Stage, http: httpx.AsyncClient, rows: Any) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += b'--x\r\nContent-Disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
    block = b"x" * (MEGABYTE - 1) + b"\n"

    async def form() -> AsyncIterator[bytes]:
        yield head
        for _ in range(LARGE // MEGABYTE):
            yield block
        yield b"\r\n--x--\r\n"

    before = stage.gateway.resident_bytes()
    kind = {"content-type": "multipart/form-data; boundary=x"}
    file = (await http.post("/v1/files", content=form(), headers=kind)).json()
    assert file["bytes"] == LARGE
    peak = await peak_while(stage, download(http, file["id"]))
    assert max(peak, stage.gateway.resident_bytes()) - before < 24 * MEGABYTE
    assert (await http.delete(f"/v1/files/{file['id']}")).status_code == 200
    assert await rows.zcard("{gateway}/loose") == 0, "its content is gone as well"


@pytest.mark.parametrize("how", ["leaves", "stalls", "too large", "no purpose", "ends early"])
async def test_an_upload_that_comes_to_nothing_leaves_nothing(
    stage: Stage, rows: Any, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    before = contents(stage, tmp_path_factory)
    files = await rows.zcard("{gateway}/files:everything")
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * (2 * MEGABYTE)
    announced = LARGE * 2 if how == "too large" else 3 * MEGABYTE
    finish = b"\r\n--x--\r\n" if how == "no purpose" else b""
    if how in ("no purpose", "ends early"):
        announced = len(part) + len(finish)
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stage.key}\r\n"
        f"content-type: multipart/form-data; boundary=x\r\ncontent-length: {announced}\r\n\r\n"
    )
    with stage.gateway.raw() as connection:
        sending = asyncio.to_thread(send, connection, head.encode() + part + finish)
        await asyncio.gather(sending, begun(rows) if how == "leaves" else quietly())
        answer = b"" if how == "leaves" else await asyncio.to_thread(connection.recv, 4_096)
    wanted = {"leaves": b"", "stalls": b" 408 ", "too large": b" 413 ", "no purpose": b" 400 ", "ends early": b" 400 "}
    assert wanted[how] in answer

    async def nothing_left() -> bool:
        loose = await rows.zcard("{gateway}/loose")
        return loose == 0 and contents(stage, tmp_path_factory) == before

    await eventually(nothing_left, 10, "nothing is left of it")
    assert await rows.zcard("{gateway}/files:everything") == files


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [("purpose", "fine-tune", "purpose"), ("file", b"", "file")],
    ids=["purpose", "empty"],
)
async def test_a_wrong_upload_is_said(sdk: openai.AsyncOpenAI, field: str, value: Any, param: str) -> None:
    given: dict[str, Any] = {"file": ("a.jsonl", b"{}"), "purpose": "batch"}
    given[field] = ("a.jsonl", value) if field == "file" else value
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(**given)
    assert refused.value.param == param


# -- batches -----------------------------------------------------------------------------------------------


async def test_a_batch_from_file_to_file(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    wanted = [f"r{number}" for number in range(30)]
    batch = await start(sdk, write(tmp_path, map(line, wanted)), metadata={"for": "a test"})
    assert batch.status == "validating"
    assert batch.metadata == {"for": "a test"}
    done = await ended(sdk, batch.id)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (30, 30, 0)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    output, errors = await both(sdk, done)
    assert (names(output), errors) == (sorted(wanted), [])
    first = output[0]["response"]
    assert first["status_code"] == 200
    assert first["body"]["choices"][0]["message"]["content"].startswith("[simulated] This")
    assert done.usage.output_tokens == 60
    assert (await sdk.files.retrieve(done.output_file_id)).purpose == "batch_output"
    with pytest.raises(openai.ConflictError):
        await sdk.batches.cancel(batch.id)


async def test_a_batch_of_responses(stage: Stage, sdk: openai.AsyncOpenAI, rows: Any, tmp_path: Path) -> None:
    """The simulated engine refuses tools; its answer to that line says all the same which were left out."""
    asked = {"model": "simulated", "input": "Say hi", "max_output_tokens": 3, "ignore_eos": True}
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}}]
    bodies = {"a": asked, "b": {**asked, "tools": tools}, "c": {**asked, "background": True}}
    lines = [line(name, url="/v1/responses", body=body) for name, body in bodies.items()]
    expiry: Any = {"anchor": "created_at", "seconds": 3_600}

    async def enqueued() -> list[Any]:
        entries = await rows.xrange("{default}:lane:low")
        return [json.loads(fields["body"]) for _, fields in entries] if len(entries) == 2 else []

    broker = Broker(Connection(stage.url), Keys("default"))
    try:
        await broker.pause([Lane.LOW])
        batch = await start(sdk, write(tmp_path, lines), endpoint="/v1/responses", output_expires_after=expiry)
        assert batch.output_expires_after == expiry
        sent = await eventually(enqueued, 10, "its lines are enqueued")
        await broker.resume([Lane.LOW])
    finally:
        await broker.close()
    assert sorted(sent, key=len) == [{**asked, "store": False}, {**asked, "tools": tools[1:], "store": False}]
    done = await ended(sdk, batch.id)
    ((output,), errors) = await both(sdk, done)
    response = output["response"]["body"]
    assert (response["object"], response["id"]) == ("response", f"resp_{batch.id}-1")
    assert response["output"][0]["content"][0]["text"] == "[simulated] Say hi"
    assert (done.usage.input_tokens, done.usage.output_tokens) == (response["usage"]["input_tokens"], 3)
    refused, left_out = sorted(errors, key=lambda each: each["response"] is not None)
    assert (refused["custom_id"], refused["error"]["param"]) == ("c", "body.background")
    assert (left_out["custom_id"], left_out["response"]["x-streamfleet-ignored"]) == ("b", "tools.web_search")
    for file_id in (done.output_file_id, done.error_file_id):
        file = await sdk.files.retrieve(file_id)
        assert file.expires_at == file.created_at + 3_600


async def test_a_line_of_a_file_is_one_line_for_every_reader(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    good, bad = ([f"{name}{end}" for end in ("\x85", "\u2028", "\u2029")] for name in ("good", "bad"))
    lines = [*map(line, good), *(line(each, method="GET") for each in bad)]
    path = write(tmp_path, (json.dumps(json.loads(text), ensure_ascii=False) for text in lines))
    done = await ended(sdk, (await start(sdk, path)).id)
    for file_id, wanted in ((done.output_file_id, good), (done.error_file_id, bad)):
        content = await sdk.files.content(file_id)
        assert sorted(json.loads(text)["custom_id"] for text in content.iter_lines()) == wanted


async def test_broken_lines_fail_with_their_numbers_and_the_others_run(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    lines = [
        line("good"),
        "{",
        "",
        line("good"),
        line("elsewhere", url="/v1/embeddings"),
        line("unknown", body={"model": "gpt-9", "messages": []}),
        line("no body", body="hi"),
        json.dumps({"method": "POST", "url": CHAT, "body": {}}),
        line("greedy", body={"model": "simulated", "messages": [{"role": "user", "content": "x"}], "n": 10**6}),
        line("also good"),
    ]
    done = await ended(sdk, (await start(sdk, write(tmp_path, lines))).id)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (9, 2, 7)
    output, errors = await both(sdk, done)
    assert names(output) == ["also good", "good"]
    refused = {each["error"]["line"]: each["error"] for each in errors if each["response"] is None}
    assert {number: error["param"] for number, error in refused.items()} == {
        2: None,
        4: "custom_id",
        5: "url",
        6: "body.model",
        7: "body",
        8: "custom_id",
    }
    assert refused[4]["code"] == "duplicate_custom_id"
    assert refused[6]["code"] == "model_not_found"
    assert names(errors) == ["elsewhere", "greedy", "no body", "unknown"]
    assert [error.line for error in done.errors.data] == [2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "missing_required_parameter"),
        (["", " "], "empty_file"),
        ([line(str(n)) for n in range(3_001)], "too_many_requests"),
    ],
    ids=["empty", "blank", "too many"],
)
async def test_a_file_that_is_no_batch(sdk: openai.AsyncOpenAI, tmp_path: Path, lines: list[str], code: str) -> None:
    path = write(tmp_path, lines)
    if not path.stat().st_size:
        with pytest.raises(openai.BadRequestError):
            await start(sdk, path)
        return
    done = await ended(sdk, (await start(sdk, path)).id)
    assert (done.status, done.errors.data[0].code) == ("failed", code)
    assert (done.output_file_id, done.error_file_id) == (None, None)


async def test_a_file_of_which_no_line_is_a_request_fails_with_its_lines(
    sdk: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    path, batches = tmp_path / "in.jsonl", {}
    for kind, content in NO_REQUESTS.items():
        path.write_bytes(content)
        batches[kind] = (await start(sdk, path)).id
    for kind, batch_id in batches.items():
        done = await ended(sdk, batch_id)
        assert (done.status, done.output_file_id, done.error_file_id) == ("failed", None, None), kind
        assert done.failed_at is not None
        numbers = [error.line for error in done.errors.data]
        assert numbers == sorted(set(numbers))
        assert numbers[0] == 1
        assert all(error.code and f"line {error.line}: " in error.message for error in done.errors.data)


async def test_a_batch_whose_lines_are_all_for_other_places_fails(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    lines = [line("a", url="/v1/embeddings"), "", line("b", body={"model": "gpt-9", "messages": []})]
    done = await ended(sdk, (await start(sdk, write(tmp_path, lines))).id)
    assert done.status == "failed"
    assert [(error.line, error.code) for error in done.errors.data] == [
        (1, "mismatched_endpoint"),
        (3, "model_not_found"),
    ]


async def test_a_byte_order_mark_of_utf_8_is_no_fault(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    done = await ended(sdk, (await start(sdk, path)).id)
    assert (done.status, done.request_counts.completed) == ("completed", 2)


async def test_a_batch_without_its_content_fails_and_says_why(
    stage: Stage, sdk: openai.AsyncOpenAI, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Somebody deleted it by hand, or this gateway has another store."""
    file = await sdk.files.create(file=write(tmp_path, [line("a")]), purpose="batch")
    (content,) = [path for path in contents(stage, tmp_path_factory) if file.id in path.name]
    content.unlink()
    with pytest.raises(openai.NotFoundError, match="gone from the store"):
        await sdk.files.content(file.id)
    batch = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    done = await ended(sdk, batch.id)
    assert (done.status, done.errors.data[0].code) == ("failed", "input_file_unavailable")


async def test_a_batch_is_cancelled_midway(sdk: openai.AsyncOpenAI, tmp_path: Path, rows: Any) -> None:
    wanted = [f"c{number}" for number in range(600)]
    batch = await start(
        sdk, write(tmp_path, [line(name, 2 if number < 50 else 8_000) for number, name in enumerate(wanted)])
    )
    with pytest.raises(openai.ConflictError):
        await sdk.files.delete(batch.input_file_id)
    await answered(sdk, batch.id, 500)
    assert (await sdk.batches.cancel(batch.id)).status == "cancelling"
    done = await ended(sdk, batch.id)
    assert done.status == "cancelled"
    output, errors = await both(sdk, done)
    assert names(output + errors) == sorted(wanted)
    assert output
    assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
    assert (done.request_counts.completed, done.request_counts.failed) == (len(output), len(errors))

    await nothing_outstanding(rows, 10)
    assert (await sdk.files.delete(batch.input_file_id)).deleted


async def test_batches_are_listed_by_page(stage: Stage, tmp_path: Path) -> None:
    secret, _ = await add_key(stage.url, "lister")
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=secret, max_retries=0) as sdk:
        path = write(tmp_path, [line("a")])
        made = [(await start(sdk, path)).id for _ in range(5)]
        page = await sdk.batches.list(limit=2)
        assert ([each.id for each in page.data], page.has_more) == (made[:2:-1], True)
        assert [each.id async for each in sdk.batches.list(limit=2)] == made[::-1]
        for batch_id in made:
            await ended(sdk, batch_id)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"input_file_id": "file-" + "0" * 32}, 404),
        ({"input_file_id": "../x"}, 400),
        ({"endpoint": "/v1/images"}, 400),
        ({"completion_window": "1y"}, 400),
        ({"callback_url": "http://169.254.169.254/"}, 400),
    ],
    ids=["no file", "no id", "endpoint", "window", "callback"],
)
async def test_a_wrong_batch_is_refused(
    http: httpx.AsyncClient, sdk: openai.AsyncOpenAI, tmp_path: Path, changes: dict[str, str], status: int
) -> None:
    file = await sdk.files.create(file=write(tmp_path, [line("a")]), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changes
    answer = await http.post("/v1/batches", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == next(iter(changes))


# -- the simple service ------------------------------------------------------------------------------------


async def test_prompts_in_outputs_out(http: httpx.AsyncClient) -> None:
    prompts = ["one", "two", "three"]
    answer = (await http.post("/v1/batch/sync", json={"prompts": prompts, "max_tokens": 5})).json()
    assert answer["batch_id"]
    assert answer["outputs"] == [f"[simulated] {' '.join([p] * 4)}" for p in prompts]
    assert answer["outputs"] == [each["output"] for each in answer["results"]]
    assert answer["total_tokens"] == answer["usage"]["total_tokens"] > 15
    assert answer["throughput_tokens_per_sec"] > answer["throughput"]["output_tokens_per_second"]
    assert (answer["status"], answer["succeeded"], answer["failed"]) == ("completed", 3, 0)
    assert answer["usage"]["completion_tokens"] == 15
    assert answer["latency_ms"] > 0
    assert answer["throughput"]["output_tokens_per_second"] > 0


async def test_a_prompt_has_256_tokens_unless_the_call_names_a_number(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/batch/sync", json={"prompts": ["a"], "ignore_eos": True})).json()
    assert answer["usage"]["completion_tokens"] == 256


async def test_one_bad_prompt_fails_alone(http: httpx.AsyncClient) -> None:
    prompts = ["good", "中" * 600_000, "also good"]
    answer = (await http.post("/v1/batch/sync", json={"prompts": prompts, "max_tokens": 2})).json()
    assert [each["status"] for each in answer["results"]] == ["succeeded", "failed", "succeeded"]
    assert answer["results"][1]["error"]["code"] == "request_too_large"
    assert answer["outputs"] == ["[simulated] good", None, "[simulated] also"]


async def test_who_leaves_cancels_all_prompts(http: httpx.AsyncClient, rows: Any) -> None:
    body = {"prompts": ["x"] * 50, "max_tokens": 4_000, "ignore_eos": True}
    task = asyncio.ensure_future(http.post("/v1/batch/sync", json=body))

    async def enqueued() -> bool:
        return bool(await rows.xlen("{default}:lane:normal") >= 40)

    await eventually(enqueued, 10, "the prompts are enqueued")
    task.cancel()

    await nothing_outstanding(rows, 5, "normal")


async def test_prompts_that_are_late_say_so(http: httpx.AsyncClient) -> None:
    body = {"prompts": ["x"] * 50, "max_tokens": 4_000, "ignore_eos": True}
    answer = (await http.post("/v1/batch/sync", json=body, headers={"X-Streamfleet-Ttl": "300ms"})).json()
    assert answer["failed"] > 0
    assert {each["error"]["code"] for each in answer["results"] if each["error"]} == {"deadline_exceeded"}


@pytest.mark.parametrize(
    "body",
    [{"prompts": ["x"] * 51}, {"prompts": []}, {"prompts": [5]}, {}, {"prompts": ["x"], "model": "gpt-9"}],
    ids=["too many", "none", "a number", "nothing", "unknown model"],
)
@pytest.mark.parametrize("path", ["sync", "async"])
async def test_a_wrong_call_is_refused(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await http.post(f"/v1/batch/{path}", json=body)
    assert answer.status_code == (404 if "model" in body else 400)


async def test_a_job_is_answered_later(stage: Stage, http: httpx.AsyncClient) -> None:
    body = {"prompts": ["one", "two", "x" * 2_000_000], "max_tokens": 5, "metadata": {"a": "b"}}
    accepted = await http.post("/v1/batch/async", json=body)
    assert accepted.status_code == 202
    job = accepted.json()
    assert (job["status"], job["progress"], job["outputs"]) == ("pending", 0.0, None)
    assert job["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    done = await through(http, job["batch_id"])
    assert (done["batch_id"], done["status"], done["progress"]) == (job["batch_id"], "completed", 1.0)
    assert done["outputs"] == [" ".join(["[simulated]", *[each] * 4]) for each in ("one", "two")] + [None]
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert done["metadata"] == {"a": "b"}
    assert [each["index"] for each in done["results"]] == [0, 1, 2]
    assert [each["status"] for each in done["results"]] == ["succeeded", "succeeded", "failed"]
    assert done["results"][1]["output"] == "[simulated] two two two two"
    assert done["usage"]["completion_tokens"] == 10
    secret, _ = await add_key(stage.url, "somebody else")
    async with stage.gateway.http(secret) as stranger:
        assert (await stranger.get(f"/v1/batch/{job['id']}")).status_code == 404
        assert (await stranger.get("/v1/batch/stats")).json()["prompts"] == 0
    stats = (await http.get("/v1/batch/stats")).json()
    assert stats["jobs"] >= 1
    assert stats["prompts"] >= 3
    assert (await http.get("/v1/batch/job_none")).status_code == 404
    listed = (await http.get("/v1/files")).json()["data"]
    assert "job_input" not in {each["purpose"] for each in listed}


async def through(http: httpx.AsyncClient, batch_id: str) -> Any:
    """A job, once it has ended."""

    async def look() -> Any:
        found = (await http.get(f"/v1/batch/{batch_id}")).json()
        return found if found["status"] in ("completed", "failed") else None

    return await eventually(look, 20, "the job ends")


async def test_calls_and_jobs_are_counted_by_where_they_are(stage: Stage) -> None:
    """Of each tenant its own: those that wait and run are told from those that ended, and these by how."""
    secret, _ = await add_key(stage.url, "counter")
    names = ("total_batches", "completed", "pending", "processing")

    async with stage.gateway.http(secret) as http:

        async def counted() -> tuple[int, ...]:
            found = (await http.get("/v1/batch/stats")).json()
            return tuple(found[name] for name in names)

        assert await counted() == (0, 0, 0, 0)
        await http.post("/v1/batch/sync", json={"prompts": ["a"], "max_tokens": 2})
        await http.post("/v1/batch/sync", json={"prompts": ["a"], "n": 10**6})
        quick = (await http.post("/v1/batch/async", json={"prompts": ["a"], "max_tokens": 2})).json()
        await through(http, quick["batch_id"])
        await eventually(lambda: _is(counted, (3, 2, 0, 0)), 10, "what ended is counted")
        long = {"prompts": ["a"], "max_tokens": 8_000, "ignore_eos": True, "completion_window": "7d"}
        going_on = (await http.post("/v1/batch/async", json=long)).json()["batch_id"]
        await eventually(lambda: _is(counted, (4, 2, 0, 1)), 10, "one is under way")
        await http.post(f"/v1/batch/{going_on}/cancel")
        await through(http, going_on)
        assert await counted() == (4, 2, 0, 0), "a cancelled one has not completed"


async def _is(look: Callable[[], Awaitable[tuple[int, ...]]], wanted: tuple[int, ...]) -> bool:
    return await look() == wanted
