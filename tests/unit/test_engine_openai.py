"""The openai engine reads a server's answers: the network is replaced, all else is real."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamfleet.common.broker.types import Lease
from streamfleet.common.logs import bind_log_context, log_context
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.common.settings import EngineSettings, load
from streamfleet.worker.engine import openai
from streamfleet.worker.engine.base import (
    EngineAborted,
    EngineError,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
)
from streamfleet.worker.engine.factory import build
from streamfleet.worker.engine.openai import LIMITED_S, OpenAIEngine, Upstream
from streamfleet.worker.engine.presence import MOST_REMEMBERED
from streamfleet.worker.engine.server_limit import FIRST_PAUSE_S
from tests.clocks import HandClock
from tests.waiting import eventually

KEY = "sk-very-secret"
EVENTS = {"Content-Type": "text/event-stream"}
Answer = Callable[[httpx.Request], httpx.Response]
Waiting = Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
Fault = Exception | httpx.Response | Answer | Waiting


@asynccontextmanager
async def started(answer: Answer | Waiting, upstream: Upstream | None = None) -> AsyncIterator[OpenAIEngine]:
    def handle(request: httpx.Request) -> Any:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "first", "max_model_len": 4096}, {"id": "second"}]})
        return answer(request)

    engine = OpenAIEngine(
        upstream or Upstream("http://user:password@example.test:8000/v1/"),
        lambda: KEY,
        transport=httpx.MockTransport(handle),
        clock=HandClock(1_699_999_900_000),
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
        await eventually(lambda: not engine.unready, what="it is seen to be there")
        assert (await engine.run(chat())).status == 200
        await eventually(lambda: old.is_closed)


async def test_a_probe_that_got_no_answer_leaves_its_place_to_a_new_connection() -> None:
    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    engine = OpenAIEngine(Upstream("http://example.test:8000"), transport=httpx.MockTransport(lost), clock=HandClock())
    before = engine._prober
    assert await engine._asked() is None
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


@pytest.mark.parametrize("status", [401, 403, 408, 500, 529])
async def test_what_may_pass_is_to_be_tried_again(status: int) -> None:
    said = {"error": {"message": "come back later"}}
    async with started(lambda _: httpx.Response(status, json=said)) as engine:
        with pytest.raises(EngineUnavailable, match=f"answers {status}$") as caught:
            await engine.run(chat())
    assert caught.value.said == "come back later"
    assert caught.value.retry_after_ms is None
    assert caught.value.counted


@pytest.mark.parametrize(
    ("headers", "expected_ms"),
    [
        ({"Retry-After": "7"}, 7_000),
        ({"Retry-After": "7", "Retry-After-Ms": "250"}, 250),
        ({"Retry-After": "7", "Retry-After-Ms": "soon"}, 7_000),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:25 GMT"}, 5_000),
        ({"Retry-After": "Tue, 14 Nov 2000 22:13:25 GMT"}, 0),
        ({"Retry-After": "999999999"}, 30_000),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "-1"}, 0),
        ({"Retry-After": "²"}, 0),
    ],
)
async def test_retry_after_is_heard(headers: dict[str, str], expected_ms: int) -> None:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    async with started(lambda _: httpx.Response(429, headers=given)) as engine:
        with pytest.raises(EngineUnavailable) as caught:
            await engine.run(chat())
    assert caught.value.retry_after_ms == expected_ms


@pytest.mark.parametrize(
    ("status", "headers", "busy"),
    [
        (429, {}, True),
        (429, {"Retry-After": "7"}, True),
        (503, {"Retry-After": "7"}, True),
        (529, {}, True),
        (530, {}, False),
        (503, {}, False),
        (500, {"Retry-After": "7"}, False),
        (502, {}, False),
    ],
)
async def test_a_server_that_takes_no_more_for_now_is_busy(status: int, headers: dict[str, str], busy: bool) -> None:
    said = {"error": {"message": "come back later"}}
    upstream = Upstream("http://example.test", 10, busy_statuses=frozenset({529}))
    async with started(lambda _: httpx.Response(status, headers=headers, json=said), upstream) as engine:
        with pytest.raises(EngineUnavailable, match=f"answers {status}$") as caught:
            await engine.run(chat())
        assert (caught.value.busy, caught.value.said) == (busy, "come back later")
        assert (engine.capacity().slots, engine.limited) == ((7, True) if busy else (10, False))
        if busy:
            assert (caught.value.counted, engine.unready, engine.allowance) == (False, "", None)


async def test_a_server_that_refuses_the_only_request_is_left_alone_for_a_while() -> None:
    upstream = Upstream("http://example.test", 1)
    async with started(lambda _: httpx.Response(429), upstream) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.run(chat())
        assert (engine.allowance, engine.unready) == (0, "")
        await engine._clock.sleep(FIRST_PAUSE_S)
        assert engine.allowance is None


async def test_no_more_is_sent_than_a_busy_server_takes_and_nothing_that_runs_is_aborted() -> None:
    inside: list[asyncio.Future[httpx.Response]] = []
    refused: list[httpx.Request] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        if len(inside) >= 4:
            refused.append(request)
            await eventually(lambda: len(refused) == 2, what="both are inside")
            return httpx.Response(429)
        inside.append(asyncio.get_running_loop().create_future())
        return await inside[-1]

    async with started(answer, Upstream("http://example.test", 6)) as engine:
        runs = [asyncio.create_task(engine.run(chat())) for _ in range(9)]
        await eventually(lambda: sum(run.done() for run in runs) == 2, what="two of the first six are refused")
        assert engine.capacity().slots == 4
        for answered in range(1, 8):
            await eventually(lambda: inside, what="one is inside")
            inside.pop().set_result(httpx.Response(200, json={}))
            await eventually(lambda done=answered + 2: sum(run.done() for run in runs) == done)  # type: ignore[misc]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
    assert sum(isinstance(outcome, EngineReply) for outcome in outcomes) == 7


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


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>" + b"x" * 500),
        (200, b"[]"),
        (200, b'{"choices": [], "score": NaN}'),
        (200, b'{"choices": [], "score": -Infinity}'),
        (200, '{"choices": ["ö"]}'.encode("latin-1")),
        (200, '{"choices": []}'.encode("utf-16")),
        (302, b"moved"),
    ],
    ids=["html", "list", "nan", "infinity", "latin-1", "utf-16", "redirect"],
)
async def test_what_is_no_answer_of_openai_is_a_fault_of_the_engine(status: int, body: bytes) -> None:
    headers = {"Content-Type": "text/odd"}
    async with started(lambda _: httpx.Response(status, content=body, headers=headers)) as engine:
        with pytest.raises(EngineUnavailable, match="text/odd$" if status == 200 else "redirects to$") as caught:
            await engine.run(chat())
    assert caught.value.counted
    assert caught.value.said == body[:200].decode(errors="replace")


async def test_a_stream_without_an_end_is_told_from_a_whole_one() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        end = b"" if request.headers["X-Request-Id"] == "cut" else b', "finish_reason": "stop"'
        text = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}' + end + b"}]}\n\ndata: [DONE]\n\n"
        return httpx.Response(200, headers=EVENTS, content=text)

    async with started(answer) as engine:
        for name in ("whole", "cut"):
            asked = EngineRequest(name, CHAT, {"messages": []}, Lane.NORMAL, on_chunk=lambda _: None)
            if name == "whole":
                assert (await engine.run(asked)).status == 200
            else:
                with pytest.raises(EngineUnavailable, match="broke off") as caught:
                    await engine.run(asked)
                assert (caught.value.code, caught.value.counted) == ("upstream_incomplete", True)


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@pytest.mark.parametrize(
    ("error", "used"),
    [
        (httpx.ConnectError, NOTHING),
        (httpx.ConnectTimeout, NOTHING),
        (httpx.ReadTimeout, None),
        (httpx.ReadError, None),
        (httpx.RemoteProtocolError, None),
    ],
)
async def test_a_broken_connection_is_to_be_tried_again(
    error: type[httpx.TransportError], used: dict[str, int] | None
) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error("broken")

    async with started(answer) as engine:
        with pytest.raises(EngineUnavailable, match=error.__name__) as caught:
            await engine.run(request := chat())
    assert (request.usage, request.guessed) == (used, False)
    shown = f"{caught.value} {engine!r}"
    assert "example.test:8000" in shown
    assert KEY not in shown
    assert "password" not in shown


@asynccontextmanager
async def hanging(models_answer: Callable[[], bool]) -> AsyncIterator[tuple[OpenAIEngine, HandClock]]:
    """An engine whose server answers no request, and a question for its models when told."""

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models" and models_answer():
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    clock = HandClock()
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

    async with started(handle) as engine:
        request = asyncio.create_task(engine.run(chat()))
        await eventually(lambda: engine._inside, what="it has been sent")
        engine._give_up_on_a_hung_server()
        await asyncio.wait_for(closing.wait(), 5)
        engine._give_up_on_a_hung_server()
        may_end.set()
        with pytest.raises(EngineUnavailable, match="hangs"):
            await request


async def test_a_server_that_only_takes_its_time_does_not_hang() -> None:
    async with hanging(lambda: True) as (engine, clock):
        request = asyncio.create_task(engine.run(chat()))
        await eventually(lambda: clock.seconds > 200, what="100 s have passed")
        assert not request.done()
        request.cancel()
        await asyncio.wait({request})


async def test_an_idle_server_is_not_asked() -> None:
    alive = iter([True])
    async with hanging(lambda: next(alive, False)) as (_, clock):
        await eventually(lambda: clock.seconds > 200, what="100 s have passed")


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


def there() -> httpx.Response:
    """The answer to a question for models, and to a chat."""
    return httpx.Response(200, json={"data": [{"id": "m"}], "choices": []})


class Coming:
    """An engine whose server fails in a way that a test sets, and comes back when told."""

    def __init__(self, slots: int) -> None:
        self.fault: Fault | None = None
        self.models_fault: Fault | None = None
        self.asked: Counter[str] = Counter()
        self.clock = HandClock()
        transport = httpx.MockTransport(self._handle)
        self.engine = OpenAIEngine(Upstream("http://example.test", slots), transport=transport, clock=self.clock)

    def _handle(self, request: httpx.Request) -> Any:
        self.asked[request.url.path] += 1
        fault = self.models_fault if request.url.path == "/v1/models" else self.fault
        if isinstance(fault, Exception):
            raise fault
        return (fault(request) if callable(fault) else fault) or there()

    async def counted(self, request_id: str) -> bool | None:
        """True if a run counts as an attempt, False if it goes back uncounted; None if it was answered."""
        try:
            await self.engine.run(EngineRequest(request_id, CHAT, {"messages": []}, Lane.HIGH))
        except EngineUnavailable as error:
            return error.counted
        finally:
            await eventually(lambda: self.models_fault or not self.engine.unready, what="it is seen to be there")
        return None


@asynccontextmanager
async def coming(slots: int = 8) -> AsyncIterator[Coming]:
    made = Coming(slots)
    await made.engine.start()
    yield made
    await made.engine.stop()


GONE = httpx.ConnectError("refused")
RESET = httpx.ReadError("reset")


async def test_while_a_server_is_away_only_a_question_reaches_it() -> None:
    async with coming() as made:
        made.fault = made.models_fault = GONE
        assert await made.counted("r-1") is False
        assert (made.engine.allowance, "ConnectError" in made.engine.unready) == (0, True)
        sent = made.asked[CHAT]
        for _ in range(5):
            assert await made.counted("r-1") is False
        assert made.asked[CHAT] == sent
        began_s, asked = made.clock.seconds, made.asked["/v1/models"]
        await eventually(lambda: made.clock.seconds > began_s + 60, what="it was away for a minute")
        seconds = made.clock.seconds - began_s
        assert 1.3 <= (made.asked["/v1/models"] - asked) / seconds <= 2.75
        made.fault = made.models_fault = None
        back_s = made.clock.seconds
        await eventually(lambda: not made.engine.unready, what="it is back")
        assert made.clock.seconds - back_s < 1.5
        assert (made.engine.capacity().slots, made.engine._free.qsize()) == (1, 1)  # slow start
        assert await made.counted("r-1") is None
        assert made.engine.capacity().slots == 2


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_front_end_whose_server_is_away_is_waited_for(status: int) -> None:
    async with coming() as made:
        made.fault = made.models_fault = httpx.Response(status)
        assert await made.counted("r-1") is False
        began_s = made.clock.seconds
        await eventually(lambda: made.clock.seconds > began_s + 60, what="it was away for a minute")
        assert f"answers {status}" in made.engine.unready


@pytest.mark.parametrize("fault", [RESET, httpx.Response(502)], ids=["reset", "502"])
async def test_a_request_that_was_sent_goes_back_uncounted_once(fault: Exception | httpx.Response) -> None:
    """The server is there for others each time."""
    async with coming() as made:
        made.fault = fault
        assert [await made.counted("r-1") for _ in range(3)] == [False, True, True]
        assert await made.counted("r-2") is False
        made.fault = None
        assert await made.counted("r-1") is None
        made.fault = fault
        assert await made.counted("r-1") is False  # anew, as for any other


async def test_a_request_that_was_never_sent_is_never_counted() -> None:
    async with coming() as made:
        for fault in (GONE, httpx.ConnectTimeout("slow")):
            made.fault = fault
            assert [await made.counted("r-1") for _ in range(3)] == [False] * 3


@pytest.mark.parametrize("status", [503, 504])
async def test_what_a_server_says_to_one_request_alone_counts_from_the_second_time(status: int) -> None:
    """So ends a generation that takes longer than a proxy waits."""
    async with coming() as made:
        made.fault = httpx.Response(status)
        assert [await made.counted("r-1") for _ in range(3)] == [False, True, True]


async def test_a_503_counts_where_others_are_answered() -> None:
    async with coming() as made:
        for _ in range(3):  # it was away each time
            made.fault = made.models_fault = httpx.Response(503)
            asked = made.asked["/v1/models"]
            assert await made.counted("r-1") is False
            await eventually(lambda: made.asked["/v1/models"] > asked, what="the first question is refused")  # noqa: B023
            made.models_fault = None
            await eventually(lambda: not made.engine.unready, what="it is back")
        made.fault = None
        assert await made.counted("r-2") is None
        made.fault = httpx.Response(503)
        assert await made.counted("r-1") is True


async def test_one_reset_does_not_slow_down_a_server_that_is_there() -> None:
    async with coming() as made:
        made.fault = RESET
        await made.counted("r-1")
        assert (made.engine.capacity().slots, made.clock.seconds) == (8, 100.0)
        await made.counted("r-1")  # the next one without any answer in between does
        assert made.engine.capacity().slots == 1


@pytest.mark.parametrize(("resets", "slots"), [(3, 1), (2, 8)])
async def test_resets_of_all_that_runs_begin_anew_with_one_request(resets: int, slots: int) -> None:
    """One of them may have killed the server; where another one still runs, none has."""
    reset, answered = asyncio.Event(), asyncio.Event()
    async with coming() as made:

        async def answer(_: httpx.Request) -> httpx.Response:
            if made.asked[CHAT] <= resets:
                await reset.wait()
                raise RESET
            await answered.wait()
            return there()

        made.fault = answer
        runs = [asyncio.create_task(made.engine.run(chat())) for _ in range(3)]
        await eventually(lambda: made.asked[CHAT] == 3, what="all are inside")
        reset.set()
        await asyncio.wait(runs[:resets])
        await eventually(lambda: not made.engine.unready, what="it is seen to be there")
        assert (made.engine.capacity().slots, made.asked["/v1/models"]) == (slots, 1 + 1)
        answered.set()
        await asyncio.wait(runs)


async def test_after_an_absence_it_begins_anew_though_a_request_still_runs() -> None:
    """Its connection may be one of the server before."""
    ends = asyncio.Event()
    async with coming() as made:

        async def answer(_: httpx.Request) -> httpx.Response:
            if made.asked[CHAT] > 1:
                raise RESET
            await ends.wait()
            return there()

        made.fault = answer
        made.models_fault = lambda _: httpx.Response(503) if made.asked["/v1/models"] == 2 else there()
        running = asyncio.create_task(made.engine.run(chat()))
        await eventually(lambda: made.asked[CHAT] == 1, what="one runs")
        with pytest.raises(EngineUnavailable):
            await made.engine.run(chat())
        await eventually(lambda: not made.engine.unready, what="it is back")
        assert made.engine.capacity().slots == 1
        ends.set()
        await running


async def test_the_log_of_questions_names_no_request() -> None:
    logged_as: list[Lease | None] = []

    def answer(_: httpx.Request) -> httpx.Response:
        logged_as.append(log_context())
        return there()

    async with coming() as made:
        made.fault, made.models_fault = RESET, answer
        bind_log_context(Lease(Lane.HIGH, "1-0", 1, "r-1"))
        await made.counted("r-1")
        await eventually(lambda: logged_as)
    assert logged_as == [None]


async def test_an_answer_of_what_ran_before_ends_no_absence() -> None:
    async with coming() as made:
        made.fault = made.models_fault = GONE
        await made.counted("r-1")
        made.engine._presence.answered("r-2")
        assert (made.engine.allowance, bool(made.engine.unready)) == (0, True)


async def test_after_an_answer_the_next_fault_is_the_first_again() -> None:
    async with coming() as made:
        made.fault = RESET
        for _ in range(3):
            await made.counted("r-1")
        made.fault = None
        await made.counted("r-1")
        made.fault, before_s = RESET, made.clock.seconds
        await made.counted("r-1")
        assert made.clock.seconds == before_s


async def test_only_so_many_suspects_are_remembered() -> None:
    async with coming() as made:
        for number in range(MOST_REMEMBERED + 10):
            made.engine._presence.counts(f"r-{number}", told=False)
        assert len(made.engine.suspects) == MOST_REMEMBERED
        assert f"r-{MOST_REMEMBERED + 9}" in made.engine.suspects


@pytest.mark.parametrize(("status", "after_ms"), [(502, None), (503, 1_000), (504, 1_000)])
async def test_after_a_503_another_request_tries(status: int, after_ms: int | None) -> None:
    async with started(lambda _: httpx.Response(status)) as engine:
        with pytest.raises(EngineUnavailable) as caught:
            await engine.run(chat())
    assert (caught.value.counted, caught.value.retry_after_ms) == (False, after_ms)


async def test_a_request_whose_time_is_over_is_not_told_to_go_back() -> None:
    async with coming(1) as made:
        holding, made.models_fault = made.engine._free.get_nowait(), GONE
        waits = asyncio.create_task(made.engine.run(chat()))
        await eventually(lambda: made.engine._unsent, what="it waits")
        (scope,) = made.engine._unsent
        scope.reschedule(0)  # the longest wait for an answer is over
        await asyncio.sleep(0)
        assert scope.expired()
        made.engine._hold_off("gone")
        with pytest.raises(EngineUnavailable, match="gone"):
            await waits
        made.engine._parked.append(holding)


async def test_an_engine_that_stops_asks_no_more() -> None:
    async with coming() as made:
        made.fault = made.models_fault = GONE
        await made.counted("r-1")
        asking = made.engine._presence._asking
    assert asking is not None
    assert asking.cancelled()


async def test_while_the_server_wants_a_wait_no_more_is_sent() -> None:
    async with coming(2) as made:
        made.fault = httpx.Response(429, headers={"Retry-After": "7"})
        assert await made.counted("r-1") is False
        made.fault = None
        await made.counted("r-2")
        assert made.engine.capacity().slots == 1
        await made.clock.sleep(7)
        await made.counted("r-2")
        assert made.engine.capacity().slots == 2


async def test_an_idle_worker_is_not_limited_for_ever() -> None:
    async with coming(10) as made:
        made.fault = httpx.Response(429, headers={"Retry-After": "7"})
        await made.counted("r-1")
        await made.clock.sleep(7 + LIMITED_S - 1)
        assert made.engine.limited
        await made.clock.sleep(1)
        assert (made.engine.limited, made.engine.capacity().slots) == (False, 7)
        made.engine._limit.sent()
        assert made.engine.limited
        made.engine._limit.ended()


async def test_requests_that_wait_for_a_connection_go_back_when_the_server_goes_away() -> None:
    """All that run are reset at once; what comes after them would wait for a connection for ever."""
    reset = asyncio.Event()
    async with coming(4) as made:

        async def answer(_: httpx.Request) -> httpx.Response:
            await (reset if made.asked[CHAT] <= 4 else asyncio.Event()).wait()
            made.models_fault = RESET
            raise RESET

        made.fault = answer
        runs = [asyncio.create_task(made.engine.run(EngineRequest(f"r-{n}", CHAT, {}, Lane.HIGH))) for n in range(6)]
        await eventually(lambda: (len(made.engine._unsent), made.asked[CHAT]) == (2, 4), what="two wait")
        reset.set()
        outcomes = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), 5)
        assert [(type(each), getattr(each, "counted", None)) for each in outcomes] == [(EngineUnavailable, False)] * 6
        assert made.asked[CHAT] == 4


async def test_without_quota_one_request_a_minute_tries() -> None:
    async with coming() as made:
        made.fault = httpx.Response(429, json={"error": {"message": "pay", "code": "insufficient_quota"}})
        for _ in range(2):
            began_s = made.clock.seconds
            with pytest.raises(EngineUnavailable) as caught:
                await made.engine.run(chat())
            assert (caught.value.counted, caught.value.busy, made.engine.allowance) == (False, False, 0)
            await eventually(lambda: made.engine.allowance == 1, what="one may try")
            assert 29 < made.clock.seconds - began_s < 61
            assert "insufficient_quota" in made.engine.unready
        made.fault = None
        await made.engine.run(chat())
        assert (made.engine.allowance, made.engine.unready) == (None, "")


async def test_a_request_that_alone_is_too_large_is_answered_so_and_slows_down_nobody() -> None:
    """OpenAI says 429 of it each time: it exceeds the tokens a minute by itself."""
    async with coming() as made:
        said = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 37313."
        made.fault = httpx.Response(429, json={"error": {"message": said, "code": "rate_limit_exceeded"}})
        reply = await made.engine.run(chat())
        assert (reply.status, said in reply.body.decode()) == (429, True)
        assert (made.engine.capacity().slots, made.engine.limited) == (8, False)


def of_file(
    file: Path, handle: Answer | Waiting, monkeypatch: pytest.MonkeyPatch, url: str = "http://a.test"
) -> OpenAIEngine:
    """The engine that the settings make, with the key in a file, and a replaced network."""
    monkeypatch.setenv("STREAMFLEET_VLLM_API_KEY_FILE", str(file))
    monkeypatch.setattr(
        openai, "OpenAIEngine", partial(OpenAIEngine, transport=httpx.MockTransport(handle), clock=HandClock())
    )
    engine = build(load(EngineSettings, vllm_url=url))
    assert isinstance(engine, OpenAIEngine)
    return engine


async def test_a_key_that_the_server_takes_no_more_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = "one"

    def handle(request: httpx.Request) -> httpx.Response:
        if request.headers["Authorization"] != f"Bearer {taken}" and request.url.path != "/v1/models":
            return httpx.Response(401)
        return httpx.Response(200, json={"data": [{"id": "m"}], "choices": []})

    (file := tmp_path / "key").write_text("never taken")
    engine = of_file(file, handle, monkeypatch)
    await engine.start()
    with pytest.raises(EngineUnavailable) as caught:
        await engine.run(chat())
    assert (caught.value.counted, engine.allowance) == (True, None)
    file.write_text(taken)
    await engine.run(chat())
    taken = "two"
    for _ in range(2):
        with pytest.raises(EngineUnavailable) as caught:
            await engine.run(chat())
        assert (caught.value.counted, caught.value.busy, engine.allowance) == (False, False, 0)
        await eventually(lambda: engine.allowance == 1, what="one may try")
        assert "the file of the API key" in engine.unready
    file.write_text(taken)
    await engine.run(chat())
    assert (engine.allowance, engine.unready) == (None, "")
    await engine.stop()


async def test_a_key_that_is_refused_for_one_request_alone_counts_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may answer 401 of a model that the key must not use: the others go on, and this request ends."""
    running = asyncio.Event()

    async def handle(request: httpx.Request) -> httpx.Response:
        if b"forbidden" in request.content:
            return httpx.Response(401)
        if b"long" in request.content:
            await running.wait()
        return httpx.Response(200, json={"data": [{"id": "m"}], "choices": []})

    (file := tmp_path / "key").write_text(KEY)
    engine = of_file(file, handle, monkeypatch)
    await engine.start()
    await engine.run(chat())
    begun = asyncio.create_task(engine.run(chat(model="long")))
    await asyncio.sleep(0)
    found = []
    for _ in range(3):
        with pytest.raises(EngineUnavailable) as caught:
            await engine.run(chat(model="forbidden"))
        found.append((caught.value.counted, caught.value.retry_after_ms, engine.allowance))
        await eventually(lambda: engine.allowance != 0, what="one may try")
        if len(found) == 1:
            running.set()
            await begun  # it was sent before, and says nothing of the key
        else:
            await engine.run(chat())
    assert found == [(False, None, 0), (False, openai.OTHERS_FIRST_MS, 0), (True, None, None)]
    await engine.stop()


