"""A streamed answer on its way through: what readers get, and what becomes of the whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.protocol import CHAT, EMBEDDINGS, RESPONSES, Lane
from streamfleet.worker.engine import sse_parser as module
from streamfleet.worker.engine.base import EngineRequest, Text
from streamfleet.worker.engine.sse_parser import SseParser, streamed_body


class Reader:
    """Collects chunks."""

    def __init__(self, *, tells_usage: bool = False) -> None:
        self.chunks: list[bytes] = []
        self.now = 0.0
        request = EngineRequest("r-1", CHAT, {}, Lane.HIGH, on_chunk=self._take, tells_usage=tells_usage)
        self.parser = SseParser(request, self._clock)

    def _take(self, chunk: bytes | Text) -> None:
        self.chunks.append(bytes(chunk))

    def _clock(self) -> float:
        return self.now

    def told(self) -> list[Any]:
        return [json.loads(chunk) for chunk in self.chunks]


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    says = {} if text is None else {"content": text}
    return {"id": "x", "choices": [{"index": 0, "delta": {**says, **more}, "finish_reason": finish}]}


def wire(*events: Any, done: bool = True) -> bytes:
    lines = [json.dumps(event).encode() for event in events] + ([b"[DONE]"] if done else [])
    return b"".join(b"data: " + line + b"\n\n" for line in lines)


USAGE = {"id": "x", "choices": [], "usage": {"completion_tokens": 2}}
ANSWER = (delta("", role="assistant"), delta("Hel"), delta("lo"), delta(finish="stop"), USAGE)


@given(st.lists(st.integers(0, len(wire(*ANSWER))), max_size=6))
def test_bytes_may_be_cut_anywhere(cuts: list[int]) -> None:
    reader, whole = Reader(), wire(*ANSWER)
    edges = [0, *sorted(cuts), len(whole)]
    for start, end in pairwise(edges):
        reader.parser.feed(whole[start:end])
    assert reader.told() == list(ANSWER[:4])
    status, body = reader.parser.outcome() or (0, b"")
    answer = json.loads(body)
    assert (status, answer["choices"][0]["message"]["content"], answer["usage"]) == (200, "Hello", USAGE["usage"])


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_comments_other_fields_and_line_ends_are_understood(line_end: bytes) -> None:
    reader = Reader()
    lines = [
        b": hello",
        b"event: x",
        b"data:" + json.dumps(delta("hi", "stop")).encode(),
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    reader.parser.feed(line_end.join(lines))
    assert reader.told() == [delta("hi", "stop")]
    assert reader.parser.outcome() is not None


@pytest.mark.parametrize("end", ["\r", "\x85", "\u2028", "\u2029"])
def test_a_chunk_is_one_line_for_every_reader(end: str) -> None:
    """A server may write all of them into JSON as they are, `\\r` between tokens alone."""
    reader, text = Reader(), "" if end == "\r" else f"ü{end}ü{end}"
    event = json.dumps(delta(text, "stop"), ensure_ascii=False).replace("{", "{" + end if end == "\r" else "{")
    reader.parser.feed(f"data: {event}\n\ndata: [DONE]\n\n".encode())
    (chunk,) = (chunk.decode() for chunk in reader.chunks)
    assert chunk.splitlines() == [chunk]
    assert json.loads(chunk) == delta(text, "stop")
    _, body = reader.parser.outcome() or (0, b"")
    assert json.loads(body)["choices"][0]["message"]["content"] == text


def test_an_event_of_several_lines_is_one_chunk_on_one_line() -> None:
    reader = Reader()
    reader.parser.feed(b'data: {"choices":\ndata: [{"index": 0, "text": "hi"}]}\n\n')
    assert reader.told() == [{"choices": [{"index": 0, "text": "hi"}]}]
    assert b"\n" not in reader.chunks[0]


def test_the_chunk_that_counts_tokens_is_for_those_who_ask() -> None:
    reader = Reader(tells_usage=True)
    reader.parser.feed(wire(*ANSWER))
    assert reader.told()[-1] == USAGE


def test_the_first_token_is_the_first_that_says_something() -> None:
    reader = Reader()
    for event in ANSWER[:2]:
        assert reader.parser.first_at is None
        reader.now += 1.0
        reader.parser.feed(wire(event, done=False))
    assert reader.parser.first_at == 2.0


def test_what_breaks_off_is_no_answer() -> None:
    reader = Reader()
    reader.parser.feed(wire(*ANSWER[:3], done=False))
    assert reader.told() == list(ANSWER[:3])
    assert reader.parser.outcome() is None
    reader = Reader()
    reader.parser.feed(wire(*ANSWER, done=False))  # another choice may have been to come
    assert reader.parser.outcome() is None


@pytest.mark.parametrize("odd", [b"data: {oops\n\n", b"data: 7\n\n", b"data: [\n\n"], ids=["json", "number", "cut"])
def test_what_is_no_chunk_makes_it_no_answer(odd: bytes) -> None:
    reader = Reader()
    reader.parser.feed(odd + wire(*ANSWER))
    assert reader.parser.outcome() is None
    assert not reader.chunks


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "latin-1"]
)
def test_what_is_not_utf_8_makes_it_no_answer(encoding: str) -> None:
    reader = Reader()
    reader.parser.feed(b"data: " + json.dumps(delta("hü", "stop"), ensure_ascii=False).encode(encoding) + b"\n\n")
    reader.parser.feed(wire(*ANSWER))
    assert reader.parser.outcome() is None
    assert not reader.chunks


def test_an_endless_event_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENT_BYTES", 100)
    reader = Reader()
    for _ in range(3):
        reader.parser.feed(b"data: " + b"x" * 90)
    assert len(reader.parser._rest) <= 100
    assert reader.parser.outcome() is None


def test_an_aborted_answer_has_no_end_for_readers() -> None:
    reader = Reader()
    reader.parser.feed(wire(ANSWER[1], delta("x", "abort"), delta("y", "stop")))
    assert reader.told() == [ANSWER[1]]
    status, body = reader.parser.outcome() or (0, b"")
    assert (status, json.loads(body)["choices"][0]["finish_reason"]) == (200, "abort")


@pytest.mark.parametrize(
    ("code", "status"), [(429, 429), ("503", 503), (None, 400), ("invalid", 400), (7, 400), (True, 400)]
)
def test_an_error_among_the_chunks_is_the_answer(code: object, status: int) -> None:
    reader, error = Reader(), {"error": {"message": "no", "code": code}}
    reader.parser.feed(wire(ANSWER[1], error, ANSWER[2]))
    assert reader.told() == [ANSWER[1]]
    assert reader.parser.outcome() == (status, json.dumps(error).encode())


def test_a_body_asks_for_the_count_too_and_only_some_endpoints_stream() -> None:
    asked = EngineRequest("r", CHAT, {}, Lane.LOW)
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert streamed_body(asked, {"model": "m"}) == body
    asked.counts_along = True
    along = {"include_usage": True, "continuous_usage_stats": True}
    assert streamed_body(asked, {"model": "m"}) == body | {"stream_options": along}
    assert not EngineRequest("r", EMBEDDINGS, {}, Lane.LOW, on_chunk=print).streams
    assert not EngineRequest("r", CHAT, {}, Lane.LOW).streams


@pytest.mark.parametrize(
    "events",
    [
        (delta("hi"),),
        (delta("hi", "stop"), {"id": "x", "choices": [{"index": 1, "delta": {"content": "lo"}}]}),
        (USAGE,),
        (delta("hi", "stop", score=float("nan")),),
        (delta("hi", "stop", score=float("inf")),),
    ],
    ids=["no end", "a choice without an end", "no choice", "NaN", "Infinity"],
)
def test_what_is_no_whole_answer_is_none(events: tuple[Any, ...]) -> None:
    reader = Reader()
    reader.parser.feed(wire(*events))
    assert reader.parser.outcome() is None
    assert not any(b"NaN" in chunk or b"Infinity" in chunk for chunk in reader.chunks)


class ResponseReader(Reader):
    """Collects the events of a response."""

    def __init__(self) -> None:
        super().__init__()
        request = EngineRequest("r-1", RESPONSES, {}, Lane.HIGH, on_chunk=self._take)
        self.parser = SseParser(request, self._clock)

    def outcome(self) -> tuple[int, Any] | None:
        found = self.parser.outcome()
        return None if found is None else (found[0], json.loads(found[1]))


def event(kind: str, number: int | None = None, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **({} if number is None else {"sequence_number": number}), **more}


COMPLETED = {"id": "resp_1", "status": "completed", "output": []}
BEGUN = (event("created", 0, response={"status": "in_progress"}), event("output_text.delta", 1, delta="é"))


@pytest.mark.parametrize(
    ("kind", "status"), [("completed", "completed"), ("completed", "incomplete"), ("incomplete", "incomplete")]
)
def test_the_answer_is_the_response_of_the_last_event(kind: str, status: str) -> None:
    """vLLM calls it completed where OpenAI calls it incomplete. Whatever comes behind it does not count."""
    reader, answer = ResponseReader(), {**COMPLETED, "status": status}
    reader.now = 5.0
    reader.parser.feed(wire(*BEGUN, done=False))
    assert reader.outcome() is None, "it broke off"
    last = event(kind, 2, response=answer)
    reader.parser.feed(wire(last, event("keepalive", 3)))
    assert reader.outcome() == (200, answer)
    assert reader.told() == [*BEGUN, last]
    assert (reader.parser.chunks, reader.parser.first_at) == (1, 5.0)


def test_events_are_numbered_without_a_hole_whatever_the_server_does() -> None:
    reader = ResponseReader()
    wrong = [event("created"), event("in_progress", 7), event("output_text.delta", 7, delta="\u2028ü")]
    reader.parser.feed(wire(*wrong, event("completed", -1, response=COMPLETED)))
    assert [each["sequence_number"] for each in reader.told()] == [0, 1, 2, 3]
    assert reader.told()[2]["delta"] == "\u2028ü"


@pytest.mark.parametrize(
    ("last", "status", "message"),
    [
        (event("failed", response={"error": {"code": "server_error", "message": "broken"}}), 500, "broken"),
        (event("failed", response={"error": {"code": "rate_limit_exceeded", "message": "busy"}}), 429, "busy"),
        (event("failed", response={"error": {"code": "invalid_prompt", "message": "odd"}}), 400, "odd"),
        ({"type": "error", "code": "server_error", "message": "flat", "param": None}, 500, "flat"),
        ({"type": "error", "error": {"code": 503, "message": "nested"}}, 503, "nested"),
        (event("failed", response={"error": {"code": "image_parse_error", "message": "blank"}}), 400, "blank"),
        (event("failed", response={"error": None}), 500, "the response failed, for no told reason"),
        ({"type": "error", "error": "text"}, 500, "text"),
        ({"type": "error", "error": {"type": "server_error", "message": "typed"}}, 500, "typed"),
        ({"type": "error", "error": {"type": "server_is_overloaded", "message": "full"}}, 503, "full"),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "wrong"}}, 400, "wrong"),
        ({"type": "error", "error": {"type": "odd", "message": "unknown"}}, 500, "unknown"),
        ({"error": {"code": 422, "message": "without a type"}}, 422, "without a type"),
    ],
    ids=str,
)
def test_a_response_that_fails_is_an_error_and_no_event(last: dict[str, Any], status: int, message: str) -> None:
    reader = ResponseReader()
    reader.parser.feed(wire(*BEGUN, last))
    found = reader.outcome()
    assert found is not None
    assert (found[0], found[1]["error"]["message"]) == (status, message)
    assert found[1]["error"].get("type") != "error"
    assert reader.told() == list(BEGUN)


@pytest.mark.parametrize("response", [{"status": "cancelled"}, {"status": "in_progress"}, {}, None, "x"])
def test_a_last_event_without_a_finished_response_is_a_stream_that_broke_off(response: Any) -> None:
    reader = ResponseReader()
    reader.parser.feed(wire(*BEGUN, event("completed", 2, response=response)))
    assert reader.outcome() is None
    assert reader.told() == list(BEGUN)


def test_a_response_is_asked_for_without_options_of_chats() -> None:
    request = EngineRequest("r-1", RESPONSES, {}, Lane.HIGH)
    assert streamed_body(request, {"input": "x"}) == {"input": "x", "stream": True}
