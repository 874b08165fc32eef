"""Request parameters of a call, from its headers and body. Pure.

`read_parameters` returns lane, deadline, session, program and how to stream; `check_fields` refuses bodies that no
gateway can serve; `request_id` makes the id to enqueue under; `body_to_enqueue` makes the body that is enqueued.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from streamfleet.common.durations import parse_span
from streamfleet.common.envelope import MAX_NAME_CHARS, check_deadline, check_traceparent
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    LANES,
    MESSAGES,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    Lane,
)
from streamfleet.gateway.errors import REFUSED, ApiError
from streamfleet.producer.ask import REFUSE, Ask
from streamfleet.producer.follower import place_of

HEADER_PREFIX = "X-Streamfleet-"
REQUIRED_FIELDS = {
    CHAT: "messages",
    COMPLETIONS: "prompt",
    RESPONSES: "input",
    MESSAGES: "messages",
    COUNT_TOKENS: "messages",
    EMBEDDINGS: "input",
    SCORE: "",
    RERANK: "query",
    CLASSIFY: "",
    POOLING: "",
    TOKENIZE: "",
    DETOKENIZE: "tokens",
}
"""Endpoints that callers may name, each with its required field; empty where one of several is enough."""
BATCH_ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, SCORE, RERANK)
"""Endpoints that lines of a batch may name."""
_WITHOUT_STREAM = (COUNT_TOKENS, SCORE, RERANK, CLASSIFY, POOLING, TOKENIZE, DETOKENIZE)
_GATEWAYS_RESPONSE_FIELDS = ("background", "previous_response_id")
"""Fields of the Responses API that the gateway obeys, and engines do not get unless they ask for nothing: 0.2.0 sends
those on, and a request under an Idempotency-Key has to be the same for gateways of both releases."""
_NEEDS_SERVER = re.compile(
    r"(?:web_search|file_search|code_interpreter|mcp|image_generation)"
    r"(?:_preview)?(?:_[0-9]{4}_[0-9]{2}_[0-9]{2}|_call\.[a-z_.]{1,40})?"
)
"""Types of tools that need a server of their own, some with a date; and what `include` names of their calls."""
TIERS = {
    None: Lane.NORMAL,
    "auto": Lane.NORMAL,
    "default": Lane.NORMAL,
    "scale": Lane.NORMAL,
    "priority": Lane.HIGH,
    "flex": Lane.LOW,
}
"""OpenAI's `service_tier` to lane: a price there, a priority here."""
MOST_NAME_CHARS, MOST_IGNORED_CHARS = 64, 1_024
"""Of one field's name in `x-streamfleet-ignored`, and of all together: a body may have thousands of fields."""
_UNNAMED = (None, "auto")
MOST_KEY_CHARS = 1_024
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,4}")
_EPOCH_MS = re.compile(r"[0-9]{9,16}")
_SDK_TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout")
SDK_TRIES, SDK_PAUSE_MS = 3, 8_000
"""Default number of tries of OpenAI's SDKs, and their longest pause before a try."""
SDK_GRACE_MS = 1_000
"""A deadline taken from the SDK's time-out is this much later, so that the SDK gives up first and raises its own
error. With equal times, chance would decide between that error and our 504."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what a caller may ask for.

    Attributes:
        lanes: lanes that its requests may use.
        deadline_ms: default deadline, from now.
        most_ms: latest deadline, from now.
    """

    lanes: Collection[Lane]
    deadline_ms: int
    most_ms: int


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """Parameters of one request.

    Attributes:
        lane: priority.
        deadline_ms: epoch ms, by the caller's clock; None if it gave a duration, or nothing.
        ttl_ms: the same as a duration from now, always set.
        session: the session that the request belongs to.
        program: the agent's run that it is a turn of.
        traceparent: W3C trace context.
        continue_on_disconnect: True if the request goes on when its caller leaves.
        stream: True if tokens are to be sent while they are generated.
        restart_events: True if the caller understands that a stream begins anew.
        after: id of the last chunk that the caller has.
        event_ids: True if the caller can resume its stream, so that its chunks have ids.
        tier: `service_tier` of the chosen lane; None if the caller named none.
        tells_expected: True if the caller asks for place and expected time.
        tries: how often an SDK that tries again by itself sends the request, from this try on; 0 for other callers.
        refuses_late: True if the request is refused where it will likely be late: `service_tier` has chosen
            the lane, and is `flex`.
    """

    lane: Lane
    deadline_ms: int | None
    ttl_ms: int
    session: str | None
    program: str | None
    traceparent: str | None
    continue_on_disconnect: bool
    stream: bool
    restart_events: bool
    after: str | None
    event_ids: bool
    tier: str | None
    tells_expected: bool = False
    refuses_late: bool = False
    tries: int = 0

    def ask(
        self,
        body: Mapping[str, Any],
        request_id: str,
        endpoint: str,
        tenant: str | None,
        *,
        stream: bool = False,
        refuse_late: bool = False,
    ) -> Ask:
        """Returns the request to enqueue, for a body as `body_to_enqueue` makes it."""
        return Ask(
            body=body,
            lane=self.lane,
            id=request_id,
            deadline=self.deadline_ms,
            ttl_ms=self.ttl_ms if self.deadline_ms is None else None,
            endpoint=endpoint,
            tenant=tenant,
            session=self.session,
            program=self.program,
            stream=stream,
            traceparent=self.traceparent,
            if_late=REFUSE if refuse_late else None,
            bounded=True,
        )


