"""bench.gateway: what its readers make of the bytes that came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

import pytest

from bench.gateway.readers import END, Reader, Stream, at_once, looked_at

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(entry: str, text: str) -> bytes:
    """A chunk of chat, as an event."""
    data = json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False)
    return f"id: {entry}\ndata: {data}\n\n".encode()


def sent(data: bytes) -> bytes:
    """In chunked transfer coding."""
    return b"%x\r\n" % len(data) + data + b"\r\n"


DONE = sent(b"data: [DONE]\n\n")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """For futures that nobody waits for."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


def seen(loop: asyncio.AbstractEventLoop, came: Sequence[tuple[float, bytes]]) -> Stream:
    """Returns a reader's result from these pieces."""
    return looked_at(Reader(loop.create_future(), list(came)))


def test_text_and_lags(loop: asyncio.AbstractEventLoop) -> None:
    one, two = sent(event("1000-0/0", "Grüße") + event("1000-0/1", " an")), sent(event("1040-0/0", " alle"))
    found = seen(loop, [(1010.0, HEAD + one), (1045.0, two[:-9]), (1050.0, two[-9:] + DONE + END)])
    assert found.text == "Grüße an alle"
    assert found.lags_ms == [10.0, 10.0], "by entry, and when the last byte of it had come"
    assert (found.began_ms, found.ended_ms, found.sends) == (1010.0, 1050.0, 3)


@pytest.mark.parametrize(
    "came",
    [
        [],
        [HEAD + sent(event("1-0/0", "a"))],
        [HEAD + sent(event("1-0/0", "a")) + END],
        [HEAD + sent(b'data: {"error":{"code":"stream_restarted"}}\n\n') + DONE + END],
        [b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}"],
    ],
    ids=["nothing", "cut", "no-done", "error", "refused"],
)
def test_what_did_not_end_well_has_no_text(loop: asyncio.AbstractEventLoop, came: list[bytes]) -> None:
    assert seen(loop, [(1.0, data) for data in came]).text is None


def test_how_many_ran_at_once() -> None:
    spans = [(0.0, 10.0), (5.0, 20.0), (10.0, 30.0), (40.0, 50.0)]
    assert at_once([Stream("", [], 1, began, ended) for began, ended in spans]) == 2


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete", "message_stop"])
def test_texts_of_responses_and_messages(loop: asyncio.AbstractEventLoop, last: str) -> None:
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ab"}}
    if "response" in last:
        delta = {"type": "response.output_text.delta", "delta": "ab"}
    said = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (delta, {"type": last}))
    assert seen(loop, [(1.0, HEAD + sent(said) + END)]).text == "ab"
    assert seen(loop, [(1.0, HEAD + sent(said.rpartition(b"data: ")[0]) + END)]).text is None, "cut"
