"""Turns the entries of one request's tokens into one reader's events: chunks in order, restarts, gaps, the end. Pure.

Attempt and run are the fence. A worker that lost a request unknowingly may publish for a moment longer; entries of an
earlier attempt, or of a run that another one replaced, are skipped. A run that goes on with what an earlier one has
generated begins with its text: the reader gets what it has not yet, and no restart as long as the text is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamfleet.common import message_events
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.jsontext import single_line
from streamfleet.common.protocol import Status
from streamfleet.common.replies import id_order
from streamfleet.common.results import Result
from streamfleet.producer.events import Chunk, Event, Missed, Restarted, text_of

BEGINNING = "0-0"
MOST_SEQ = 2**64 - 1
_CHUNK_ID = re.compile(r"([0-9]{1,20}-[0-9]{1,20})/([0-9]{1,9})")

_decode = json.JSONDecoder().decode
Fields = Mapping[bytes, bytes]
Entry = tuple[str, dict[bytes, bytes]]


class Place(NamedTuple):
    """Position of a chunk: its entry, and its index there."""

    stream_id: str
    at: int

    @property
    def before(self) -> str:
        """The stream id just before, to read from so that the entry itself is included."""
        milliseconds, number = id_order(self.stream_id)
        if number:
            return f"{milliseconds}-{number - 1}"
        return f"{milliseconds - 1}-{MOST_SEQ}" if milliseconds else BEGINNING


def place_of(chunk_id: object) -> Place:
    """Parse a chunk's id.

    Raises:
        InvalidRequest: it is not a chunk's id.
    """
    match = _CHUNK_ID.fullmatch(chunk_id) if isinstance(chunk_id, str) else None
    if match is None:
        raise InvalidRequest("must be the id of a chunk, <stream id>/<index>, as its `id` says", "after")
    return Place(match[1], int(match[2]))


class _Group(NamedTuple):
    """A group of chunks, decoded from its entry."""

    attempt: int
    run: bytes
    seq: int
    chunks: list[str]
    goes_on: bool


class Ending(NamedTuple):
    """End of a request, with the last attempt and its number of chunks; None where unknown."""

    status: str
    attempt: int | None = None
    chunks: int | None = None


class _Text:
    """Length and digest of a text that grows: each reader of a long answer would hold the text itself."""

    def __init__(self) -> None:
        self.characters = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, text: str) -> None:
        self.characters += len(text)
        self._digest.update(text.encode(errors="surrogatepass"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and self._digest.digest() == other._digest.digest()

    __hash__ = None  # type: ignore[assignment] # it changes


class _Seam:
    """Beginning of a run that goes on with an answer, up to where it says more than the reader has.

    Args:
        had: the text that the reader has.
        attempt: attempt of the run.

    Attributes:
        over: true if the chunks from here on are new to the reader.
    """

    def __init__(self, had: _Text, attempt: int) -> None:
        self._had, self._attempt = had, attempt
        self._told = _Text()
        self._held: list[Chunk] = []
        self.over = False

    def add(self, chunk: Chunk) -> list[Event]:
        """Returns events in place of a chunk: its new part, nothing, or a restart if the text before is another one."""
        self._held.append(chunk)
        kind = chunk.data.get("type")
        beside = message_events.is_beside_text(chunk.data)
        if kind in (message_events.START, message_events.BLOCK) and self._had.characters and not beside:
            return []  # the reader has the beginning of a message
        if beside or ("choices" not in chunk.data and kind != message_events.DELTA):
            return self.give_up()  # an event of a response, with numbers and ids of its own run, or one beside a text
        text, ends = chunk.text, _finishes(chunk.data)
        known = min(len(text), self._had.characters - self._told.characters)
        self._told.add(text[:known])
        if self._told.characters < self._had.characters:
            return []
        if self._told != self._had:
            return self.give_up()
        self.over = True
        if known == len(text) and not ends:
            return []
        new = chunk if known == 0 else _without(chunk, known)
        return self.give_up() if new is None else [new]

    def give_up(self) -> list[Event]:
        """Returns a restart, and the chunks of the run so far."""
        self.over = True
        return [Restarted(self._attempt), *self._held]


class Newest(NamedTuple):
    """The current run when a reader starts, which does not need the events of earlier runs.

    Attributes:
        run: name of the run; empty if there is none yet.
        until: stream id of the newest entry; after it, every run counts.
    """

    run: bytes = b""
    until: str = BEGINNING


def newest_run(entries: Iterable[Entry]) -> Newest:
    """Find the current run in the newest entries, newest first; late entries of an earlier attempt do not count."""
    best, until = None, ""
    for stream_id, fields in entries:
        until = until or stream_id
        group = _group(fields)
        if group is not None and (best is None or group.attempt > best.attempt):
            best = group
    return Newest(best.run, until) if best is not None else Newest()


class Follower:
    """State of one reader of one request's tokens.

    Args:
        after: the last chunk that the reader has, or how many it has; None to start at the beginning. A number may be
            of any run. So it leads on only where the stream has the request's first run from its beginning; else that
            run is a restart.
        newest: the current run, for a reader that starts at the beginning.

    Attributes:
        ending: end of the request, once it was read.
    """

    def __init__(self, after: Place | int | None = None, newest: Newest | None = None) -> None:
        self.ending: Ending | None = None
        self._after = after
        self._newest, self._until = (newest or Newest()).run, id_order((newest or Newest()).until)
        self._begun = after is not None
        self._run, self._attempt, self._expected = b"", 0, 0
        self._former: set[bytes] = set()
        self._text = _Text() if after is None else None  # of this run; None if the reader lacks some, or has more
        self._seam: _Seam | None = None

    def read(self, stream_id: str, fields: Fields) -> list[Event]:
        """Events of an entry; invalid entries are skipped."""
        if self.ending is not None:
            return []
        if b"end" in fields:
            return self.end(_ending(fields))
        group = _group(fields)
        after, self._after = self._after, None
        if group is None:
            return []
        self._resume(after, stream_id, group)
        if not self._counts(stream_id, group):
            return []
        events = self._turn_to(group)
        if group.seq > self._expected:
            events += self._give_up_seam()
            events.append(Missed(group.seq - self._expected, group.attempt))
        known = max(0, self._expected - group.seq)
        self._expected = max(self._expected, group.seq + len(group.chunks))
        for index in range(known, len(group.chunks)):
            raw = group.chunks[index]
            data = _object(raw)
            if data is not None:
                events += self._new(Chunk(f"{stream_id}/{index}", data, raw, group.attempt))
        self._begun = self._begun or bool(events)
        return events

    def goes_on(self, fields: Fields) -> list[str] | None:
        """Chunks, as JSON, of an entry that continues the run in order; else None, and the entry counts as not read."""
        group = _group(fields)
        if group is None or b"end" in fields or self.ending is not None:
            return None
        if (group.run, group.attempt, group.seq) != (self._run, self._attempt, self._expected):
            return None
        found = [_object(raw) for raw in group.chunks]
        if self._seam is not None or None in found:
            return None
        self._add([data for data in found if data is not None])
        self._expected += len(group.chunks)
        self._begun = True
        return group.chunks

    def end(self, ending: Ending) -> list[Event]:
        """Record the end of the request. Returns a gap if chunks are missing."""
        self.ending = ending
        if ending.status != Status.SUCCEEDED:
            return []
        events = self._give_up_seam()
        if ending.chunks is None or ending.attempt is None:
            return events
        if ending.attempt > self._attempt:  # no chunk of the final attempt was read
            self._expected = 0
            if self._begun and ending.chunks:
                events.append(Restarted(ending.attempt))
        if ending.chunks > self._expected:
            events.append(Missed(ending.chunks - self._expected, ending.attempt))
        return events

    def _resume(self, after: Place | int | None, stream_id: str, group: _Group) -> None:
        """Set the position from the first entry read, if the reader has chunks of its run."""
        if isinstance(after, Place):
            had = group.seq + after.at + 1 if after.stream_id == stream_id else None
        else:
            had = after if (group.attempt, group.seq) == (1, 0) else None
        if had is not None:
            self._run, self._attempt, self._expected = group.run, group.attempt, had

    def _counts(self, stream_id: str, group: _Group) -> bool:
        if self._newest and group.run != self._newest and id_order(stream_id) <= self._until:
            self._former.add(group.run)
            return False
        return group.run == self._run or (group.attempt >= self._attempt and group.run not in self._former)

    def _turn_to(self, group: _Group) -> list[Event]:
        if group.run == self._run:
            return []
        self._former.add(self._run)
        self._run, self._attempt, self._expected = group.run, group.attempt, 0
        if group.goes_on and self._begun and self._text is not None:
            self._seam = _Seam(self._text, group.attempt)
            return []
        self._text, self._seam = _Text(), None
        return [Restarted(group.attempt)] if self._begun else []

    def _new(self, chunk: Chunk) -> list[Event]:
        """Events of the run's next chunk."""
        events: list[Event] = [chunk]
        if self._seam is not None:
            events = self._seam.add(chunk)
            if events and isinstance(events[0], Restarted):
                self._text = _Text()
            if self._seam.over:
                self._seam = None
        self._add([event.data for event in events if isinstance(event, Chunk)])
        return events

    def _add(self, chunks: list[dict[str, Any]]) -> None:
        """Add chunks that the reader gets to its text."""
        if self._text is None:
            return
        if any(map(message_events.is_beside_text, chunks)):
            self._text = None
        else:
            self._text.add("".join(map(text_of, chunks)))

    def _give_up_seam(self) -> list[Event]:
        if self._seam is None:
            return []
        events = self._seam.give_up()
        self._text, self._seam = None, None
        return events


