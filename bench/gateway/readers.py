"""Many readers of streams in one process, which only stores the bytes that arrive, and their times.

`python -m bench.gateway.readers PORT STREAMS OVER_S`. Standard input has the path, the request's body and the API key,
a line each. When all streams have ended, the bytes are parsed, and a line of JSON goes to standard output.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvloop

HOST = "127.0.0.1"
END = b"0\r\n\r\n"
DONE, LAST = "data: [DONE]", ("response.completed", "response.incomplete", "message_stop")
"""Ends of a stream: of chat, and the types of the last events of responses and messages."""
_EVENT_ID = re.compile(rb"id: ([0-9]+)-[0-9]+/([0-9]+)\n")


@dataclass(eq=False)
class Reader(asyncio.Protocol):
    """One connection with one request.

    Attributes:
        came: bytes that arrived, each part with its time of arrival, epoch ms.
        ended: done when the answer is complete or the connection is gone.
    """

    ended: asyncio.Future[None]
    came: list[tuple[float, bytes]] = field(default_factory=list)

    def data_received(self, data: bytes) -> None:
        self.came.append((time.time() * 1000, data))
        if data.endswith(END) and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True)
class Stream:
    """One stream, parsed.

    Attributes:
        text: text of the first choice; None if it did not end well.
        lags_ms: times from each entry's time in Redis to the arrival of its last event.
        sends: number of pieces that arrived.
        began_ms, ended_ms: times of the first and the last piece, epoch ms.
    """

    text: str | None
    lags_ms: list[float]
    sends: int
    began_ms: float
    ended_ms: float


async def read_all(port: int, request: bytes, streams: int, over_s: float) -> tuple[list[Reader], float]:
    """Connect, send all requests evenly over so many seconds, and wait for their ends. Returns readers and CPU time."""
    loop = asyncio.get_running_loop()
    readers = []
    cpu_s, began_s = time.process_time(), loop.time()
    for number in range(streams):
        await asyncio.sleep(max(0.0, began_s + over_s * number / streams - loop.time()))
        transport, reader = await loop.create_connection(lambda: Reader(loop.create_future()), HOST, port)
        transport.write(request)
        readers.append(reader)
    await asyncio.wait([reader.ended for reader in readers])
    return readers, time.process_time() - cpu_s


def _lags_ms(events: Iterable[tuple[float, bytes]]) -> list[float]:
    return [
        came_ms - int(entry_ms)
        for came_ms, data in events
        for entry_ms in {match[1]: None for match in _EVENT_ID.finditer(data)}
    ]


def _events(reader: Reader) -> Iterator[tuple[float, bytes]]:
    """The bytes of whole events with their time: an event has arrived when its last byte has."""
    held = b""
    for came_ms, data in reader.came:
        held += data
        whole, _, held = held.rpartition(b"\n\n")
        yield came_ms, whole


def looked_at(reader: Reader) -> Stream:
    """Parse a reader's stream."""
    times = [came_ms for came_ms, _ in reader.came] or [0.0]
    return Stream(_text(reader), _lags_ms(_events(reader)), len(reader.came), times[0], times[-1])


def _text(reader: Reader) -> str | None:
    answer = b"".join(data for _, data in reader.came)
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] or not answer.endswith(END):
        return None
    parts, done = [], False
    for line in _unchunked(body).decode().split("\n"):
        if line == DONE:
            done = True
        elif line.startswith("data: "):
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                return None
            parts += [_said(chunk)]
            done = done or chunk.get("type") in LAST
    return "".join(parts) if done else None


def _said(chunk: dict[str, Any]) -> str:
    """Text of an event of any of the APIs."""
    match chunk.get("type"):
        case None:
            return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        case "response.output_text.delta":
            return str(chunk["delta"])
        case "content_block_delta":
            return str(chunk["delta"]["text"])
    return ""


def _unchunked(body: bytes) -> bytes:
    """A body in chunked transfer coding, decoded."""

    def parts() -> Iterator[bytes]:
        at = 0
        while (end := body.find(b"\r\n", at)) >= 0 and (size := int(body[at:end], 16)):
            yield body[end + 2 : end + 2 + size]
            at = end + 4 + size

    return b"".join(parts())


def at_once(seen: list[Stream]) -> int:
    """Largest number of streams that ran at the same time."""
    steps = sorted([(each.began_ms, 1) for each in seen] + [(each.ended_ms, -1) for each in seen])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def said(readers: list[Reader], cpu_s: float) -> dict[str, Any]:
    """Figures of all readers."""
    seen = [looked_at(reader) for reader in readers]
    texts = Counter(each.text for each in seen if each.text is not None)
    return {
        "streams": len(seen),
        "whole": sum(texts.values()),
        "texts": len(texts),
        "text": texts.most_common(1)[0][0] if texts else "",
        "at_once": at_once(seen),
        "lags_ms": [round(lag, 1) for each in seen for lag in each.lags_ms],
        "sends": sum(each.sends for each in seen),
        "seconds": (max(each.ended_ms for each in seen) - min(each.began_ms for each in seen)) / 1000,
        "cpu_s": cpu_s,
    }


def request_of(path: str, body: bytes, key: str) -> bytes:
    """Bytes of an HTTP request for a streamed answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "x-streamfleet-event-ids: send\r\n\r\n"  # lags are measured by the ids
    )
    return head.encode() + body


def main() -> None:
    """Read all streams and print the result."""
    port, streams, over_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    path, body, key = (sys.stdin.readline().strip() for _ in range(3))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        readers, cpu_s = runner.run(read_all(port, request_of(path, body.encode(), key), streams, over_s))
    print(json.dumps(said(readers, cpu_s)), flush=True)


if __name__ == "__main__":
    main()