def read_parameters(
    headers: Mapping[str, str], body: Mapping[str, Any], bounds: Bounds, now_ms: int, *, background: bool = False
) -> RequestParameters:
    """Returns all parameters of a request.

    Args:
        headers: names in any case (as Starlette's).
        body: the OpenAI request.
        bounds: limits of what the caller may ask for.
        now_ms: epoch ms.
        background: True if nobody waits for the answer: it has time, and its SDK's time-out says nothing of it.

    Raises:
        InvalidRequest: a header or field is wrong; `param` names it.
        ApiError: the caller may not use this lane.
    """
    stream = read_flag(body, "stream")
    tries = _read_tries(headers)
    usual_ms = bounds.most_ms if background else _default_ttl_ms(headers, bounds, stream, max(1, tries))
    deadline_ms, ttl_ms = _read_deadline(headers, bounds, now_ms, usual_ms)
    lane = _read_lane(headers, body, bounds.lanes, Lane.LOW if background else Lane.NORMAL)
    return RequestParameters(
        lane=lane,
        deadline_ms=deadline_ms,
        ttl_ms=ttl_ms,
        session=_read_session(body),
        program=_label(headers.get("x-streamfleet-program", "")),
        traceparent=_read_traceparent(headers.get("traceparent")),
        continue_on_disconnect=background or _continue_on_disconnect(headers),
        stream=stream,
        restart_events=read_restart_events(headers),
        after=_read_last_event_id(headers),
        event_ids=_read_event_ids(headers),
        tier=_tier_of(lane) if body.get("service_tier") is not None else None,
        tells_expected=read_tells_expected(headers),
        refuses_late=body.get("service_tier") == "flex" and headers.get("x-streamfleet-lane") is None,
        tries=tries,
    )


def _tier_of(lane: Lane) -> str:
    """The `service_tier` that an answer names; other lanes than those of `TIERS` have that of the side they are on."""
    if lane is Lane.NORMAL:
        return "default"
    return "priority" if lane.rank < Lane.NORMAL.rank else "flex"


def _read_last_event_id(headers: Mapping[str, str]) -> str | None:
    after = headers.get("last-event-id") or None
    if after is not None:
        try:
            place_of(after)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, "Last-Event-ID") from None
    return after


def read_restart_events(headers: Mapping[str, str]) -> bool:
    """True if a reader asks for an event when its stream begins anew. Raises InvalidRequest."""
    given = headers.get("x-streamfleet-restarts", "error")
    if given not in ("error", "event"):
        raise InvalidRequest(f"must be error or event, not {given[:40]!r}", f"{HEADER_PREFIX}Restarts")
    return given == "event"


def read_tells_expected(headers: Mapping[str, str]) -> bool:
    """True if a caller asks for place and expected time. Raises InvalidRequest."""
    return _read_wish(headers, "Expected", "tell")


def _read_wish(headers: Mapping[str, str], name: str, value: str) -> bool:
    """True if a header has its only value, False if it is absent. Raises InvalidRequest."""
    given = headers.get(f"x-streamfleet-{name.lower()}")
    if given not in (None, value):
        raise InvalidRequest(f"must be {value}, not {given[:40]!r}", f"{HEADER_PREFIX}{name}")
    return given is not None


def _read_event_ids(headers: Mapping[str, str]) -> bool:
    """True if a caller shows that it can resume: others may know only `data:` lines, whatever the settings say."""
    asks = _read_wish(headers, "Event-Ids", "send")
    resumes = headers.get("last-event-id") or headers.get("idempotency-key")
    return asks or bool(resumes) or headers.get("x-streamfleet-on-disconnect") == "continue"


