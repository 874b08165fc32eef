"""Tokens as server-sent events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import Framing, frame, tier_field
from streamfleet.gateway.streaming import encode_events
from streamfleet.producer.events import Chunk, Event, Missed, Restarted


def chunk(number: int, raw: str = '{"choices":[]}') -> Chunk:
    """A chunk as it is read from Redis."""
    return Chunk(f"1700000000000-{number}/0", json.loads(raw), raw, 1)


def framed(event: Chunk) -> bytes:
    """As readers get it."""
    return Framing(event_ids=True).chunk(event.id, event.raw)


def code_of(error: ApiError | None) -> str:
    """Returns the code of an error; empty for none."""
    return "" if error is None else error.error["code"]


def test_a_chunk_goes_as_the_engine_wrote_it() -> None:
    raw = '{"choices": [{"delta": {"content": "Gr\\u00fc\\u00df, \\ud83d"}}],  "x": 1.50}'
    assert framed(chunk(7, raw)) == f"id: 1700000000000-7/0\ndata: {raw}\n\n".encode()


@pytest.mark.parametrize("raw", ['{"choices":[]}', '{"choices":\r[]}'])
def test_a_chunk_tells_its_tier(raw: str) -> None:
    sent, _ = encode_events([chunk(1, raw)], False, Framing(event_ids=True, tier="flex"), shown=False)
    (line,) = [line for line in sent.splitlines() if line.startswith(b"data: ")]
    assert json.loads(line.removeprefix(b"data: ")) == {"choices": [], "service_tier": "flex"}


def test_a_line_break_between_tokens_of_json_does_not_break_the_event() -> None:
    (line,) = [line for line in framed(chunk(1, '{\r"a":\r\n1}')).splitlines() if line.startswith(b"data: ")]
    assert json.loads(line.removeprefix(b"data: ")) == {"a": 1}


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("tier", [None, "flex"])
def test_an_event_has_one_line_of_data_for_every_reader(end: str, tier: str | None) -> None:
    """Also for those that split by all line ends of Unicode, as `iter_lines` of httpx does."""
    said: dict[str, Any] = {"choices": [], "said": f"ü{end}{end}ü"}
    raw = json.dumps(said, ensure_ascii=False)
    for sent in (Framing(event_ids=True, tier=tier).chunk("1-0/0", raw), frame(said | tier_field(tier), "1-0/0")):
        number, line, *rest = sent.decode().splitlines()
        assert (number, rest) == ("id: 1-0/0", [""])
        assert json.loads(line.removeprefix("data: ")) == said | tier_field(tier)


def test_events_that_came_together_go_together() -> None:
    sent, error = encode_events([chunk(1), chunk(2)], False, Framing(event_ids=True), shown=False)
    assert sent == framed(chunk(1)) + framed(chunk(2))
    assert error is None


@pytest.mark.parametrize("restart_events", [False, True])
def test_of_a_run_that_nobody_saw_nothing_is_told(restart_events: bool) -> None:
    assert encode_events([chunk(1), Restarted(2), chunk(2)], restart_events, Framing(event_ids=True), shown=False) == (
        framed(chunk(2)),
        None,
    )


@pytest.mark.parametrize(("event", "code"), [(Restarted(2), "stream_restarted"), (Missed(3, 1), "stream_incomplete")])
def test_what_came_before_the_error_is_sent(event: Event, code: str) -> None:
    sent, error = encode_events([chunk(1), event, chunk(2)], False, Framing(event_ids=True), shown=True)
    assert (sent, code_of(error)) == (framed(chunk(1)), code)


def test_who_understands_restarts_reads_on() -> None:
    events: list[Event] = [chunk(1), Restarted(2), Missed(3, 2), chunk(2)]
    sent, error = encode_events(events, True, Framing(event_ids=True), shown=True)
    assert error is None
    assert [line.split(b"\n")[0] for line in sent.split(b"\n\n")[:-1]] == [
        b"id: 1700000000000-1/0",
        b"event: restart",
        b"event: missed",
        b"id: 1700000000000-2/0",
    ]
