"""Fixtures that start real Redis and Valkey servers: the newest for most tests, several releases for the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from tests.programs import skip_without
from tests.support.redis_server import RedisServer, find_servers

OLD_RELEASE = "redis-6.2"
NEW_RELEASE = (7, 0)
SYSTEM = "the-systems-redis-server"
MISSING = "missing-"
WITH_SELECTORS = {label: path for label, path in find_servers().items() if label != OLD_RELEASE}
"""Servers whose ACL has rules for single keys."""


def required_releases(found: dict[str, Path]) -> list[str]:
    """Labels to test on; one that starts with `missing-` stands for one that is not there."""
    labels = list(found)
    if OLD_RELEASE not in found:
        labels.append(f"{MISSING}{OLD_RELEASE}")
    if not any(_release(label) >= NEW_RELEASE for label in found):
        labels.append(f"{MISSING}redis-7.0-or-newer")
    if all("site-packages" in path.parts for path in found.values()):
        labels.append(f"{MISSING}{SYSTEM}")
    return labels


def outermost(found: dict[str, Path]) -> list[str]:
    """Labels of the oldest and the newest release to test on; the system's may be missing."""
    ends = {OLD_RELEASE, *(label for label in found if found[label] == newest(found))}
    lacks = f"{MISSING}{SYSTEM}"
    return [label for label in required_releases(found) if label in ends or label not in {*found, lacks}]


def newest(found: dict[str, Path]) -> Path | None:
    """The newest Redis, else the newest Valkey."""
    kinds = sorted(found, key=lambda label: (label.startswith("redis"), _release(label)))
    return found[kinds[-1]] if kinds else None


def _release(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.rpartition("-")[2].split("."))


SEVERAL = "any_redis_server"
SEEN = pytest.StashKey[set[str]]()
"""Files whose first test of several releases was seen."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of several releases on the newest, and on the oldest where there is time for the long tests.

    The first of a file and the marked ones run on every release.
    """
    if SEVERAL not in metafunc.fixturenames:
        return
    found, seen = find_servers(), metafunc.config.stash.setdefault(SEEN, set())
    every = metafunc.module.__name__ not in seen or metafunc.definition.get_closest_marker("every_release")
    seen.add(metafunc.module.__name__)
    labels = required_releases(found) if every else outermost(found)
    marks = {} if every else {OLD_RELEASE: pytest.mark.long}
    metafunc.parametrize(
        SEVERAL, [pytest.param(label, marks=marks.get(label, ())) for label in labels], indirect=True, scope="session"
    )


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for the whole run: the newest found."""
    with RedisServer(newest(find_servers())) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server for the tests of one file: the newest found."""
    with RedisServer(newest(find_servers())) as opened:
        yield opened


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server of one test, which may kill it: it has an append-only file."""
    with RedisServer(newest(find_servers()), appendonly=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def any_redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of one of several releases. One of a wheel that is missing is a failure, the system's is skipped."""
    label: str = request.param
    if label == f"{MISSING}{SYSTEM}":
        skip_without("the system's Redis, a release beside those of wheels", "sudo apt-get install redis-server")
    if label.startswith(MISSING):
        pytest.fail(f"no server of release {label.removeprefix(MISSING)} found: run `make test`, which installs it")
    with RedisServer(find_servers()[label]) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of the newest server, emptied."""
    return _emptied(redis_server)


@pytest.fixture
def any_redis_url(any_redis_server: RedisServer) -> str:
    """URL of a server of one of several releases, emptied."""
    return _emptied(any_redis_server)


@pytest.fixture
async def raw_redis(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of the newest server, emptied; answers are text, with odd bytes written as `\\xff`."""
    async with _client(redis_url) as client:
        yield client


@pytest.fixture
async def any_raw_redis(any_redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of a server of one of several releases, emptied; answers are text, with odd bytes written as `\\xff`."""
    async with _client(any_redis_url) as client:
        yield client


def _client(url: str) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(
        url, decode_responses=True, encoding_errors="backslashreplace", socket_timeout=None
    )


def _emptied(server: RedisServer) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url
