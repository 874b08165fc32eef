"""Silent streams: what breaks their silence, and when, for those that can resume and those that know only `data:`.

The loop's clock jumps to the next timer, so 25 s take no time.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.common.errors import RequestFailed
from streamfleet.common.protocol import CHAT, COMPLETIONS, Lane
from streamfleet.common.results import Result, decode_result
from streamfleet.gateway.disconnect import DisconnectWatcher
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import COMMENT, DONE, Framing
from streamfleet.gateway.open_calls import OpenCalls
from streamfleet.gateway.streaming import EventStream, Reading, open_stream
from streamfleet.producer.events import Chunk, Event, Missed, Restarted

CREATED, NOW_S = 1_700_000_000, 1_700_000_050
ID = {CHAT: "chatcmpl-r-1", COMPLETIONS: "cmpl-r-1"}
Step = tuple[float, Event | Exception]
Sent = list[tuple[float, bytes]]


class Jumping(selectors.DefaultSelector):
    """Waits for nothing: the time goes on in one step."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is left that could end this test"
        self.now_s += timeout
        return super().select(0)


def at_once(work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of work on a loop whose clock jumps."""
    selector = Jumping()

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(selector)
        made.time = lambda: selector.now_s  # type: ignore[method-assign]
        return made

    async def bounded() -> Any:
        async with asyncio.timeout(10_000):
            return await work()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


def chunk(endpoint: str, text: str, number: int = 1, **more: Any) -> Chunk:
    """A chunk as an engine makes it, whose names are its own."""
    chat = endpoint == CHAT
    says: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
    kind = "chat.completion.chunk" if chat else "text_completion"
    choices = [{"index": 0, **says, "logprobs": None, "finish_reason": None}]
    data = {"id": "engine's", "object": kind, "created": CREATED, "model": "served", "choices": choices, **more}
    return Chunk(f"1700000000000-{number}/0", data, json.dumps(data), 1)


class Scripted:
    """The tokens of a request, each so many seconds after the one before; those behind the first go straight."""

    def __init__(self, steps: Sequence[Step], *, straight: bool = False) -> None:
        self.steps, self._straight = steps, straight
        self._take: Callable[[str, list[str]], None] | None = None

    def straight(self, _ready: object, take: Callable[[str, list[str]], None]) -> None:
        self._take = take

    async def events(self) -> AsyncGenerator[list[Event], None]:
        for after_s, step in self.steps:
            await asyncio.sleep(after_s)
            if isinstance(step, Exception):
                raise step
            if self._straight and self._take is not None and isinstance(step, Chunk):
                self._take(step.id.partition("/")[0], [step.raw])
            else:
                yield [step]


def a_reading(tokens: Scripted, framing: Framing, result: Result, **more: Any) -> Reading:
    async def nobody_leaves() -> Any:
        await asyncio.Event().wait()

    async def get_result(*_: object) -> Result:
        return result

    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = SimpleNamespace(
        gateway=SimpleNamespace(
            clock=SimpleNamespace(now_ms=lambda: NOW_S * 1000), models=SimpleNamespace(default_model="usual")
        ),
        call=SimpleNamespace(midway=False, facts={}, began_s=0.0),
        watcher=lambda lane: DisconnectWatcher(nobody_leaves, stopping, OpenCalls(), lane=lane),
    )
    settings: dict[str, Any] = {"after": None, "restart_events": False, "wait_s": 600, "lane": Lane.NORMAL, **more}
    return Reading(
        context=cast("Any", context),
        client=cast(
            "Any",
            SimpleNamespace(
                reading=lambda *_, **__: tokens, result=get_result, broker=SimpleNamespace(result=get_result)
            ),
        ),
        handle=cast("Any", SimpleNamespace(id="r-1", existing=True)),
        on_left=lambda: None,
        framing=framing,
        **settings,
    )


def streamed(
    *steps: Step, framing: Framing | None = None, result: Result | None = None, straight: bool = False, **more: Any
) -> tuple[int, Sent]:
    """Status of an answer, and its parts by the seconds after which they come."""

    async def play() -> tuple[int, Sent]:
        loop, sent = asyncio.get_running_loop(), []
        began_s = loop.time()

        async def send(message: Any) -> None:
            sent.append((round(loop.time() - began_s, 1), message.get("body", b"")))

        tokens = Scripted(steps, straight=straight)
        found = await open_stream(a_reading(tokens, framing or plain(), result or a_result(status="succeeded"), **more))
        writer = SimpleNamespace(ready=lambda: True, write=lambda data: sent.append((loop.time() - began_s, data)))
        state = {"direct_writer": writer} if straight else {}
        if isinstance(found, EventStream):
            await found({"type": "http", "state": state}, cast("Any", asyncio.Event().wait), send)
        return found.status_code, [(at_s, data) for at_s, data in sent if data]

    played: tuple[int, Sent] = at_once(play)
    return played


def a_result(**fields: str) -> Result:
    found = decode_result("r-1", {name.encode(): value.encode() for name, value in fields.items()})
    assert found is not None
    return found


def plain(endpoint: str = CHAT, tier: str | None = None, model: str = "m") -> Framing:
    return Framing(False, tier, endpoint, "r-1", model)


def parsed(sent: Sent) -> list[tuple[float, Any]]:
    """Events of a reader that knows only `data:` lines; there are no other lines."""
    found = []
    for at_s, data in sent:
        for line in data.decode().splitlines():
            if line:
                assert line.startswith("data: ")
                text = line.removeprefix("data: ")
                found.append((at_s, text if text == "[DONE]" else json.loads(text)))
    return found


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["delta"].get("content", "") if "delta" in choice else choice["text"])


@pytest.mark.parametrize("straight", [False, True], ids=["by a task", "straight"])
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("tier", [None, "flex"])
def test_each_25_s_of_silence_a_chunk_says_nothing(endpoint: str, straight: bool, tier: str | None) -> None:
    """Between chunks, it has the id of the engine's, also where they come at odd times."""
    steps: list[Step] = [(2, chunk(endpoint, "a", 1)), (20, chunk(endpoint, "b", 2)), (60, chunk(endpoint, "c", 3))]
    sent = parsed(streamed(*steps, framing=plain(endpoint, tier), straight=straight)[1])
    assert [round(at_s) for at_s, _ in sent] == [2, 22, 47, 72, 82, 82]
    chunks = [data for _, data in sent[:-1]]
    assert [text_of(data["choices"][0]) for data in chunks] == ["a", "b", "", "", "c"]
    nothing: dict[str, Any] = {"delta": {}} if endpoint == CHAT else {"text": ""}
    assert chunks[2]["choices"] == [{"index": 0, **nothing, "logprobs": None, "finish_reason": None}]
    for name in ("id", "object", "created", "model", "service_tier"):
        assert len({data.get(name) for data in chunks}) == 1, name
    assert (chunks[2]["id"], chunks[2].get("service_tier")) == ("engine's", tier)


@pytest.mark.parametrize("straight", [False, True], ids=["by a task", "straight"])
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", ["m", ""])
def test_a_chunk_before_the_first_has_the_name_of_all_others(endpoint: str, straight: bool, model: str) -> None:
    """The request may still wait in its lane: nobody knows how the engine will call its answer."""
    usage = chunk(endpoint, "", 3, choices=[], usage={"total_tokens": 2})
    steps: list[Step] = [(80, chunk(endpoint, "a", 1)), (30, chunk(endpoint, "b\r", 2)), (1, usage)]
    framing = plain(endpoint, "priority", model)
    sent = parsed(streamed(*steps, framing=framing, straight=straight)[1])
    assert [round(at_s) for at_s, _ in sent] == [25, 50, 75, 80, 105, 110, 111, 111]
    chunks = [data for _, data in sent[:-1]]
    assert [text_of(data["choices"][0]) for data in chunks[:-1]] == ["", "", "", "a", "", "b\r"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], {"total_tokens": 2})
    kind = "chat.completion.chunk" if endpoint == CHAT else "text_completion"
    head = {"id": ID[endpoint], "object": kind, "created": NOW_S, "model": model or "usual", "service_tier": "priority"}
    for data in chunks:
        assert {name: data[name] for name in head} == head


