"""All errors that streamfleet raises; each tells whether a retry can help."""

from __future__ import annotations

import json
import re
from typing import Any


class StreamfleetError(Exception):
    """Base of every error that streamfleet raises on purpose.

    Attributes:
        retryable: trying the same again can help.
        accepted: requests of a bulk call that were accepted before the error, in order; empty for other calls.
    """

    retryable = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.accepted: list[Any] = []


class InvalidRequest(StreamfleetError):
    """The request itself is wrong; no retry can help.

    Attributes:
        message: the mistake and its correction, for people.
        param: name of the offending field, dotted for fields inside the body.
        code: short machine-readable name of the kind of error.
    """

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.message = message
        self.param = param
        self.code = code

    def to_openai(self) -> str:
        """The error object of the OpenAI API, as JSON text."""
        return openai_error(naming(self.message, self.param), "invalid_request_error", self.param, self.code)


class UnknownRequest(InvalidRequest):
    """The queue has never seen the id that is to be cancelled, or its result has expired; nothing was changed."""

    def __init__(self, request_id: str) -> None:
        text = f"this queue has never seen request {request_id[:256]}, or its result has expired"
        super().__init__(text, "id", "request_not_found")


class Conflict(StreamfleetError):
    """Another request with different content already has this id.

    Attributes:
        accepted: the requests of the call that were accepted, in order (bulk calls only).
    """


class QueueFull(StreamfleetError):
    """The lane holds as many requests or bytes as its limits allow; the message names the limit. Try again later.

    Attributes:
        lane: name of the lane that is full.
        accepted: the requests of the call that were accepted, in order (bulk calls only).
        tenant_percent: part of the lane's limits that a tenant may have waiting while others use the queue, if that is
            what is full; else 0.
    """

    retryable = True

    def __init__(self, message: str, lane: str, accepted: list[Any] | None = None, *, tenant_percent: int = 0) -> None:
        super().__init__(message)
        self.lane, self.tenant_percent = lane, tenant_percent
        self.accepted = [] if accepted is None else accepted


class LikelyLate(StreamfleetError):
    """A request that asks to be refused would likely be late; nothing was enqueued. Try again with more time, or later.

    Attributes:
        lane: name of its lane.
        wait_s, run_s: seconds until a worker would take it, and of a usual run.
        late_s: seconds after its deadline at which it would end.
    """

    retryable = True

    def __init__(self, lane: str, wait_s: float, run_s: float, late_s: float) -> None:
        super().__init__(
            f"lane {lane}: it would be taken in {wait_s:.1f} s, and would run for {run_s:.1f} s: that is "
            f"{late_s:.1f} s after its deadline. Give it more time, or try again later"
        )
        self.lane, self.wait_s, self.run_s, self.late_s = lane, wait_s, run_s, late_s


class BrokerUnavailable(StreamfleetError):
    """Redis cannot be reached; the message names the address without its password.

    Attributes:
        accepted: the requests that are known to be accepted, in order (bulk calls only). Later ones may have been
            accepted
        without an answer: sending all again with the same ids is safe.
    """

    retryable = True


class BrokerOutOfMemory(StreamfleetError):
    """Redis is at its memory limit and refuses new requests; running ones still finish.

    Attributes:
        accepted: as for BrokerUnavailable.
    """

    retryable = True


class NotReplicated(StreamfleetError):
    """Redis took the requests, but too few replicas had them in time: a failover now could lose them.

    Enqueueing the same again with the same ids is safe, and waits for the replicas again.

    Attributes:
        accepted: as for BrokerUnavailable; all of them are replicated.
        unconfirmed: the requests of the last call, in order. They are in the queue and may run at any moment.
    """

    retryable = True

    def __init__(self, message: str, unconfirmed: list[Any] | None = None) -> None:
        super().__init__(message)
        self.unconfirmed = [] if unconfirmed is None else unconfirmed


class ResultTimeout(StreamfleetError, TimeoutError):
    """The result did not arrive in time; the request itself continues."""

    retryable = True


class RequestLost(StreamfleetError):
    """Redis accepted a request, and has neither the request nor its result any more.

    A failover or a restart of Redis lost it, it was deleted, or its result has expired.
    Enqueueing it again with the same id is safe.

    Attributes:
        id: the request id; of several, the first.
        ids: ids of all lost requests that were waited for together, in the order of detection.
    """

    retryable = True

    def __init__(self, *ids: str) -> None:
        names = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
        super().__init__(
            f"request {names}: Redis accepted it, and has neither it nor its result any more (a failover or a "
            "restart lost it, or it was deleted): enqueue it again with the same id, which is safe"
        )
        self.id, self.ids = ids[0], ids


class RequestFailed(StreamfleetError):
    """A request ended without success.

    Attributes:
        id: the request id.
        status: ``failed``, ``expired``, ``cancelled`` or ``dead``.
        error: the OpenAI-shaped error object, ``{"message": …, "type": …, "param": …, "code": …}``.
    """

    def __init__(self, request_id: str, status: str, error: dict[str, Any]) -> None:
        super().__init__(f"request {request_id} {status}: {error.get('message', 'no message')}")
        self.id = request_id
        self.status = status
        self.error = error


class ClientClosed(StreamfleetError, RuntimeError):
    """The client was closed, or was opened by another process that then forked this one.

    A call that `close` interrupts ends with this error at once. If it was enqueueing a request, Redis may or may not
    have accepted it: if the caller chose the id, `status` tells, and enqueueing it again is safe.

    Attributes:
        accepted: as for BrokerUnavailable.
    """

    retryable = True


class WrongEventLoop(StreamfleetError, RuntimeError):
    """The client was opened in another event loop: by an earlier `asyncio.run`, or by the loop of another thread."""


class SettingsError(StreamfleetError):
    """One or more settings are wrong; the message has one line for each."""


class UnknownProtocol(SettingsError):
    """The queue has a protocol that this version of streamfleet does not know; the message says what to do."""


class NotPermitted(SettingsError):
    """The Redis user that REDIS_URL names lacks a permission; the message names it."""


def openai_error(message: str, kind: str, param: str | None, code: str | None) -> str:
    """JSON text of an OpenAI error object, ``{"error": {"message", "type", "param", "code"}}``."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


_WITHOUT_SUBJECT = re.compile(r"(must|may|is|has|needs|holds|cannot)\b")  # "must be a list of ids", of the field ids


def naming(message: str, param: str | None) -> str:
    """The message, with the field before it if it does not name it: SDKs show the message alone."""
    named = re.search(rf"(?<!\w){re.escape(param or '')}(?!\w)", message)
    if not param or (named and not _WITHOUT_SUBJECT.match(message)):
        return message
    return f"{param}: {message}"
