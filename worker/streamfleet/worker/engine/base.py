"""The protocol between worker and engine, which three engines implement.

An engine takes one OpenAI-shaped request at a time from many tasks at once and batches them as it
sees fit. A mistake in the request is an answer (`EngineReply` with an HTTP status of 400 or more); only a fault of the
engine raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from streamfleet.common.protocol import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Lane

NO_DEADLINE_S = 9_999_999_999
STREAMED = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES})
"""Endpoints whose answers come in chunks where somebody wants them."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Output of a run that was interrupted, from which another run can go on.

    Attributes:
        tokens: generated tokens that are kept, of all choices; at least 1.
        state: the engine's own encoding (`partial.py`), at most `partial.MOST_BYTES`.
    """

    tokens: int
    state: bytes

    def encode(self) -> bytes:
        """Returns it as it is kept in Redis."""
        return b"%d %b" % (self.tokens, self.state)

    @classmethod
    def decode(cls, kept: bytes) -> Partial | None:
        """Reads what `encode` wrote; None if it was overwritten with anything else."""
        tokens, _, state = kept.partition(b" ")
        return cls(int(tokens), state) if len(tokens) < 10 and tokens.isdigit() and state else None


@dataclass(slots=True)
class Text:
    """A piece of an answer's text; `make` makes a chunk of it. Pieces that are published together become one chunk."""

    text: str
    make: Callable[[str], bytes]

    def __bytes__(self) -> bytes:
        return self.make(self.text)


def no_snapshot() -> None:
    """The next run begins anew."""


@dataclass(slots=True)  # frozen ones take three times as long to make
class EngineRequest:
    """One request as an engine sees it.

    Attributes:
        id: the request id; engines carry it into their logs and response ids.
        endpoint: OpenAI path, such as ``/v1/chat/completions``.
        body: the parsed OpenAI body, without ``stream`` and ``stream_options``.
        lane: the lane it came from.
        deadline_ms: epoch milliseconds after which the answer is useless; None for no deadline.
        traceparent: W3C trace context of its run, for spans of the engine's own; empty if tracing is off.
        on_chunk: called with each chunk of the answer as it arrives: an OpenAI chunk object, or event of a response,
            as JSON, on one line, or a `Text`. None if the caller wants no chunks. The whole answer is returned all the
            same.
        chunk_every_s: seconds between two chunks that a reader gets; an engine need not make them more often. 0 for
            each token.
        tells_usage: true if the caller wants the last chunk too, which only counts tokens.
        counts_along: true if the caller wants the tokens so far in each chunk.
        resume: output to go on from; the engine ignores what it cannot use, and begins anew.
        usage: tokens used until the request was ended early, as OpenAI counts them. The engine sets it; None if
            nobody counted.
        guessed: true if `usage` tells only what was seen: there may have been more. The engine sets it.
        snapshot: returns output from which another run can go on, as of now; None if the next run begins anew. The
            engine sets it when it begins.
        partial: the last snapshot. The engine sets it if its task is cancelled.
        resumed_tokens: generated tokens taken over from ``resume``. The engine sets it; 0 if it began anew.
        made: output tokens so far, with those taken over. The engine keeps it current as far as it can tell.
        continuable: true if another run could go on with this one. The engine sets it when it begins.
    """

    id: str
    endpoint: str
    body: Mapping[str, Any]
    lane: Lane
    deadline_ms: int | None = None
    traceparent: str = ""
    on_chunk: Callable[[bytes | Text], None] | None = None
    chunk_every_s: float = 0.0
    tells_usage: bool = False
    counts_along: bool = False
    resume: Partial | None = None
    usage: dict[str, Any] | None = None
    guessed: bool = False
    snapshot: Callable[[], Partial | None] = no_snapshot
    partial: Partial | None = None
    resumed_tokens: int = 0
    made: int = 0
    continuable: bool = False

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Set `usage`."""
        self.usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }

    @property
    def streams(self) -> bool:
        """True if the caller wants its chunks and the endpoint can stream."""
        return self.on_chunk is not None and self.endpoint in STREAMED

    @property
    def priority(self) -> int:
        """Rank for engines that schedule by priority (smaller runs first): lane, then deadline in seconds."""
        deadline_s = NO_DEADLINE_S
        if self.deadline_ms is not None:
            deadline_s = min(self.deadline_ms // 1000, NO_DEADLINE_S)
        return self.lane.rank * (NO_DEADLINE_S + 1) + deadline_s


@dataclass(slots=True)
class EngineReply:
    """Reply to one request.

    Attributes:
        status: HTTP status; 2xx is a full answer, 4xx the request's own fault, 5xx see ``body``.
        body: response JSON, unchanged.
        first_token_ms: milliseconds from submission to the first token; None if the engine cannot tell.
    """

    status: int
    body: bytes
    first_token_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Most that an engine holds at once; the worker tracks what it has given.

    Attributes:
        slots: number of sequences that run together.
        kv_tokens: tokens of KV cache for all sequences together; None if the engine cannot tell.
        max_model_len: prompt plus output tokens of one sequence; None if unknown.
    """

    slots: int
    kv_tokens: int | None = None
    max_model_len: int | None = None


