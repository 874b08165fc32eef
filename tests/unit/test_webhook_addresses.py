"""Targets of webhooks: every kind of address, every way of writing one, and what a URL may have in it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.webhooks.targets import (
    Kind,
    LookUps,
    NameUnknown,
    Policy,
    classify,
    is_allowed,
    read_target,
    resolve_target,
)

PUBLIC = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111",
          "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1")  # fmt: skip
PRIVATE = ("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "127.0.0.1",
           "127.255.255.254", "::1", "fd00::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
           "64:ff9b::7f00:1", "2002:a00:1::1", "2002:7f00:1::")  # fmt: skip
FORBIDDEN = ("169.254.169.254", "169.254.0.1", "0.0.0.0", "0.1.2.3", "192.0.0.192", "192.0.2.1",  # noqa: S104
             "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
             "255.255.255.255", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "::", "fe80::1", "fec0::1",
             "ff02::1", "2001:db8::1", "2001::1", "100::1", "5f00::1", "3fff::1", "64:ff9b:1::1", "::127.0.0.1",
             "::8.8.8.8", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
             "::ffff:0:8.8.8.8")  # fmt: skip


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        *((text, Kind.PUBLIC) for text in PUBLIC),
        *((text, Kind.PRIVATE) for text in PRIVATE),
        *((text, Kind.FORBIDDEN) for text in FORBIDDEN),
    ],
)
def test_the_kind_of_an_address(address: str, kind: Kind) -> None:
    assert classify(ipaddress.ip_address(address)) is kind
    assert is_allowed(address, allow_private=False) == (kind is Kind.PUBLIC)
    assert is_allowed(address, allow_private=True) == (kind is not Kind.FORBIDDEN)


@given(st.ip_addresses())
def test_nothing_is_public_that_python_takes_for_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Python's own tables differ between releases, so they are no guard; but they must never be stricter."""
    if classify(address) is Kind.PUBLIC and isinstance(address, ipaddress.IPv4Address):
        assert address.is_global
    if classify(address) is Kind.PUBLIC:
        assert not any((address.is_loopback, address.is_link_local, address.is_multicast, address.is_unspecified))


@pytest.mark.parametrize("text", ["fe80::1%eth0", "2606:4700::1111%1", "example.com", "", "0x7f000001"])
def test_what_is_no_plain_address_may_not_be_called(text: str) -> None:
    assert not is_allowed(text, allow_private=True)


OPEN = Policy(allow_private=True, allow_http=True, ports=(0,))
REFUSED_HOSTS = [
    "127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1]", "[::]",
    "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1", "0", "127.0.0.1.",
    "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "example.0x7f", "1.2.3.4.5", "256.256.256.256", "999999999999",
]  # fmt: skip


@pytest.mark.parametrize("host", REFUSED_HOSTS)
def test_an_address_in_any_form_is_refused_at_once(host: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_target(f"https://{host}/hook", Policy())
    assert caught.value.param == "callback_url"


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.0.0.1", "0177.0.0.1", "127.1", "169.254.169.254", "[fe80::1%25lo]"]
)
def test_odd_forms_and_metadata_are_refused_even_where_private_ones_are_not(host: str) -> None:
    with pytest.raises(InvalidRequest):
        read_target(f"http://{host}/hook", OPEN)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.com/hook", "must begin with https://"),
        ("ftp://example.com/hook", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("gopher://example.com", "must begin with https://"),
        ("//example.com/hook", "must begin with https://"),
        ("example.com/hook", "must begin with https://"),
        ("", "must be 1 to 2048"),
        ("https://", "host"),
        ("https:///hook", "host"),
        ("https://user:pass@example.com/", "user or password"),
        ("https://example.com@127.0.0.1/", "user or password"),
        ("https://example.com/#there", "fragment"),
        ("https://example.com:6379/", "must use port 80 or 443, not 6379"),
        ("https://example.com:0/", "port"),
        ("https://example.com:99999/", "port|URL"),
        ("https://example.com\\@127.0.0.1/", "printable"),
        ("https://exa mple.com/", "printable"),
        ("https://example.com/\r\nx: y", "printable"),
        ("https://exämple.com/", "printable"),
        ("https://127.0.0.%31/", "name of a host"),
        ("https://example.com%00.evil/", "name of a host|URL"),
        ("https://-example.com/", "name of a host"),
        (f"https://{'a' * 64}.com/", "name of a host"),
        (f"https://example.com/{'a' * 2_048}", "must be 1 to 2048"),
        (7, "as a string"),
        (None, "as a string"),
        (["https://example.com"], "as a string"),
    ],
)
def test_what_a_callback_url_may_not_be(url: object, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        read_target(url, Policy(), "metadata.callback_url")
    assert caught.value.param == "metadata.callback_url"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:443/hook?token=abc&x=%20",
        "HTTPS://Example.COM/Hook",
        "https://hooks.example.co.uk./x",
        "https://8.8.8.8/hook",
        "https://[2606:4700::1111]/hook",
        "https://xn--exmple-cua.com/",
        "https://my_service.example.com/",
        "https://1password.example.com2/",
    ],
)
def test_what_it_may_be(url: str) -> None:
    assert read_target(url, Policy()).scheme == "https"


def test_what_is_allowed_is_allowed() -> None:
    assert read_target("http://127.0.0.1:8000/hook", OPEN).port == 8_000
    with pytest.raises(InvalidRequest):
        read_target("http://127.0.0.1:8000/hook", Policy(allow_private=True, allow_http=True))


def answering(*addresses: str) -> LookUps:
    async def resolver(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return LookUps(resolver)


@pytest.mark.parametrize(
    "addresses", [("127.0.0.1",), ("8.8.8.8", "10.0.0.1"), ("2606:4700::1111", "::1"), ("169.254.169.254",)]
)
async def test_one_address_that_may_not_be_called_is_reason_enough(addresses: tuple[str, ...]) -> None:
    url = read_target("https://example.com/hook", Policy())
    with pytest.raises(InvalidRequest, match="may not be sent to") as caught:
        await resolve_target(url, Policy(), answering(*addresses), "t1")
    assert not any(address in str(caught.value) for address in addresses), "nobody learns names of the inner network"


async def test_addresses_come_once_each_and_none_is_no_host() -> None:
    url = read_target("https://example.com/hook", Policy())
    found = await resolve_target(url, Policy(), answering("8.8.8.8", "1.1.1.1", "8.8.8.8"), "t1")
    assert found == ["8.8.8.8", "1.1.1.1"]
    with pytest.raises(NameUnknown):
        await resolve_target(url, Policy(), answering(), "t1")