def test_who_can_resume_gets_comments_and_ids() -> None:
    _, sent = streamed((30, chunk(CHAT, "a")), (30, chunk(CHAT, "b", 2)), framing=Framing(event_ids=True))
    assert [(at_s, data == COMMENT) for at_s, data in sent] == [
        (25, True),
        (30, False),
        (55, True),
        (60, False),
        (60, False),
    ]
    assert [data.split(b"\n")[0] for _, data in sent if data not in (COMMENT, DONE)] == [
        b"id: 1700000000000-1/0",
        b"id: 1700000000000-2/0",
    ]


def test_whoever_asked_for_the_headers_at_once_waits_as_long_for_the_first_chunk() -> None:
    assert [round(at_s) for at_s, _ in streamed((60, chunk(CHAT, "a")), at_once=True)[1]] == [25, 50, 60, 60]


def failed(status: int) -> dict[str, Any]:
    error = {"message": "x: no", "type": "invalid_request_error", "param": "x", "code": "bad"}
    return {"result": a_result(status="failed", http_status=str(status), error=json.dumps(error))}


FAILS = RequestFailed("r-1", "failed", {"message": "no"})


def test_what_fails_within_25_s_keeps_its_status() -> None:
    with pytest.raises(ApiError) as caught:
        streamed((24.9, FAILS), **failed(422))
    assert (caught.value.status, caught.value.param) == (422, "x")