class EngineError(Exception):
    """The engine, not the request, is at fault. ``counted``: true if this run counts as an attempt."""

    counted = True


class EngineDied(EngineError):
    """The engine is gone; the process must end and hand back everything, attempts counted."""


class EngineUnavailable(EngineError):
    """A passing fault (connection refused, 429, 502, 503, time-out): retry later.

    ``retry_after_ms``: the server's Retry-After, if any. ``hangs``: the server answers nothing at all, to anybody.
    ``said``: the server's own words, which may repeat the request: for its owner only, never for a log.
    ``busy``: it works, but takes no more for now. ``counted``: see `EngineError`. ``code``: of the caller's error if no
    attempt is left.
    """

    def __init__(
        self,
        message: str,
        retry_after_ms: int | None = None,
        *,
        hangs: bool = False,
        said: str = "",
        busy: bool = False,
        counted: bool = True,
        code: str = "engine_error",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.busy = busy
        self.counted = counted
        self.said = said
        self.retry_after_ms = retry_after_ms
        self.hangs = hangs


class EngineAborted(EngineError):
    """The engine dropped the request without finishing it, and not at our wish: hand it back."""


class Engine(Protocol):
    """Protocol of an engine: ``start``, any number of concurrent ``run``, ``stop``.

    ``run`` raises EngineDied, EngineUnavailable or EngineAborted; if its task is cancelled, the request leaves the
    engine within a second, its ``usage`` has the tokens used by then, and its ``partial`` what the next run can go on
    from. That run answers as if nothing had happened, and counts tokens so; if it streams, its chunks begin with the
    kept text. ``failed`` returns the reason as soon as the engine is dead or hung, and does not return while it works.
    ``stop`` leaves no process behind. One that knows which part of its KV cache is in use has it as ``kv_use``, 0 to 1.
    One that can be away has the reason as ``unready``, empty while it is there; as ``allowance`` the most requests to
    hold meanwhile, None for no limit; and as ``suspects`` the ids of requests that may be the cause. One whose server
    takes fewer requests than the settings allow has ``limited`` true.
    """

    kind: str  # "vllm", "openai" or "simulated"; after start, with the way by which requests reach it if it has two
    models: tuple[str, ...]  # names that requests may ask for; known after start
    endpoints: tuple[str, ...]  # OpenAI paths that it serves; known after start, empty if it cannot tell

    async def start(self) -> None: ...

    async def run(self, request: EngineRequest) -> EngineReply: ...

    def capacity(self) -> Capacity: ...

    async def failed(self) -> str: ...

    async def stop(self) -> None: ...
