"""The health server's port, open to whoever reaches it: whatever comes in, the probes are answered."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.health import MOST_CONNECTIONS, Health, HealthServer
from tests.fuzz import strategies as some
from tests.fuzz.budget import examples
from tests.waiting import eventually_blocking

WITHIN_S = 3.0
CONNECTING_S = 8.0
PATHS = (
    "/livez",
    "/readyz",
    "/metrics",
    "/metrics?name[]=x",
    "/",
    "//livez",
    "/%00",
    "/%ff",
    "*",
    "http://x/livez",
    "",
)
VERSIONS = (" HTTP/1.1", " HTTP/1.0", " HTTP/0.9", " HTTP/9.9", " HTTP/1", " http/1.1", "")
HEADERS = (
    "Host: x", "Content-Length: -1", "Content-Length: 99999999999", "Content-Length: x", "Transfer-Encoding: chunked",
    "Accept: " + "application/openmetrics-text;" * 50, "Accept-Encoding: gzip", "Expect: 100-continue",
    "Connection: keep-alive",
    ": x", "x", "X: " + "y" * 70_000, "Upgrade: h2c", " folded",
    "Accept: application/openmetrics-text; version=nan; escaping=x",
)  # fmt: skip
requests = st.builds(
    lambda method, path, version, headers, ending, body: (
        (f"{method} {path}{version}\r\n" + "".join(f"{header}\r\n" for header in headers)).encode("latin-1")
        + ending
        + body
    ),
    st.sampled_from(["GET", "POST", "HEAD", "PUT", "get", "", "\x00", "PRI", "OPTIONS", "X" * 70_000]),
    st.sampled_from(PATHS) | st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=20),
    st.sampled_from(VERSIONS),
    st.lists(st.sampled_from(HEADERS), max_size=4) | st.just(["A: b"] * 150),
    st.sampled_from([b"\r\n", b"\n\n", b"", b"\r\n\r\nGET /livez HTTP/1.1\r\n\r\n"]),
    some.raw,
)


@pytest.fixture(scope="module")
def server() -> Iterator[HealthServer]:
    """One for all: what an example leaves behind is the next one's trouble."""
    made = HealthServer("127.0.0.1", 0, lambda: Health(True, False, "starting"))
    made.start()
    yield made
    made.stop()


def probe(server: HealthServer) -> str:
    """As a kubelet asks."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/livez", timeout=WITHIN_S) as page:
        return str(page.read().decode())


def connected(server: HealthServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), WITHIN_S)


def threads() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


@given(some.raw | requests, st.sampled_from(["read", "close", "reset"]))
@examples(120)
def test_any_bytes(server: HealthServer, capfd: pytest.CaptureFixture[str], sent: bytes, then: str) -> None:
    with contextlib.suppress(OSError), connected(server) as connection:
        connection.sendall(sent)
        if then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        elif then == "read":
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    assert probe(server) == "ok\n"
    said = capfd.readouterr()
    assert said.err == ""


def test_those_who_connect_and_say_nothing_hold_up_nobody(server: HealthServer) -> None:
    """Many of them, each half-way through a request; and there is an end to how many are held."""
    began = time.monotonic()
    silent = [connected(server) for _ in range(MOST_CONNECTIONS + 50)]
    assert time.monotonic() - began < CONNECTING_S, "the queue of those who want to connect is too short"
    try:
        for number, connection in enumerate(silent):
            with contextlib.suppress(OSError):
                connection.sendall((b"", b"G", b"GET /livez HTTP/1.1\r\nHost:")[number % 3])
        assert probe(server) == "ok\n"
        # A thread whose guest was sent away ends when it is its turn, and long before its own time-out.
        eventually_blocking(lambda: threads() <= MOST_CONNECTIONS, WITHIN_S, "no more than these are held")
    finally:
        for connection in silent:
            connection.close()
    eventually_blocking(lambda: threads() <= 1, 15, "their threads are gone")


def test_a_header_without_end_is_cut_off(server: HealthServer) -> None:
    with connected(server) as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
        connection.sendall(b"GET / HTTP/1.1\r\n" + (b"A: " + b"x" * 5_000 + b"\r\n") * 10_000)
    assert probe(server) == "ok\n"
