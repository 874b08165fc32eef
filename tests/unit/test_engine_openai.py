"""The openai engine reads a server's answers: the network is replaced, all else is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from streamfleet.common.protocol import CHAT, Lane
from streamfleet.worker.engine.base import EngineAborted, EngineError, EngineRequest, EngineUnavailable
from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from tests.waiting import eventually

KEY = "sk-very-secret"
Answer = Callable[[httpx.Request], httpx.Response]


class Time:
    """A clock whose sleeps pass at once."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def started(answer: Answer, upstream: Upstream | None = None) -> AsyncIterator[OpenAIEngine]:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "first", "max_model_len": 4096}, {"id": "second"}]})
        return answer(request)

    engine = OpenAIEngine(
        upstream or Upstream("http://user:password@example.test:8000/v1/"),
        KEY,
        transport=httpx.MockTransport(handle),
        clock=Time(),
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def chat(**body: object) -> EngineRequest:
    return EngineRequest("r-1", CHAT, {"messages": [], **body}, Lane.HIGH, 1_790_000_000_999)


@pytest.mark.parametrize("error", [httpx.ReadError("gone"), asyncio.CancelledError()], ids=["failed", "cancelled"])
async def test_a_call_that_got_no_answer_leaves_its_place_to_a_new_connection(error: BaseException) -> None:
    errors = [error]

    def answer(_: httpx.Request) -> httpx.Response:
        if errors:
            raise errors.pop()
        return httpx.Response(200, json={"choices": []})

    async with started(answer, Upstream("http://example.test:8000", max_concurrency=1)) as engine, asyncio.timeout(10):
        before = set(engine._clients)
        with pytest.raises((EngineUnavailable, asyncio.CancelledError)):
            await engine.run(chat())
        (old,) = before - engine._clients
        assert (await engine.run(chat())).status == 200
        await eventually(lambda: old.is_closed)


async def test_a_probe_that_got_no_answer_leaves_its_place_to_a_new_connection() -> None:
    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    engine = OpenAIEngine(Upstream("http://example.test:8000"), transport=httpx.MockTransport(lost), clock=Time())
    before = engine._prober
    assert not await engine._answers()
    assert engine._prober is not before
    await eventually(lambda: before.is_closed)
    await engine.stop()


async def test_the_request_goes_on_as_it_is() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b'{"choices": [],  "odd":1}')

    async with started(answer) as engine:
        assert engine.models == ("first", "second")
        assert engine.capacity().slots == 32
        assert engine.capacity().max_model_len == 4096
        reply = await engine.run(chat(max_tokens=5, model="second"))
        await engine.run(chat())
    assert reply.body == b'{"choices": [],  "odd":1}'
    assert reply.first_token_ms is None
    assert str(seen[0].url) == "http://example.test:8000/v1/chat/completions"
    assert json.loads(seen[0].content) == {"messages": [], "max_tokens": 5, "model": "second"}
    assert json.loads(seen[1].content)["model"] == "first"
    assert seen[0].headers["X-Request-Id"] == "r-1"
    assert seen[0].headers["X-Vllm-Priority"] == "11790000000"
    assert seen[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_to_be_tried_again(status: int) -> None:
    said = {"error": {"message": "come back later"}}
    async with started(lambda _: httpx.Response(status, json=said)) as engine:
        with pytest.raises(EngineUnavailable, match=f"answers {status}$") as caught:
            await engine.run(chat())
    assert caught.value.said == "come back later"
    assert caught.value.retry_after_ms is None
    assert caught.value.counted


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("7", 7000),
        ("Tue, 14 Nov 2023 22:13:25 GMT", 5000),
        ("Tue, 14 Nov 2000 22:13:25 GMT", 0),
        ("soon", None),
        ("-1", None),
        ("²", None),
    ],
)
async def test_retry_after_is_heard(value: str, expected_ms: int | None) -> None:
    headers = [(b"Retry-After", value.encode())]
    async with started(lambda _: httpx.Response(503, headers=headers)) as engine:
        with pytest.raises(EngineUnavailable) as caught:
            await engine.run(chat())
    assert caught.value.retry_after_ms == expected_ms


@pytest.mark.parametrize(
    ("status", "headers", "busy"),
    [
        (429, {}, True),
        (429, {"Retry-After": "7"}, True),
        (503, {"Retry-After": "7"}, True),
        (503, {}, False),
        (500, {"Retry-After": "7"}, False),
        (502, {}, False),
    ],
)
async def test_a_server_that_takes_no_more_for_now_is_busy(status: int, headers: dict[str, str], busy: bool) -> None:
    async with started(lambda _: httpx.Response(status, headers=headers)) as engine:
        with pytest.raises(EngineUnavailable) as caught:
            await engine.run(chat())
    assert caught.value.busy is busy


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_the_requests_own_fault_is_an_answer(status: int) -> None:
    body = b'{"error":{"message":"no","param":"messages"}}'
    async with started(lambda _: httpx.Response(status, content=body)) as engine:
        reply = await engine.run(chat())
    assert (reply.status, reply.body) == (status, body)


