"""Slow name servers: what a caller's names take, and what is left for Redis and for other tenants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from streamfleet.gateway.webhooks.targets import LOOK_UPS, LOOK_UPS_PER_TENANT, LookUps, resolve

MANY = 100
"""More than all threads that look names up, those of the event loop as well."""
IN_TIME_S = 10.0
ADDRESS = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443))]


async def asked_for() -> None:
    """Let the event loop turn until look-ups that were begun have their place, and are with a thread."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A name server that says nothing of slow.example.com until the event is set."""
    answers = threading.Event()

    def slow(host: str, *_: Any, **__: Any) -> Any:
        if host == "slow.example.com":
            answers.wait(60)
        return ADDRESS

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        yield answers
    finally:
        answers.set()


async def test_slow_names_leave_a_thread_to_the_connections_to_redis(slow_names: threading.Event) -> None:
    look_ups = LookUps(resolve)
    stuck = [asyncio.ensure_future(look_ups.addresses("slow.example.com", 443, f"t{n}")) for n in range(MANY)]
    await asked_for()
    try:
        async with asyncio.timeout(IN_TIME_S):
            assert await asyncio.get_running_loop().getaddrinfo("redis", 6379), "as a connection to Redis asks"
    finally:
        slow_names.set()
        assert await asyncio.gather(*stuck) == [["8.8.8.8"]] * MANY


async def test_slow_names_of_a_tenant_leave_threads_to_others(slow_names: threading.Event) -> None:
    look_ups = LookUps(resolve)
    stuck = [asyncio.ensure_future(look_ups.addresses("slow.example.com", 443, "t1")) for _ in range(MANY)]
    await asked_for()
    try:
        async with asyncio.timeout(IN_TIME_S):
            assert await look_ups.addresses("hooks.example.com", 443, "t2") == ["8.8.8.8"]
    finally:
        slow_names.set()
        assert await asyncio.gather(*stuck) == [["8.8.8.8"]] * MANY


async def test_one_that_was_given_up_keeps_its_place_until_it_ends() -> None:
    """A caller that leaves and asks again would have one thread more each time."""
    ended = asyncio.Event()
    asked: list[str] = []

    async def resolver(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        await ended.wait()
        raise OSError(host)

    look_ups = LookUps(resolver)
    for _ in range(2 * LOOK_UPS_PER_TENANT):
        asking = asyncio.ensure_future(look_ups.addresses("slow.example.com", 443, "t1"))
        await asked_for()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    assert len(asked) <= LOOK_UPS_PER_TENANT < LOOK_UPS
    ended.set()
    with pytest.raises(OSError, match=r"again\.example\.com"):
        await look_ups.addresses("again.example.com", 443, "t1")
