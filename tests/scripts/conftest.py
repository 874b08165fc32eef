"""Fixtures of the script tests: a queue on servers of several releases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from streamfleet.common.connection import Connection
from tests.scripts.harness import Queue
from tests.shifted_clock import ShiftedServer, no_shifting

CAUGHT_BY = "caught by"
"""Property of a test of a missing guard: what noticed."""


@asynccontextmanager
async def open_queue(url: str) -> AsyncIterator[Queue]:
    """A queue on a server that is emptied first, whatever a test before it left there. Nothing is tried again."""
    connection = Connection(url, patience_s=0)
    try:
        opened = Queue(connection)
        await opened.command("CONFIG", "SET", "maxmemory", 0)
        await opened.command("FLUSHALL")
        await opened.broker.ensure_groups()
        yield opened
    finally:
        await connection.close()


@pytest.fixture
async def queue(any_redis_url: str) -> AsyncIterator[Queue]:
    """An empty queue whose clock stands still; on several releases."""
    async with open_queue(any_redis_url) as opened:
        yield opened


@pytest.fixture
def shifted_clock() -> Iterator[ShiftedServer]:
    """A server of the test's own whose wall clock the test shifts."""
    if (reason := no_shifting()) is not None:
        pytest.skip(reason)
    with ShiftedServer() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the test that noticed each missing guard; each by itself with -v."""
    passed = terminalreporter.stats.get("passed", [])
    caught = [
        f"{report.head_line.partition('[')[2].rstrip(']')} -> {value}"
        for report in passed
        for name, value in report.user_properties
        if name == CAUGHT_BY
    ]
    if caught:
        terminalreporter.section("guards of the scripts, taken out one by one")
        histories = sum("history" in line for line in caught)
        terminalreporter.line(
            f"{len(caught)} noticed: {histories} by random histories, the others by a test of their own"
        )
        for line in caught if terminalreporter.verbosity > 0 else []:
            terminalreporter.line(line)