@pytest.mark.parametrize(("status", "param"), [(404, "endpoint"), (405, "endpoint"), (418, None), (501, None)])
async def test_errors_of_another_shape_are_put_into_ours(status: int, param: str | None) -> None:
    async with started(lambda _: httpx.Response(status, json={"detail": "Not Found"})) as engine:
        reply = await engine.run(chat())
    assert reply.status == (404 if status == 405 else status)
    assert json.loads(reply.body)["error"]["param"] == param


async def test_an_aborted_answer_is_none() -> None:
    body = {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}
    async with started(lambda _: httpx.Response(200, json=body)) as engine:
        with pytest.raises(EngineAborted):
            await engine.run(chat())


async def test_text_about_an_abort_is_no_abort() -> None:
    body = {"choices": [{"message": {"content": 'say "abort"'}, "finish_reason": "stop"}], "x": "abort"}
    async with started(lambda _: httpx.Response(200, json=body)) as engine:
        assert (await engine.run(chat())).status == 200


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (200, b"[]"), (302, b"")])
async def test_what_is_no_answer_of_openai_is_a_fault_of_the_engine(status: int, body: bytes) -> None:
    async with started(lambda _: httpx.Response(status, content=body)) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.run(chat())


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError],
)
async def test_a_broken_connection_is_to_be_tried_again(error: type[httpx.TransportError]) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error("broken")

    async with started(answer) as engine:
        with pytest.raises(EngineUnavailable, match=error.__name__) as caught:
            await engine.run(chat())
    shown = f"{caught.value} {engine!r}"
    assert "example.test:8000" in shown
    assert KEY not in shown
    assert "password" not in shown


@asynccontextmanager
async def hanging(models_answer: Callable[[], bool]) -> AsyncIterator[tuple[OpenAIEngine, Time]]:
    """An engine whose server answers no request, and a question for its models when told."""

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models" and models_answer():
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    clock = Time()
    upstream = Upstream("http://example.test", watchdog_s=0.05)
    engine = OpenAIEngine(upstream, transport=httpx.MockTransport(handle), clock=clock)
    await engine.start()
    watching = asyncio.create_task(engine.failed())
    try:
        yield engine, clock
    finally:
        assert not watching.done()
        watching.cancel()
        await asyncio.wait({watching})
        await engine.stop()


async def test_a_server_that_answers_nothing_at_all_hangs() -> None:
    alive = iter([True])
    async with hanging(lambda: next(alive, False)) as (engine, _):
        requests = [asyncio.create_task(engine.run(chat())) for _ in range(2)]
        outcomes = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 5)
    for outcome in outcomes:
        assert isinstance(outcome, EngineUnavailable)
        assert outcome.hangs
        assert "http://example.test hangs" in str(outcome)


async def test_a_request_that_ends_slowly_after_it_was_given_up_is_not_given_up_again() -> None:
    """Closing its connection may take its time, and the server is still asked after meanwhile."""
    closing, may_end = asyncio.Event(), asyncio.Event()

    async def handle(request: httpx.Request) -> httpx.Response:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closing.set()
            await may_end.wait()
        raise AssertionError(request)

    engine = OpenAIEngine(Upstream("http://example.test"), transport=httpx.MockTransport(handle), clock=Time())
    request = asyncio.create_task(engine.run(chat()))
    await eventually(lambda: engine._inside, what="it has been sent")
    engine._give_up_on_a_hung_server()
    await asyncio.wait_for(closing.wait(), 5)
    engine._give_up_on_a_hung_server()
    may_end.set()
    with pytest.raises(EngineUnavailable, match="hangs"):
        await request
    await engine.stop()


async def test_a_server_that_only_takes_its_time_does_not_hang() -> None:
    async with hanging(lambda: True) as (engine, clock):
        request = asyncio.create_task(engine.run(chat()))
        await eventually(lambda: clock.now_s > 100, what="100 s have passed")
        assert not request.done()
        request.cancel()
        await asyncio.wait({request})


async def test_an_idle_server_is_not_asked() -> None:
    alive = iter([True])
    async with hanging(lambda: next(alive, False)) as (_, clock):
        await eventually(lambda: clock.now_s > 100, what="100 s have passed")


