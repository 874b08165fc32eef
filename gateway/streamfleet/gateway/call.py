"""State of one HTTP request in progress, for its log line, its metrics and the headers of its answer.

`edge` makes it; handlers fill it through `call_of`. It touches nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

if TYPE_CHECKING:
    from streamfleet.gateway.body import Bodies, Holding
    from streamfleet.gateway.errors import ApiError


def _nothing() -> None:
    """No body is held, or no connection is to be kept."""


def _no_key(end: Callable[[ApiError], None]) -> AbstractContextManager[None]:  # noqa: ARG001 - no key ends
    return nullcontext()


@dataclass(slots=True)
class Call:
    """One HTTP request.

    Attributes:
        id: of this HTTP request, random. The queued request has another id, which several may ask for.
        began_s: when its headers were read, in seconds of the loop's clock.
        headers: added to the answer, error or not.
        facts: added to the log line; nothing from a body.
        status: of the answer; 0 before it began.
        complete: True if the whole answer was handed to the connection.
        midway: True while a part of the answer was sent in half: nothing else may be sent.
        body_read: True if the whole body was read.
        refused: reason why the gateway refused it, for the metrics; empty if it did not.
        release: frees what its body holds; called at the end in any case.
        tenant: of its caller; empty before it is admitted, None where keys are off.
        until_key_ends: makes what calls a function with an error if the caller's key ends within its `with`.
        keep_connection: keeps its connection from being closed for a new one.
        answer: bytes of its answer that are held; None for a small answer.
        anthropic: True if its caller reads Anthropic's form.
    """

    began_s: float
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(16)}")
    headers: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    status: int = 0
    complete: bool = False
    midway: bool = False
    body_read: bool = False
    refused: str = ""
    release: Callable[[], None] = _nothing
    tenant: str | None = ""
    until_key_ends: Callable[[Callable[[ApiError], None]], AbstractContextManager[None]] = _no_key
    keep_connection: Callable[[], None] = _nothing
    answer: Holding | None = None
    anthropic: bool = False

    def admit(self, tenant: str | None) -> None:
        """Record whose request it is: its connection is then kept until it is answered."""
        self.tenant = tenant
        self.keep_connection()

    def hold_answer(self, answers: Bodies, size: int) -> None:
        """Count bytes of the answer as held until it is sent. Raises ApiError if there is no room for them."""
        self._holding(answers).add(size)

    async def hold_answer_soon(self, answers: Bodies, size: int) -> None:
        """The same for an answer that was computed for the caller: it waits a moment for room."""
        await self._holding(answers).add_soon(size)

    def _holding(self, answers: Bodies) -> Holding:
        if self.answer is None:
            self.answer = answers.hold(self.tenant)
        return self.answer

    def end(self) -> None:
        """Free what the request holds."""
        self.release()
        if self.answer is not None:
            self.answer.release()

    def set_request_id(self, request_id: str) -> None:
        """Record the id of the queued request that this HTTP request is about."""
        self.headers["x-streamfleet-id"] = request_id
        self.facts["request_id"] = request_id


def call_of(request: Request) -> Call:
    """Returns the state of the HTTP request that a handler works on."""
    call: Call = request.state.call
    return call
