"""Tries of a connection: how many there are, and how long each may take, where Redis hangs or is away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.errors import BrokerUnavailable
from streamfleet.producer import Client
from tests.support.redis_server import free_port

NOWHERE = "redis://127.0.0.1:1"


class Enough(Exception):
    """Raised by a second try, which a test has seen."""


@pytest.mark.parametrize(
    ("patience_s", "answer_s", "took_s", "second_s"),
    [
        (2.0, 1.2, 1.2, 1.0),  # a second in any case
        (2.5, 1.2, 1.2, 1.3),
        (2.5, 1.2, 2.0, 1.3),  # this process was held up for 0.8 s
        (2.5, 1.2, 0.1, 2.4),
        (5.0, 15.0, 15.0, None),  # there is no limit to all tries together
    ],
)
async def test_a_second_try_has_the_rest_of_the_patience(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, answer_s: float, took_s: float, second_s: float | None
) -> None:
    connection, now, margins = Connection(NOWHERE, patience_s, answer_s), [100.0], list[float | None]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])

    async def once(_work: Callable[..., Any], _blocks_s: float = 0.0, margin_s: float | None = None) -> None:
        margins.append(margin_s)
        if len(margins) == 2:
            raise Enough
        now[0] += took_s
        raise BrokerUnavailable("no answer")

    monkeypatch.setattr(connection, "_once", once)
    monkeypatch.setattr(connection, "rest", lambda _: asyncio.sleep(0))
    with pytest.raises(Enough):
        await connection.command("PING")
    monkeypatch.undo()
    assert margins == [None, second_s if second_s is None else pytest.approx(second_s)]
    await connection.close()


@pytest.mark.parametrize(
    ("patience_s", "answer_s", "whole_s"),
    [
        (1.5, 1.3, 2.3),
        (2.2, 1.0, 2.2),
    ],
)
async def test_all_tries_at_a_server_that_hangs_take_about_the_patience(
    patience_s: float, answer_s: float, whole_s: float
) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    connection = Connection(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", patience_s, answer_s)
    for operation in (connection.command("GET", "x"), connection.ping()):
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await operation
        assert whole_s - 0.1 < time.monotonic() - began < whole_s + 0.8
    await connection.close()
    for writer in writers:
        writer.close()
    server.close()


async def test_no_try_begins_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries grow, and the one that would go beyond it is not taken."""
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    connection, began = Connection(f"redis://127.0.0.1:{free_port()}", 2.0, 1.2), time.monotonic()
    with pytest.raises(BrokerUnavailable):
        await connection.command("GET", "x")
    assert 1.0 < time.monotonic() - began < 2.5
    await connection.close()


async def test_without_patience_there_is_one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, tries = Connection(NOWHERE, 0), list[object]()

    async def once(*given: object) -> None:
        tries.append(given)
        raise BrokerUnavailable("no answer")

    monkeypatch.setattr(connection, "_once", once)
    with pytest.raises(BrokerUnavailable):
        await connection.command("GET", "x")
    assert len(tries) == 1
    await connection.close()


def test_another_client_has_the_same_patience() -> None:
    another = Client(NOWHERE, patience_s=2.0, answer_timeout_s=1.2).another()
    assert (another._patience_s, another._answer_timeout_s) == (2.0, 1.2)


async def test_a_ping_without_such_a_limit_is_one_try() -> None:
    connection = Connection(f"redis://127.0.0.1:{free_port()}", patience_s=14.0)
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(connection.ping(), 7)
    await connection.close()
