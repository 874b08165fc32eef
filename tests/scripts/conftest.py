"""Fixtures of the script tests: a queue on a server of every release found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamfleet.common.connection import Connection
from tests.scripts.harness import Queue


@asynccontextmanager
async def open_queue(url: str) -> AsyncIterator[Queue]:
    """A queue on an emptied server."""
    connection = Connection(url)
    try:
        opened = Queue(connection)
        await opened.broker.ensure_groups()
        yield opened
    finally:
        await connection.close()


@pytest.fixture
async def queue(any_redis_url: str) -> AsyncIterator[Queue]:
    """An empty queue whose clock stands still; on every release."""
    async with open_queue(any_redis_url) as opened:
        yield opened
