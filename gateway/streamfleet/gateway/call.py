"""One HTTP request under way: what is known of it, for its log line, its metrics and the headers of its answer."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from starlette.requests import Request


@dataclass(slots=True)
class Call:
    """One HTTP request.

    Attributes:
        id: of this HTTP request, made up here; a request in the queue has another, which several may ask for.
        began_s: the loop's clock, seconds.
        headers: to go with the answer, whatever that will be.
        facts: to go into the log line; nothing of any body.
        status: of the answer; 0 before it began.
        complete: all of the answer was handed on.
        body_read: all of the body was read.
        refused: why the gateway refused it, for the metrics; empty where it did not.
    """

    began_s: float
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(16)}")
    headers: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    status: int = 0
    complete: bool = False
    body_read: bool = False
    refused: str = ""

    def concerns(self, request_id: str) -> None:
        """This is about a request in the queue."""
        self.headers["x-streamfleet-id"] = request_id
        self.facts["request_id"] = request_id


def call_of(request: Request) -> Call:
    """The call that a handler works on."""
    call: Call = request.state.call
    return call
