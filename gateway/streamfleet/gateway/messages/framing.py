"""Events of a streamed message as bytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import Framing, frame
from streamfleet.gateway.messages.translation import error_object


@dataclass(slots=True)
class MessageFraming(Framing):
    """The form in which one reader gets a message: events that are named by their types, and pings in silence."""

    def error(self, error: ApiError) -> bytes:
        """Returns an error inside a stream, as Anthropic's clients raise it."""
        return frame(error_object(error), event="error")

    def keep_alive(self, now_s: int, default_model: str) -> bytes:  # noqa: ARG002 - the same for all
        """Returns what is sent after a silence."""
        return frame({"type": "ping"}, event="ping")