@pytest.mark.parametrize(
    ("url", "before"), [("http://a.test", None), ("http://user:word@a.test", "Basic dXNlcjp3b3Jk")]
)
async def test_a_file_that_is_empty_at_the_start_has_a_key_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, before: str | None
) -> None:
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(200, json={"data": [{"id": "m"}], "choices": []})

    (file := tmp_path / "key").touch()
    engine = of_file(file, handle, monkeypatch, url)
    await engine.start()
    file.write_text(KEY)
    await engine.run(chat())
    await engine.stop()
    assert seen == [before, f"Bearer {KEY}"]


async def test_a_key_that_cannot_change_is_not_waited_for() -> None:
    async with coming() as made:
        await made.engine.run(chat())
        made.fault = httpx.Response(401)
        assert (await made.counted("r-1"), made.engine.allowance) == (True, None)


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
    transport = httpx.MockTransport(lambda _: response)
    engine = OpenAIEngine(Upstream("http://example.test"), lambda: KEY, transport=transport)
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

    async with started(lambda _: httpx.Response(200, headers=EVENTS, content=parts())) as engine:
        request = chat()
        request.on_chunk = lambda _: None
        running = asyncio.create_task(engine.run(request))
        async with asyncio.timeout(5):
            await came.wait()
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
    assert request.usage is not None
    assert (request.usage["completion_tokens"], request.guessed) == (1, True)


