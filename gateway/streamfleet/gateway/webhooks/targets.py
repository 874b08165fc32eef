"""Targets of webhooks: checks callback URLs, resolves their hosts, and decides which addresses are allowed.

A callback URL makes this process send a request for its author. So only public addresses are allowed, and of IPv6 only
ranges that are assigned: a list of forbidden ranges would soon be incomplete. Names are resolved on threads of their
own, because a slow name server for a caller's host must not keep the gateway from reconnecting to Redis.
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
from enum import StrEnum
from weakref import WeakValueDictionary

import httpx

from streamfleet.common.errors import InvalidRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Kind(StrEnum):
    """Class of an address."""

    PUBLIC = "public"
    PRIVATE = "private"  # allowed if the operator says so
    FORBIDDEN = "forbidden"  # never allowed


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Cloud metadata services: some inside private ranges, one at an address that looks public.
_METADATA = _networks("100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::254/128", "fd20:ce::254/128")
_PRIVATE = _networks(
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"
)  # fmt: skip
_NOT_PUBLIC = _networks(
    # IPv4: this network, link-local, protocols, documentation, relays, benchmarks, multicast, reserved and broadcast
    "0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24",
    "192.88.99.0/24", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
    "240.0.0.0/4",
    # IPv6, within what is assigned: protocols with Teredo, documentation, direct delegation
    "2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20",
)  # fmt: skip
_ASSIGNED = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")


def classify(address: Address) -> Kind:
    """Returns the class of an address; of an address that contains an IPv4 address, the class of that one."""
    inner = _embedded_ipv4(address)
    if inner is not None:
        return classify(inner)
    if any(address in network for network in _METADATA):
        return Kind.FORBIDDEN
    if any(address in network for network in _PRIVATE):
        return Kind.PRIVATE
    if any(address in network for network in _NOT_PUBLIC):
        return Kind.FORBIDDEN
    if isinstance(address, ipaddress.IPv6Address) and address not in _ASSIGNED:
        return Kind.FORBIDDEN
    return Kind.PUBLIC


def is_allowed(text: str, allow_private: bool) -> bool:
    """True if webhooks may be sent to this address, given as text by a resolver."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    kind = classify(address)
    return kind is Kind.PUBLIC or (allow_private and kind is Kind.PRIVATE)


def _embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """Returns the IPv4 address inside an IPv6 address: mapped, NAT64 or 6to4; None if there is none."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _SIX_TO_FOUR:
        return ipaddress.IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


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


class NeverAllowed(InvalidRequest):
    """No gateway's settings allow webhooks to this address."""


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
    port = _port_of(url)
    if not (1 <= port <= 65_535) or (0 not in policy.ports and port not in policy.ports):
        raise InvalidRequest(f"must use port {' or '.join(map(str, policy.ports))}, not {port}", param)
    _check_host(host_of(url), policy, param)
    return url


def host_of(url: httpx.URL) -> str:
    """Returns the host in the ASCII form that is looked up; `url.host` would decode it to Unicode."""
    return url.raw_host.decode("ascii")


def _port_of(url: httpx.URL) -> int:
    """Returns the port of a URL, or the default of its scheme."""
    return _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def _check_host(host: str, policy: Policy, param: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if not is_allowed(host, policy.allow_private):
            raise _refusal("leads to an address that webhooks may not be sent to", [host], param)
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
        InvalidRequest: webhooks may not be sent to one of its addresses; NeverAllowed if no settings allow it.
        NameUnknown: the host does not exist, or has no address.
        OSError: the name cannot be resolved at the moment.
    """
    found = list(dict.fromkeys(await look_ups.addresses(host_of(url), _port_of(url), tenant)))
    if not found:
        raise NameUnknown(socket.EAI_NODATA, "no address")
    # One forbidden address is enough to refuse: a name with public and internal addresses is probably an attack.
    if not all(is_allowed(address, policy.allow_private) for address in found):
        raise _refusal(NOT_A_TARGET, found, param)
    return found


def _refusal(message: str, addresses: Sequence[str], param: str) -> InvalidRequest:
    possible = all(is_allowed(address, allow_private=True) for address in addresses)
    return (InvalidRequest if possible else NeverAllowed)(message, param)


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
