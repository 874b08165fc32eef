"""What readers of a request's tokens are given: chunks, and what happens to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from streamfleet.common.errors import StreamfleetError

Restarts: TypeAlias = Literal["raise", "tell"]
"""What becomes of a `Restarted` or a `Missed`: raised, as StreamBroken, or given among the chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk, as the engine gave it.

    Attributes:
        id: ``<stream id>/<index in its group>``: give it to `stream` as `after` to go on behind this chunk.
        data: the OpenAI chunk object: ``chat.completion.chunk``, or ``text_completion`` for /v1/completions.
        raw: the same as JSON, as it stands in Redis, for who only passes it on.
        attempt: the attempt that it is of.
    """

    id: str
    data: dict[str, Any]
    raw: str
    attempt: int

    @property
    def text(self) -> str:
        """What it adds to the text of the first choice; empty where it adds none."""
        return text_of(self.data)


@dataclass(frozen=True, slots=True)
class Restarted:
    """The request runs anew, on another worker or at another time: what came before this counts no more.

    Attributes:
        attempt: the attempt that the chunks from here on are of.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class Missed:
    """Chunks are missing here: Redis refused them, or kept them no longer. The result has the whole text.

    Attributes:
        chunks: how many.
        attempt: the attempt that they are of.
    """

    chunks: int
    attempt: int


def text_of(data: Mapping[str, Any]) -> str:
    """What a chunk adds to the text of the first choice."""
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
            return text if isinstance(text, str) else ""
    return ""


Event: TypeAlias = Chunk | Restarted | Missed


class StreamBroken(StreamfleetError):
    """What was read so far is not the beginning of the answer, or not all of it; the request itself goes on.

    Reading anew from the start gives the run that counts now. The result has the whole text in any case.

    Attributes:
        id: the request id.
        event: what happened.
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
