"""Events that readers of a request's tokens get: chunks, restarts and gaps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from streamfleet.common import message_events
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.response_events import TEXT_DELTA

Restarts: TypeAlias = Literal["raise", "tell"]
"""Handling of `Restarted` and `Missed`: raised as StreamBroken, or yielded among the chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk, as the engine returned it.

    Attributes:
        id: ``<stream id>/<index in its group>``: pass it to `stream` as `after` to continue after this chunk.
        data: the OpenAI chunk object: ``chat.completion.chunk``, or ``text_completion`` for /v1/completions,
            an event for /v1/responses and /v1/messages.
        raw: the same as JSON text, for forwarding without parsing.
        attempt: attempt that generated it.
    """

    id: str
    data: dict[str, Any]
    raw: str
    attempt: int

    @property
    def text(self) -> str:
        """Text that it adds to the first choice; may be empty."""
        return text_of(self.data)


@dataclass(frozen=True, slots=True)
class Restarted:
    """The request started again, on another worker or at another time; earlier chunks are void.

    Attributes:
        attempt: attempt of the chunks from here on.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class Missed:
    """Chunks are missing here, because Redis refused or trimmed them. The result has the whole text.

    Attributes:
        chunks: number of missing chunks.
        attempt: their attempt.
    """

    chunks: int
    attempt: int


def text_of(data: Mapping[str, Any]) -> str:
    """Text that a chunk adds to the first choice, or an event to a response."""
    if data.get("type") == TEXT_DELTA:
        return str(data.get("delta"))
    if data.get("type") == message_events.DELTA:
        return message_events.text_of(data)
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
            return text if isinstance(text, str) else ""
    return ""


Event: TypeAlias = Chunk | Restarted | Missed


class StreamBroken(StreamfleetError):
    """The chunks read so far are void or incomplete; the request itself continues.

    Streaming again from the start yields the current run. The result has the whole text in any case.

    Attributes:
        id: the request id.
        event: the restart or the gap.
    """

    retryable = True

    def __init__(self, request_id: str, event: Restarted | Missed) -> None:
        what = (
            f"runs anew (attempt {event.attempt}): what came before counts no more"
            if isinstance(event, Restarted)
            else f"lacks {event.chunks} chunks here, which Redis refused or kept no longer"
        )
        super().__init__(f"request {request_id} {what}; stream it again, or take its result")
        self.id = request_id
        self.event = event