def check_fields(endpoint: str, body: Mapping[str, Any]) -> None:
    """Check that a body has the fields that its endpoint requires, and none that no gateway can obey.

    The engine judges everything else.

    Raises:
        InvalidRequest: a field is missing, or cannot be obeyed.
    """
    needed = REQUIRED_FIELDS[endpoint]
    if needed and body.get(needed) is None:
        raise InvalidRequest(f"is missing: {endpoint} needs it", needed, "missing_required_parameter")
    if endpoint in _WITHOUT_STREAM and body.get("stream"):
        raise InvalidRequest(f"is not supported: {endpoint} answers as a whole", "stream", "unsupported_parameter")
    if endpoint == RESPONSES and body.get("conversation"):
        text = "is not supported; a conversation goes on with previous_response_id"
        raise InvalidRequest(text, "conversation", "unsupported_parameter")


def leave_out_tools(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the body of a response without tools that need a server of their own, and the names of what was left out.

    Raises:
        InvalidRequest: there is no other tool, or `tool_choice` forces one of them.
    """
    include, of_calls = _parted(body.get("include"))
    if of_calls:
        body = {**body, "include": include}
    tools, left_out = _parted(body.get("tools"))
    names = [*(f"tools.{name}" for name in left_out), *(f"include.{name}" for name in of_calls)]
    if not left_out:
        return body, names
    why = f"needs a server of its own, which workers do not have: {', '.join(left_out[:8])}"
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, _ = _parted(choice.get("tools"))
        forced = not allowed and choice.get("mode") == "required"
        body = {**body, "tool_choice": {**choice, "tools": allowed} if allowed else "none"}
    else:
        forced = bool(_parted([choice])[1])
    if forced or not tools:
        raise InvalidRequest(why, "tool_choice" if forced else "tools", "unsupported_parameter")
    return {**body, "tools": tools}, names


def _parted(given: object) -> tuple[list[Any], list[str]]:
    """What workers take of a list of tools or of `include`, and the names of the rest."""
    kept: list[Any] = []
    names: dict[str, None] = {}
    for each in given if isinstance(given, list) else ():
        name = each.get("type") if isinstance(each, dict) else each
        if isinstance(name, str) and _NEEDS_SERVER.fullmatch(name):
            names[name] = None
        else:
            kept.append(each)
    return kept, list(names)


def ignored_text(names: Sequence[str]) -> str:
    """Names of what is ignored of a body, as `x-streamfleet-ignored` tells them: escaped, and as many as fit."""
    shown, left = [], MOST_IGNORED_CHARS
    for number, name in enumerate(names):
        text = quote(name[:MOST_NAME_CHARS].encode("utf-8", "replace"))
        left -= len(text) + 2
        if left < 0:
            shown.append(f"+{len(names) - number}")
            break
        shown.append(text)
    return ", ".join(shown)


def body_to_enqueue(body: Mapping[str, Any], served: str | None, endpoint: str = "") -> dict[str, Any]:
    """Returns the body as it is enqueued.

    Args:
        body: the OpenAI request.
        served: the workers' name of the model; None to name none.
        endpoint: the endpoint that it is for.
    """
    kept = {name: value for name, value in body.items() if name not in ("service_tier", "stream")}
    if endpoint == RESPONSES:
        kept = {name: value for name, value in kept.items() if not value or name not in _GATEWAYS_RESPONSE_FIELDS}
        kept["store"] = False  # engines may take an absent value for true
    if served is not None:
        kept["model"] = served
    return kept


def request_id(owner: str, idempotency_key: str | None) -> str:
    """Returns the id to enqueue under. It begins with its owner, so that equal keys of two owners make different ids.

    Args:
        owner: id of the caller's API key.
        idempotency_key: the caller's name for the request; None for a random id.

    Raises:
        InvalidRequest: the key is too long.
    """
    if not idempotency_key:
        return f"{owner}-{secrets.token_hex(16)}"
    if len(idempotency_key) > MOST_KEY_CHARS:
        raise InvalidRequest(f"must be at most {MOST_KEY_CHARS} characters", "Idempotency-Key")
    return f"{owner}-{hashlib.sha256(idempotency_key.encode()).hexdigest()[:40]}"


def belongs_to(owner: str, wanted: str) -> bool:
    """True if a request is this caller's."""
    return wanted.startswith(f"{owner}-") and len(wanted) <= MAX_NAME_CHARS


def _read_lane(headers: Mapping[str, str], body: Mapping[str, Any], allowed: Collection[Lane], usual: Lane) -> Lane:
    named = headers.get("x-streamfleet-lane")
    if named is not None:
        param = f"{HEADER_PREFIX}Lane"
        lane = next((each for each in LANES if each == named.strip().lower()), None)
        if lane is None:
            raise InvalidRequest(f"must be one of {', '.join(LANES)}, not {named[:40]!r}", param)
    else:
        param, tier = "service_tier", body.get("service_tier")
        if not isinstance(tier, str | None) or tier not in TIERS:
            known = ", ".join(name for name in TIERS if name)
            raise InvalidRequest(f"must be one of {known}", param)
        lane = TIERS[tier] if tier not in _UNNAMED else _nearest_lane(allowed, usual)
    if lane not in allowed:
        text = f"this API key may not use lane {lane}; it may use {', '.join(allowed)}"
        raise ApiError(403, text, "lane_not_allowed", REFUSED, param, reason="lane")
    return lane


def _read_tries(headers: Mapping[str, str]) -> int:
    """Tries of an SDK, this one included; 0 for a caller that does not count them, or that cancels when it leaves."""
    counted = headers.get("x-stainless-retry-count", "")
    if not _COUNT.fullmatch(counted) or headers.get("x-streamfleet-on-disconnect") == "cancel":
        return 0
    return max(1, SDK_TRIES - int(counted))


def _nearest_lane(allowed: Collection[Lane], wanted: Lane) -> Lane:
    """Returns the lane of a request that names none: of those that its key may use, the nearest to the usual one.

    Of two that are as near, the less urgent.
    """
    return min(allowed, key=lambda lane: (abs(lane.rank - wanted.rank), -lane.rank))


def _read_deadline(headers: Mapping[str, str], bounds: Bounds, now_ms: int, usual_ms: int) -> tuple[int | None, int]:
    if (given := headers.get("x-streamfleet-deadline-ms")) is not None:
        if not _EPOCH_MS.fullmatch(given):
            raise InvalidRequest(f"must be epoch milliseconds, not {given[:40]!r}", f"{HEADER_PREFIX}Deadline-Ms")
        left_ms = min(bounds.most_ms, check_deadline(int(given), f"{HEADER_PREFIX}Deadline-Ms") - now_ms)
        return now_ms + left_ms, max(0, left_ms)
    if (given := headers.get("x-streamfleet-ttl")) is not None:
        return None, min(bounds.most_ms, parse_span(given, f"{HEADER_PREFIX}Ttl"))
    return None, min(bounds.most_ms, usual_ms)


def _default_ttl_ms(headers: Mapping[str, str], bounds: Bounds, stream: bool, tries: int) -> int:
    """Default duration: the SDK's time-out of all tries, which it sends by itself; else the configured one."""
    for name in _SDK_TIMEOUTS:
        # The caller did not write this header, so an odd value is not an error.
        if (given := headers.get(name)) is not None and _SECONDS.fullmatch(given) and float(given) > 0:
            sdk_ms = round(float(given) * 1000) * tries + SDK_PAUSE_MS * (tries - 1) + SDK_GRACE_MS
            # For a stream, the SDK's time-out is the longest silence: the whole stream may take longer.
            return max(sdk_ms, bounds.deadline_ms) if stream else sdk_ms
    return bounds.deadline_ms


def _read_session(body: Mapping[str, Any]) -> str | None:
    for name in ("prompt_cache_key", "user"):
        value = body.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise InvalidRequest("must be a string", name, "invalid_type")
        return _label(value)
    return None


def _label(value: str) -> str | None:
    """The value, or its hash where it cannot be a session or program; None for an empty one."""
    if len(value) <= MAX_NAME_CHARS and value.isprintable():
        return value or None
    return hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()


def _read_traceparent(value: str | None) -> str | None:
    """A W3C trace context; None for an invalid one, as W3C requires."""
    try:
        return check_traceparent(value) if value else None
    except InvalidRequest:
        return None


def _continue_on_disconnect(headers: Mapping[str, str]) -> bool:
    given = headers.get("x-streamfleet-on-disconnect")
    if given is None:
        # A caller that names the request means to ask for it again.
        return bool(headers.get("idempotency-key"))
    if given not in ("cancel", "continue"):
        raise InvalidRequest(f"must be cancel or continue, not {given[:40]!r}", f"{HEADER_PREFIX}On-Disconnect")
    return given == "continue"


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """A flag of a body; False if it is absent. Raises InvalidRequest."""
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequest("must be true or false", name, "invalid_type")
    return bool(value)
