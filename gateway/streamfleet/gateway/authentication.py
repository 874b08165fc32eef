"""Authentication and rate limits: whose API key a request has, and what that key may send.

`Authenticator.admit` takes a request and returns its `Caller`, or raises an ApiError. It reads keys and limits from
Redis through `key_cache`. Where keys are off, it refuses only pages of other sites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import Request

from streamfleet.common.clock import Clock
from streamfleet.common.protocol import LANES, Lane
from streamfleet.gateway.api_keys import KeyRecord, digest_of, looks_like_a_key
from streamfleet.gateway.broker.api_keys import GatewayBroker, Left, Verdict
from streamfleet.gateway.call import call_of
from streamfleet.gateway.errors import NOT_AGAIN, REFUSED, ApiError, retry_after
from streamfleet.gateway.key_cache import KeyCache
from streamfleet.gateway.messages.translation import limit_headers
from streamfleet.gateway.open_calls import OpenCalls

ANONYMOUS = "open"
"""Owner of requests where keys are off; no key has this id."""
_OWN_SITE = frozenset({"same-origin", "none"})
_NEXT = (
    "whoever runs this gateway makes keys with `streamfleet gateway keys create NAME`, or turns them off, on a trusted "
    "network, with STREAMFLEET_GATEWAY_KEYS=off"
)
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


@dataclass(slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        owner: id of the API key.
        tenant: the key's tenant; None where keys are off.
        lanes: lanes that the key may use.
        requests, tokens: what remains of the key's limits.
        operator: may see everybody's requests, and act on them.
        digest: of the API key; empty where keys are off.
        now_ms: time of its call, for callers whose headers tell times: those that read Anthropic's form.
    """

    owner: str = ANONYMOUS
    tenant: str | None = None
    lanes: Sequence[Lane] = LANES
    requests: Left = field(default_factory=lambda: Left(0, 0, 0))
    tokens: Left = field(default_factory=lambda: Left(0, 0, 0))
    operator: bool = False
    digest: str = ""
    now_ms: float | None = None

    def limit_headers(self) -> dict[str, str]:
        """Remaining limits as rate limit headers of the API that it speaks; no header for an absent limit."""
        found: dict[str, str] = {}
        for name, left in (("requests", self.requests), ("tokens", self.tokens)):
            if left.limit and self.now_ms is not None:
                found |= limit_headers(name, left.limit, max(0, left.left), self.now_ms + left.full_ms)
            elif left.limit:
                found[f"x-ratelimit-limit-{name}"] = str(left.limit)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, left.left))
                found[f"x-ratelimit-reset-{name}"] = format_duration(left.full_ms)
        return found


class Authenticator:
    """Authenticates callers, and applies their rate limits.

    Args:
        broker: keys in Redis; None where keys are off.
        clock: for the age of cached keys.
        follow: gets the records of keys in use.
        origins: sites whose pages may call from a browser; ``*`` for all.

    Attributes:
        open_calls: calls that wait; they end when their keys do.
    """

    def __init__(
        self,
        broker: GatewayBroker | None,
        clock: Clock,
        follow: Callable[[KeyRecord], None],
        origins: Sequence[str] = (),
    ) -> None:
        self._broker, self._clock = broker, clock
        self._origins = origins
        self.open_calls = OpenCalls()
        self._keys = None if broker is None else KeyCache(broker, clock, follow, self.open_calls)

    def start(self) -> None:
        """Cache keys from now on."""
        if self._keys is not None:
            self._keys.start()

    async def close(self) -> None:
        """Drop the cache."""
        if self._keys is not None:
            await self._keys.close()

    async def admit(self, request: Request, requests: int = 1) -> Caller:
        """Returns the sender of a request.

        Args:
            request: has an Authorization header, or `x-api-key`.
            requests: number of requests that it counts as; 0 for one that no limit applies to.

        Raises:
            ApiError: the key is missing or wrong, or a limit is reached. Where keys are off: another site asks.
        """
        if self._keys is None:
            if not {"*", request.headers.get("origin")} & set(self._origins):
                check_own_site(request.headers)
            return Caller(operator=True)
        secret = _secret(request.headers)
        admission = await self._keys.admit(secret, requests)
        record = admission.record
        if record is None:
            raise _unauthorized("the API key is not valid: it was mistyped, or revoked")
        if admission.verdict is Verdict.ENDED:
            raise _unauthorized("the API key has expired")
        caller = Caller(record.id, record.tenant, record.lanes, admission.requests, admission.tokens, record.operator)
        caller.digest = digest_of(secret)
        if call_of(request).anthropic:
            caller.now_ms = self._clock.now_ms()
        if admission.verdict is not Verdict.LET_IN:
            what = "requests" if admission.verdict is Verdict.NO_REQUEST_LEFT else "tokens"
            raise _limit_reached(what, caller, admission.wait_ms)
        return caller


def over_token_limit(caller: Caller, tokens: int, wait_ms: int | None = None) -> ApiError:
    """Returns the refusal of a request for more tokens than are left, or, without `wait_ms`, than the limit."""
    if wait_ms is not None:
        return _limit_reached("tokens", caller, wait_ms)
    text = f"about {tokens} tokens are asked for, and {caller.tokens.limit} a minute is the limit of this API key"
    headers = {**caller.limit_headers(), **NOT_AGAIN}
    return ApiError(429, text, "rate_limit_exceeded", "tokens", headers=headers, reason="tokens_per_minute")


def check_own_site(headers: Mapping[str, str]) -> None:
    """Refuse a request from another site's page: where keys are off, such a page needs only its visitor's browser.

    Raises:
        ApiError: the browser says that another site sends it.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site.lower() not in _OWN_SITE:
        raise _cross_site("Sec-Fetch-Site")
    origin = headers.get("origin")
    if origin is not None and not _is_same_host(origin, headers.get("host", "")):
        raise _cross_site("Origin")


def _is_same_host(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(host) and parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _cross_site(header: str) -> ApiError:
    text = "this comes from a page of another site, which may neither read nor act here"
    return ApiError(403, text, "cross_site", REFUSED, param=header, headers=NOT_AGAIN, reason="key")


def format_duration(ms: float) -> str:
    """A duration as OpenAI writes it: ``20ms``, ``1.5s``, ``6m0s``."""
    if ms < 1000:
        return f"{max(0, round(ms))}ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"


def _secret(headers: Mapping[str, str]) -> str:
    given, key = headers.get("authorization"), headers.get("x-api-key")  # the second is that of Anthropic's clients
    return _bearer_token(given or (f"Bearer {key}" if key else None))


def _bearer_token(header: str | None) -> str:
    if not header:
        raise _unauthorized("there is no API key: send it as 'Authorization: Bearer sf-…'")
    match = _BEARER.fullmatch(header)
    if match is None or not looks_like_a_key(match[1]):
        raise _unauthorized("the API key is not valid: it has the form 'Authorization: Bearer sf-…'")
    return match[1]


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, f"{message}; {_NEXT}", "invalid_api_key", headers={"www-authenticate": "Bearer"}, reason="key")


def _limit_reached(what: str, caller: Caller, wait_ms: int) -> ApiError:
    limit = caller.requests.limit if what == "requests" else caller.tokens.limit
    text = f"the limit of {limit} {what} a minute of this API key is reached; try again in {format_duration(wait_ms)}"
    headers = {**caller.limit_headers(), **retry_after(wait_ms / 1000), "retry-after-ms": str(wait_ms)}
    return ApiError(429, text, "rate_limit_exceeded", what, headers=headers, reason=f"{what}_per_minute")