def test_what_fails_later_is_an_event_that_data_readers_see() -> None:
    status, sent = streamed((25.1, FAILS), **failed(422))
    (_, silence), (_, error) = parsed(sent)
    assert (status, silence["choices"][0]["delta"]) == (200, {})
    assert error == {"error": {"message": "x: no", "type": "invalid_request_error", "param": "x", "code": "bad"}}


def test_a_stream_that_is_not_answered_ends_at_its_time() -> None:
    _, sent = streamed((900, chunk(CHAT, "a")), wait_s=60)
    assert [round(at_s) for at_s, _ in sent] == [25, 50, 75, 85]
    assert parsed(sent)[-1][1]["error"]["code"] == "deadline_exceeded"


def test_a_run_that_begins_anew_before_its_first_chunk_is_none_to_its_reader() -> None:
    """A chunk that says nothing is no part of an answer."""
    _, sent = streamed((30, Restarted(2)), (1, chunk(CHAT, "a")))
    assert [text_of(data["choices"][0]) for _, data in parsed(sent)[:-1]] == ["", "a"]


def test_a_whole_answer_has_the_name_of_the_chunks_before_it() -> None:
    response = {"id": "engine's", "object": "chat.completion", "created": CREATED, "model": "served"}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"}]
    result = a_result(status="succeeded", response=json.dumps(response | {"choices": choices}))
    found = parsed(streamed((60, Restarted(2)), result=result)[1])
    assert len({data["id"] for _, data in found[:-1]}) == 1
    assert text_of(found[-2][1]["choices"][0]) == "all"


READS: dict[str, Any] = {"lane": None, "framing": Framing(event_ids=True)}


def test_an_ended_stream_of_which_nothing_is_left_is_204() -> None:
    assert streamed(after="1700000000000-1/0", **READS) == (204, [])


def test_what_is_left_of_an_ended_stream_comes() -> None:
    status, sent = streamed((0, chunk(CHAT, "b", 2)), after="1700000000000-1/0", **READS)
    assert (status, sent[-1][1]) == (200, DONE)
    assert len(sent) == 2


def test_a_request_that_is_sent_again_gets_its_end_again() -> None:
    """Readers that send it themselves do not reconnect, and wait for [DONE]."""
    framing = Framing(event_ids=True)
    assert streamed(after="1700000000000-1/0", framing=framing) == (200, [(0, DONE)])


@pytest.mark.parametrize(
    ("step", "status", "after"),
    [
        (FAILS, 422, None),
        (FAILS, 422, "1-0/0"),
        (Restarted(2), 503, "1-0/0"),
        (Missed(3, 1), 503, None),
        (Missed(3, 1), 503, "1-0/0"),
    ],
    ids=str,
)
def test_an_error_with_nothing_before_it_has_its_status(step: Any, status: int, after: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        streamed((0, step), after=after, **READS, **failed(422))
    assert caught.value.status == status


@pytest.mark.parametrize("more", [{}, READS], ids=["sent again", "read again"])
def test_chunks_that_are_gone_are_an_error_or_the_whole_answer_and_no_stream_of_an_error(more: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="503"):
        streamed((0, Missed(3, 1)), **more, **failed(422))
    result = a_result(status="succeeded", response=json.dumps({"object": "chat.completion", "choices": []}))
    ((_, whole), (_, end)) = streamed((0, Missed(3, 1)), (0, chunk(CHAT, "b")), result=result, **more)[1]
    assert (b'"choices":[]' in whole, end) == (True, DONE)


def test_a_whole_answer_has_an_id_to_come_back_behind() -> None:
    result = a_result(status="succeeded", response=json.dumps({"object": "chat.completion", "choices": []}))
    _, sent = streamed(result=result, **READS)
    assert sent[0][1].startswith(b"id: 0-0/0\ndata: ")