async def test_a_password_in_the_url_is_sent_but_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    caplog.set_level("DEBUG")
    caplog.set_level("DEBUG", logger="httpx")  # vLLM, once imported, quietens it
    upstream = Upstream("http://user:pass%20word@example.test/v1")
    engine = OpenAIEngine(upstream, transport=httpx.MockTransport(answer))
    await engine.start()
    await engine.stop()
    assert seen[0].headers["Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
    assert "example.test" in caplog.text
    assert "pass" not in caplog.text


async def test_no_administrative_path_is_reached() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("sent")

    async with started(answer) as engine:
        reply = await engine.run(EngineRequest("r-1", "/v1/load_lora_adapter", {}, Lane.LOW))
    assert reply.status == 404


async def test_unreachable_for_long_is_failure_if_so_set() -> None:
    up = True

    def handle(_: httpx.Request) -> httpx.Response:
        if not up:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    upstream = Upstream("http://example.test", dead_after_s=30)
    engine = OpenAIEngine(upstream, transport=httpx.MockTransport(handle), clock=Time())
    await engine.start()
    failed = asyncio.create_task(engine.failed())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not failed.done()
    up = False
    with pytest.raises(EngineUnavailable):
        await engine.run(chat())
    assert "unreachable for 30 s" in await asyncio.wait_for(failed, 5)
    await engine.stop()


async def test_a_server_that_comes_back_is_not_given_up() -> None:
    up = True

    def handle(_: httpx.Request) -> httpx.Response:
        if not up:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    clock = Time()
    upstream = Upstream("http://example.test", dead_after_s=30)
    engine = OpenAIEngine(upstream, transport=httpx.MockTransport(handle), clock=clock)
    await engine.start()
    failed = asyncio.create_task(engine.failed())
    up = False
    with pytest.raises(EngineUnavailable):
        await engine.run(chat())
    up = True
    until_s = clock.now_s + 100
    await eventually(lambda: clock.now_s >= until_s, what="100 s have passed")
    assert not failed.done()
    failed.cancel()
    await asyncio.wait({failed})
    await engine.stop()


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        (httpx.Response(401), EngineError, "check the engine's API key"),
        (httpx.Response(200, json={"data": []}), EngineUnavailable, "without a list of models"),
        (httpx.Response(200, json=[1]), EngineUnavailable, "without a list of models"),
        (httpx.Response(200, content=b"<html>"), EngineUnavailable, "without a list of models"),
        (httpx.Response(503), EngineUnavailable, "503"),
    ],
)
async def test_a_server_that_is_not_ready_is_said(
    response: httpx.Response, error: type[EngineError], words: str
) -> None:
    engine = OpenAIEngine(Upstream("http://example.test"), KEY, transport=httpx.MockTransport(lambda _: response))
    with pytest.raises(error, match=words) as caught:
        await engine.start()
    assert KEY not in str(caught.value)
    await engine.stop()


@pytest.mark.parametrize("url", ["", "example.test:8000", "ftp://example.test", "http://", "http://[::1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        OpenAIEngine(Upstream(url))


@pytest.mark.parametrize("mark", ["/", "?", "#"])
def test_a_password_that_looks_like_a_port_is_not_shown(mark: str) -> None:
    with pytest.raises(ValueError, match="unescaped") as refusal:
        OpenAIEngine(Upstream(f"http://user:secretpart{mark}x@host:8000"))
    assert "secretpart" not in str(refusal.value)


async def test_of_a_stream_that_is_cut_off_only_its_chunks_are_known() -> None:
    """A chunk may hold many tokens, so the count is marked as a guess."""
    came = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"ten tokens, or more"}}]}\n\n'
        came.set()
        await asyncio.get_running_loop().create_future()

    async def handle(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=parts())

    engine = OpenAIEngine(Upstream("http://example.test"), transport=httpx.MockTransport(handle), clock=Time())
    request = EngineRequest("r1", CHAT, {"messages": []}, Lane.NORMAL, on_chunk=lambda _: None)
    running = asyncio.create_task(engine.run(request))
    async with asyncio.timeout(5):
        await came.wait()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert request.usage is not None
    assert (request.usage["completion_tokens"], request.guessed) == (1, True)
    await engine.stop()


@pytest.mark.parametrize(
    ("status", "ends", "after_s"),
    [(200, b"", 60.0), (200, b"", 0.0), (200, b'data: {"error":{"message":"oops","code":500}}\n\n', 0.0)],
    ids=["time-out", "broken off", "a 500 at its end"],
)
async def test_of_a_stream_that_fails_its_chunks_are_known(status: int, ends: bytes, after_s: float) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"ten tokens, or more"}}]}\n\n' + ends
        await asyncio.sleep(after_s)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"Content-Type": "text/event-stream"}, content=parts())

    async with started(answer, Upstream("http://example.test", timeout_s=0.2)) as engine:
        request = chat()
        request.on_chunk = lambda _: None
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(engine.run(request), 10)
    assert request.usage is not None
    assert (request.usage["completion_tokens"], request.guessed) == (1, True)


@pytest.mark.parametrize(
    ("error", "reached"),
    [
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("slow"), False),
        (httpx.ReadTimeout("slow"), True),
        (httpx.ReadError("gone"), True),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_never_reached_the_server_has_used_nothing(error: httpx.TransportError, reached: bool) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    async with started(answer) as engine:
        request = chat()
        with pytest.raises(EngineUnavailable):
            await engine.run(request)
    assert (request.usage, request.guessed) == (None if reached else NOTHING, False)


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


async def test_what_waits_for_a_connection_has_used_nothing_yet() -> None:
    async def handle(_: httpx.Request) -> httpx.Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    upstream = Upstream("http://example.test", max_concurrency=1, timeout_s=0.2)
    engine = OpenAIEngine(upstream, transport=httpx.MockTransport(handle), clock=Time())
    sent, waits = chat(), chat()
    async with asyncio.timeout(10):
        await asyncio.gather(engine.run(sent), engine.run(waits), return_exceptions=True)
    assert (sent.usage, waits.usage) == (None, NOTHING)
    await engine.stop()
