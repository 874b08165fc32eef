"""Decides which IP addresses a webhook may be sent to. Pure.

A callback URL makes this process send a request for its author. So only public addresses are allowed, and of IPv6 only
ranges that are assigned: a list of forbidden ranges would soon be incomplete.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum

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