@pytest.mark.parametrize(
    ("ends", "after_s"),
    [(b"", 60.0), (b"", 0.0), (b'data: {"error":{"message":"oops","code":500}}\n\n', 0.0)],
    ids=["time-out", "broken off", "a 500 at its end"],
)
async def test_of_a_stream_that_fails_its_chunks_are_known(ends: bytes, after_s: float) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"ten tokens, or more"}}]}\n\n' + ends
        await asyncio.sleep(after_s)

    upstream = Upstream("http://example.test", timeout_s=0.2)
    async with started(lambda _: httpx.Response(200, headers=EVENTS, content=parts()), upstream) as engine:
        request = chat()
        request.on_chunk = lambda _: None
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(engine.run(request), 10)
    assert request.usage is not None
    assert (request.usage["completion_tokens"], request.guessed) == (1, True)


@pytest.mark.parametrize(("said", "code"), [("hi", "upstream_incomplete"), ("", "engine_error")])
async def test_a_stream_whose_connection_breaks_after_a_token_is_incomplete(said: str, code: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % said.encode()
        raise RESET

    async with started(lambda _: httpx.Response(200, headers=EVENTS, content=parts())) as engine:
        for counted in (False, True):
            request = chat()
            request.on_chunk = lambda _: None
            with pytest.raises(EngineUnavailable) as caught:
                await engine.run(request)
            assert (caught.value.code, caught.value.counted) == (code, counted)
            await eventually(lambda: not engine.unready, what="it is seen to be there")


async def test_what_waits_for_a_connection_has_used_nothing_yet() -> None:
    waited = asyncio.Event()

    async def handle(_: httpx.Request) -> httpx.Response:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await waited.wait()  # the connection is not free before
        raise AssertionError

    sent, waits = chat(), chat()
    async with started(handle, Upstream("http://example.test", max_concurrency=1, timeout_s=0.2)) as engine:

        async def wait() -> EngineReply:
            try:
                return await engine.run(waits)
            finally:
                waited.set()

        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(engine.run(sent), wait(), return_exceptions=True)
    assert (sent.usage, waits.usage) == (None, NOTHING)
    assert [getattr(each, "counted", None) for each in outcomes] == [True, False]
