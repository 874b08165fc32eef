"""Checks callback URLs, and resolves their hosts to allowed addresses.

Names are resolved on threads of their own. The event loop's default threads resolve Redis too, and a slow name server
for a caller's host would keep the gateway from reconnecting.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakValueDictionary

import httpx

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.webhooks.addresses import is_allowed

MOST_URL_CHARS = 2_048
NOT_A_TARGET = "names a host that does not exist, or that webhooks may not be sent to"
"""One text for both cases, so that nobody learns which names exist in the internal network."""
LOOK_UPS, LOOK_UPS_PER_TENANT = 32, 4
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and port to addresses; raises NameUnknown, or another OSError for a temporary failure."""


class NameUnknown(OSError):
    """The host does not exist."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Targets that webhooks may have.

    Attributes:
        allow_private: allow private and loopback addresses.
        allow_http: allow URLs without encryption.
        ports: allowed ports; 0 among them for any.
    """

    allow_private: bool = False
    allow_http: bool = False
    ports: tuple[int, ...] = (80, 443)


def read_target(text: object, policy: Policy, param: str = "callback_url") -> httpx.URL:
    """Returns a callback URL after all checks that need no look-up of its name.

    The check and the request use the same parser: two parsers might find different hosts in one text.

    Raises:
        InvalidRequest: webhooks may not be sent to this URL.
    """
    if not isinstance(text, str):
        raise InvalidRequest("must be a URL as a string", param, "invalid_type")
    if len(text) > MOST_URL_CHARS or not re.fullmatch(r"[!-~]+", text) or "\\" in text:
        raise InvalidRequest(f"must be 1 to {MOST_URL_CHARS} printable ASCII characters without blanks", param)
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"is no URL: {error}", param) from None
    schemes = ("https", "http") if policy.allow_http else ("https",)
    if url.scheme not in schemes:
        raise InvalidRequest(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}", param)
    if url.userinfo:
        raise InvalidRequest("must not contain a user or password; the signature tells who sends", param)
    if url.fragment:
        raise InvalidRequest("must not contain a fragment (#…), which is never sent", param)
    port = port_of(url)
    if not (1 <= port <= 65_535) or (0 not in policy.ports and port not in policy.ports):
        raise InvalidRequest(f"must use port {' or '.join(map(str, policy.ports))}, not {port}", param)
    _check_host(host_of(url), policy, param)
    return url


def host_of(url: httpx.URL) -> str:
    """Returns the host in the ASCII form that is looked up; `url.host` would decode it to Unicode."""
    return url.raw_host.decode("ascii")


def port_of(url: httpx.URL) -> int:
    """Returns the port of a URL, or the default of its scheme."""
    return _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def _check_host(host: str, policy: Policy, param: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if not is_allowed(host, policy.allow_private):
            raise InvalidRequest("leads to an address that webhooks may not be sent to", param)
        return
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise InvalidRequest("must have the name of a host, or an address", param)
    # 2130706433, 0x7f.1, 0177.0.0.1 and 127.1 are all 127.0.0.1 to a resolver.
    if _NUMERIC.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise InvalidRequest("must have an IPv4 address as four decimal numbers, such as 203.0.113.7", param)


class LookUps:
    """Resolves names, a few at once for each tenant.

    Args:
        resolver: resolves a name.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str, port: int, tenant: str) -> Sequence[str]:
        """Returns the addresses of a host, in the resolver's order. Raises as `Resolver`."""
        slots = self._slots.setdefault(tenant, asyncio.Semaphore(LOOK_UPS_PER_TENANT))
        await slots.acquire()
        look_up = asyncio.ensure_future(self._resolver(host, port))
        look_up.add_done_callback(lambda _: slots.release())
        # A thread cannot be stopped, so a look-up keeps its slot until it ends, even if its caller left.
        return await asyncio.shield(look_up)


async def resolve_target(
    url: httpx.URL, policy: Policy, look_ups: LookUps, tenant: str, param: str = "callback_url"
) -> list[str]:
    """Returns the addresses of a target, resolved once for this tenant, all of them checked.

    Raises:
        InvalidRequest: webhooks may not be sent to one of its addresses.
        NameUnknown: the host does not exist, or has no address.
        OSError: the name cannot be resolved at the moment.
    """
    found = list(dict.fromkeys(await look_ups.addresses(host_of(url), port_of(url), tenant)))
    if not found:
        raise NameUnknown(socket.EAI_NODATA, "no address")
    # One forbidden address is enough to refuse: a name with public and internal addresses is probably an attack.
    if not all(is_allowed(address, policy.allow_private) for address in found):
        raise InvalidRequest(NOT_A_TARGET, param)
    return found


_THREADS = ThreadPoolExecutor(LOOK_UPS, "webhook-names")


async def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a host from the system's resolver, in its order."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(
            _THREADS, functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        )
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            raise NameUnknown(error.errno, "no such host") from None
        raise
    except UnicodeError:
        raise NameUnknown(socket.EAI_NONAME, "no such host") from None
    return [str(address[4][0]) for address in found]
