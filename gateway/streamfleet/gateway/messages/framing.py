"""Events of a streamed message as bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamfleet.common.message_events import events_of
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import WHOLE, Framing, frame
from streamfleet.gateway.messages.translation import error_object


@dataclass(slots=True)
class MessageFraming(Framing):
    """The form in which one reader gets a message: events that are named by their types, and pings in silence."""

    def whole(self, response: Mapping[str, Any], streamed: int = 0) -> bytes:  # noqa: ARG002 - as of responses
        """Returns a whole message as events, for a request whose events were not kept."""
        *told, last = events_of(response)
        named = WHOLE if self.event_ids else ""
        return b"".join([frame(event, event=event["type"]) for event in told]) + frame(last, named, last["type"])

    def error(self, error: ApiError) -> bytes:
        """Returns an error inside a stream, as Anthropic's clients raise it."""
        return frame(error_object(error), event="error")

    def keep_alive(self, now_s: int, default_model: str) -> bytes:  # noqa: ARG002 - the same for all
        """Returns what is sent after a silence."""
        return frame({"type": "ping"}, event="ping")
