"""Servers that know selectors, one of each release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.guarded import Guarded
from tests.servers import WITH_SELECTORS, newest
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="session")
def _guarded_server() -> Iterator[RedisServer]:
    with RedisServer(newest(WITH_SELECTORS)) as server:
        yield server


@pytest.fixture(scope="session", params=WITH_SELECTORS)
def _any_guarded_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(WITH_SELECTORS[request.param]) as server:
        yield server


@pytest.fixture
def guarded(_guarded_server: RedisServer) -> Guarded:
    """The newest Redis, emptied."""
    return Guarded(_guarded_server).emptied()


@pytest.fixture
def any_guarded(_any_guarded_server: RedisServer) -> Guarded:
    """A server of each release that knows selectors, emptied."""
    return Guarded(_any_guarded_server).emptied()