def ending_of(result: Result) -> Ending:
    """The end of a request, from its result."""
    told = result.fields.get("streamed", "")
    return Ending(result.status, result.attempt, int(told) if told.isascii() and told.isdigit() else None)


def _group(fields: Fields) -> _Group | None:
    attempt, seq = _whole(fields.get(b"attempt")), _whole(fields.get(b"seq"))
    run, chunks = fields.get(b"run"), fields.get(b"chunks")
    if attempt is None or seq is None or not run or chunks is None:
        return None
    return _Group(attempt, run, seq, chunks.decode(errors="replace").split("\n"), b"resumed" in fields)


def _ending(fields: Fields) -> Ending:
    status = fields[b"end"].decode(errors="replace")
    return Ending(status, _whole(fields.get(b"attempt")), _whole(fields.get(b"chunks")))


def _whole(text: bytes | None) -> int | None:
    return int(text) if text is not None and len(text) < 16 and text.isdigit() else None


def _finishes(data: Mapping[str, Any]) -> bool:
    """True if a chunk tells why an answer ended."""
    choices = data.get("choices")
    some = choices if isinstance(choices, list) else ()
    return any(isinstance(choice, dict) and choice.get("finish_reason") for choice in some)


def _without(chunk: Chunk, characters: int) -> Chunk | None:
    """Returns a chunk without so many characters of its text; None if it has more than text (log probabilities, …)."""
    if chunk.data.get("type") == message_events.DELTA:
        data = {**chunk.data, "delta": {**chunk.data["delta"], "text": chunk.text[characters:]}}
        raw = single_line(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
        return Chunk(chunk.id, data, raw, chunk.attempt)
    choices = chunk.data["choices"]
    if len(choices) != 1:
        return None
    choice, text = dict(choices[0]), chunk.text[characters:]
    if any(value for name, value in choice.items() if name not in ("index", "text", "delta", "finish_reason")):
        return None
    if isinstance(delta := choice.get("delta"), dict):
        if any(value for name, value in delta.items() if name not in ("role", "content")):
            return None
        choice["delta"] = {**delta, "content": text}
    else:
        choice["text"] = text
    data = {**chunk.data, "choices": [choice]}
    raw = single_line(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    return Chunk(chunk.id, data, raw, chunk.attempt)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = _decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
