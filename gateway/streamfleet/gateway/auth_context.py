"""Authenticated caller of an endpoint, and all that its handler may reach.

`authenticate` admits the sender of a request, names it in the log line, and adds its remaining limits to the answer.
Handlers read the body and the headers through the `AuthContext` that it returns.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.authentication import Caller
from streamfleet.gateway.batches.service import Batching
from streamfleet.gateway.body import SMALL_ANSWER_BYTES, read_body
from streamfleet.gateway.call import Call, call_of
from streamfleet.gateway.disconnect import DisconnectWatcher
from streamfleet.gateway.document import OWN_HEADERS
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.gateway import Gateway, gateway_of
from streamfleet.gateway.request_parameters import Bounds, RequestParameters, ignored_text, read_parameters
from streamfleet.producer.handle import Handle

SLOW_S = 1.0
"""After a body that took longer to arrive, its key is checked again."""


@dataclass(frozen=True, slots=True)
class AuthContext:
    """An authenticated caller, its HTTP request, and the gateway's parts for the handler."""

    request: Request
    gateway: Gateway
    call: Call
    caller: Caller

    @property
    def tenant(self) -> str:
        """Tenant whose files and batches the caller sees; empty where keys are off."""
        return self.caller.tenant or ""

    @property
    def batching(self) -> Batching:
        return self.gateway.batching

    @property
    def files(self) -> Files:
        return self.gateway.batching.files

    @property
    def settings(self) -> GatewaySettings:
        return self.gateway.settings

    def watcher(self, lane: Lane | None = None) -> DisconnectWatcher:
        """Returns what waits on behalf of the caller, with the lane that its request uses."""
        gateway = self.gateway
        calls, digest = gateway.authenticator.open_calls, self.caller.digest
        return DisconnectWatcher(self.request.receive, gateway.stopping, calls, digest, lane)

    async def read_body(self, most_bytes: int, setting: str = "") -> bytes:
        """Read the request's body. Raises like `body.read_body`, and ApiError if its key has ended meanwhile."""
        room, monotonic = self.gateway.bodies.hold(self.caller.tenant), self.gateway.clock.monotonic
        began_s = monotonic()
        raw = await read_body(self.request, most_bytes, room, setting)
        if monotonic() - began_s > SLOW_S:
            await self.gateway.authenticator.admit(self.request, 0)
        return raw

    def hold_body(self, size: int) -> None:
        """Count what is added to the request's body as held, as long as that. Raises ApiError if there is no room."""
        room, release = self.gateway.bodies.hold(self.caller.tenant), self.call.release
        room.add(size)

        def release_both() -> None:
            room.release()
            release()

        self.call.release = release_both

    def hold_answer(self, size: int) -> None:
        """Count a large answer as held until it is sent. Raises ApiError if there is no room for it."""
        if size > SMALL_ANSWER_BYTES:
            self.call.hold_answer(self.gateway.answers, size)

    async def hold_answer_soon(self, size: int) -> None:
        """The same for an answer that was computed for the caller: it waits a moment for room."""
        if size > SMALL_ANSWER_BYTES:
            await self.call.hold_answer_soon(self.gateway.answers, size)

    def read_parameters(self, body: Mapping[str, Any], *, background: bool = False) -> RequestParameters:
        """Read the parameters of a queued request, from the headers and the body. Raises like `read_parameters`."""
        bounds = Bounds(
            self.caller.lanes,
            self.settings.gateway_deadline_ms,
            self.settings.gateway_max_wait_ms,
        )
        now_ms = self.gateway.clock.now_ms()
        parameters = read_parameters(self.request.headers, body, bounds, now_ms, background=background)
        self.show_lane(parameters.lane, Lane.LOW if background else Lane.NORMAL)
        return parameters

    def show_lane(self, lane: Lane, usual: Lane) -> None:
        """Name the lane in the answer's headers if the caller's key may not use the usual one."""
        if usual not in self.caller.lanes:
            self.call.headers["x-streamfleet-lane"] = lane.value

    def show_expected(self, place: int | None, wait_ms: float | None) -> None:
        """Add place and expected time of a request to the answer's headers, as far as they are known."""
        if place is not None:
            self.call.headers["x-streamfleet-place"] = str(place)
        if wait_ms is not None:
            self.call.headers["x-streamfleet-expected-ms"] = str(round(wait_ms))

    def show_ignored(self, names: Sequence[str]) -> None:
        """Name the fields that the model ignores in the answer's headers."""
        if names:
            self.call.headers["x-streamfleet-ignored"] = ignored_text(names)

    async def show_status(self, handle: Handle) -> None:
        """The same of a request that is in its queue already."""
        status = await handle.status()
        self.show_expected(status.place, None if status.expected_s is None else status.expected_s * 1000)

    def show_limits(self) -> None:
        """Add the caller's remaining limits to the answer's headers."""
        self.call.headers |= self.caller.limit_headers()


async def authenticate(request: Request, requests: int = 0) -> AuthContext:
    """Admit a caller.

    Args:
        request: has an API key.
        requests: number of requests that it counts as.

    Raises:
        ApiError: the key is missing or wrong, or a limit is reached.
        InvalidRequest: it has a mistyped header.
    """
    gateway, call = gateway_of(request), call_of(request)
    caller = await gateway.authenticator.admit(request, requests)
    call.admit(caller.tenant)
    if caller.digest:
        call.until_key_ends = partial(gateway.authenticator.open_calls.during, caller.digest)
    call.facts |= {"key": caller.owner, "tenant": caller.tenant} if gateway.keys_on else {}
    context = AuthContext(request, gateway, call, caller)
    context.show_limits()
    _check_own_headers(request)
    return context


def _check_own_headers(request: Request) -> None:
    """Refuse a mistyped header of our own prefix, which would else be passed over in silence."""
    for name in request.headers:
        if name.startswith("x-streamfleet-") and name not in OWN_HEADERS:
            near = difflib.get_close_matches(name, OWN_HEADERS, 1)
            advice = f"did you mean {near[0].title()}?" if near else "GET /openapi.json has all of them"
            raise InvalidRequest(f"the gateway knows no such header; {advice}", name[:80].title())
