"""The openai engine in front of a server that answers any bytes: an answer, a refusal, or another try, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import resource
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.protocol import CHAT, Lane
from streamfleet.worker.engine.base import EngineAborted, EngineError, EngineReply, EngineRequest, EngineUnavailable
from streamfleet.worker.engine.openai import MOST_ANSWER_BYTES, OpenAIEngine, Upstream
from streamfleet.worker.outcome import Finished, Postponed, judge
from tests.fuzz import strategies as some
from tests.fuzz.budget import examples

REQUEST = EngineRequest("r-1", CHAT, {"messages": []}, Lane.NORMAL)
WITHIN_S = 5.0
HEADERS = (
    "Content-Type: application/json", "Content-Encoding: gzip", "Content-Encoding: br, deflate",
    "Transfer-Encoding: chunked", "Content-Length: 5", "Content-Length: -1", "Content-Length: x", "Connection: close",
    "Location: http://x/", "Location: \x80", "Retry-After: Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
    "Retry-After: " + "9" * 400, "Retry-After: nan", "Retry-After: Mon, 01 Jan 0001 00:00:00 -0000", "Retry-After: ٣",
    "Set-Cookie: " + "x" * 70_000, "x", ": ", "A:\x00",
)  # fmt: skip
bodies = some.engine_replies | some.raw | some.engine_replies.map(gzip.compress)
whole_answers = st.builds(
    lambda status, body, headers: _answer(status, body, headers),  # noqa: PLW0108 - it is defined below
    st.sampled_from([200, 201, 204, 301, 400, 401, 404, 408, 422, 429, 500, 501, 503, 599, 999]),
    bodies,
    st.lists(st.sampled_from(HEADERS), max_size=2),
)
answers = (
    whole_answers
    | some.raw
    | whole_answers.flatmap(lambda text: st.integers(0, 80).map(lambda cut: text[: -cut or None]))
)


def _answer(status: int, body: bytes, headers: list[str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Test", *headers]
    if not any(header.startswith(("Content-Length", "Transfer")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


class Hostile:
    """A server that says what it was told to, to whatever it is asked, and hangs up; and an engine before it.

    Attributes:
        answer: what it says.
        more, times: what it says after that, so many times over.
        head: of the last request.
    """

    def __init__(self) -> None:
        self.answer, self.more, self.times, self.head = b"", b"", 0, b""
        self.engine: OpenAIEngine

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self._url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.engine = self._new_engine()
        return server

    def _new_engine(self) -> OpenAIEngine:
        return OpenAIEngine(Upstream(self._url, max_concurrency=1, timeout_s=WITHIN_S))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.head = head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            writer.write(self.answer)
            for _ in range(self.times):
                writer.write(self.more)
                await writer.drain()
        writer.close()

    async def asked(self, answer: bytes, more: bytes = b"", times: int = 0) -> EngineReply | EngineError:
        """Returns the outcome of a request whose server answers these bytes."""
        if self.engine.unready:  # it would send nothing before a question is answered
            await self.engine.stop()
            self.engine = self._new_engine()
        self.answer, self.more, self.times = answer, more, times
        try:
            return await self.engine.run(REQUEST)
        except (EngineUnavailable, EngineAborted) as error:
            return error


@dataclass(frozen=True)
class Bench:
    """The server, and the loop that it runs in."""

    runner: asyncio.Runner
    hostile: Hostile

    def asked(self, answer: bytes, more: bytes = b"", times: int = 0) -> EngineReply | EngineError:
        return self.runner.run(self.hostile.asked(answer, more, times))

    def started(self, models: bytes) -> None:
        """The engine starts before a server that lists its models so.

        Raises:
            EngineError: it does not.
        """
        self.hostile.answer, self.hostile.times = _answer(200, models, []), 0
        self.runner.run(self.hostile.engine.start())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    hostile = Hostile()
    with asyncio.Runner() as runner:
        server = runner.run(hostile.open())
        yield Bench(runner, hostile)
        runner.run(hostile.engine.stop())
        server.close()


@given(answers)
@examples(150)
def test_any_answer(bench: Bench, answer: bytes) -> None:
    found = bench.asked(answer)
    if isinstance(found, EngineReply):
        assert isinstance(judge(found), (Finished, Postponed))
    else:
        str(found).encode()
        assert len(str(found)) < 1_000


@given(st.one_of(some.values, st.fixed_dictionaries({"data": st.lists(st.dictionaries(
    st.sampled_from(["id", "max_model_len"]), some.values, max_size=2), max_size=3)})))  # fmt: skip
@examples(80)
def test_any_list_of_models(bench: Bench, listed: object) -> None:
    with contextlib.suppress(EngineError):
        bench.started(json.dumps(listed).encode())
        assert bench.hostile.engine.models
        longest = bench.hostile.engine.capacity().max_model_len
        assert longest is None or longest > 0


def test_a_list_of_models_nested_beyond_the_stack(bench: Bench) -> None:
    with pytest.raises(EngineUnavailable):
        bench.started(b"[" * 100_000)


def test_an_answer_without_end_does_not_fill_the_memory(bench: Bench) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = bench.asked(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 1_000_000, 400)
    assert isinstance(found, EngineUnavailable)
    assert "more than" in str(found)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 3 * MOST_ANSWER_BYTES


def test_what_a_server_wants_to_be_told_again_is_not_kept(bench: Bench) -> None:
    """Else one answer could make the head of every later request larger than any server takes."""
    for number in range(3):
        bench.asked(_answer(200, b"{}", [f"Set-Cookie: c{number}={'x' * 30_000}"]))
    assert b"cookie" not in bench.hostile.head.lower()


def test_an_answer_in_an_encoding_is_not_unpacked(bench: Bench) -> None:
    packed = gzip.compress(b"{}" + b" " * 1_000_000)
    found = bench.asked(_answer(200, packed, ["Content-Encoding: gzip"]))
    assert isinstance(found, EngineUnavailable)
    assert "encoding" in str(found)
