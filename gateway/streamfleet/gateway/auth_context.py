"""Authenticated caller of an endpoint of files, batches or the simple service.

`authenticate` admits the sender of a request and returns the parts of the gateway that its handler needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.authentication import Caller
from streamfleet.gateway.batches.service import Batching
from streamfleet.gateway.body import Holding
from streamfleet.gateway.call import Call, call_of
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.gateway import Gateway, gateway_of


@dataclass(frozen=True, slots=True)
class AuthContext:
    """An authenticated caller, and the gateway's parts for its handler."""

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
    def bodies(self) -> Holding:
        """Room for the body."""
        return self.gateway.bodies.hold(self.caller.tenant)

    @property
    def settings(self) -> GatewaySettings:
        return self.gateway.settings


async def authenticate(request: Request, requests: int = 0) -> AuthContext:
    """Admit a caller.

    Args:
        request: has an API key.
        requests: number of requests that it counts as.

    Raises:
        ApiError: the key is missing or wrong, or a limit is reached.
    """
    gateway, call = gateway_of(request), call_of(request)
    caller = await gateway.authenticator.admit(request, requests)
    call.facts |= {"key": caller.owner, "tenant": caller.tenant} if gateway.keys_on else {}
    call.headers |= caller.limit_headers()
    return AuthContext(gateway, call, caller)
