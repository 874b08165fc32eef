"""TLS, with certificates of a real authority, on a real server: who is let through, and what the others are told."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streamfleet.common.connection import Connection
from streamfleet.common.connection.clients import connection_maker
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.producer.client import Client
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import WorkerProcess, chat
from tests.security.tls import Authority, Pair, TlsRedis, tls_redis, with_tls
from tests.waiting import eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "theirs")


@pytest.fixture(
    scope="module", params=[*filter(None, [with_tls()]), None], ids=lambda binary: "own" if binary else "proxy"
)
def binary(request: pytest.FixtureRequest) -> Path | None:
    """A server program with TLS where there is one, and a proxy in front of one without."""
    found: Path | None = request.param
    return found


@pytest.fixture(scope="module")
def server(authority: Authority, binary: Path | None) -> Iterator[TlsRedis]:
    """Known as localhost and 127.0.0.1."""
    with tls_redis(authority, authority.issue("localhost", "127.0.0.1"), binary=binary) as found:
        yield found


@pytest.fixture(scope="module")
def strict_server(authority: Authority, binary: Path | None) -> Iterator[TlsRedis]:
    """Lets only those in who have a certificate of the authority themselves."""
    with tls_redis(authority, authority.issue("localhost"), clients="yes", binary=binary) as found:
        yield found


@pytest.fixture
def person(authority: Authority) -> Pair:
    return authority.issue("worker@streamfleet.example")


async def ping(url: str) -> None:
    connection = Connection(url, patience_s=0)
    try:
        await connection.ping()
    finally:
        await connection.close()


def test_worker_client_and_commands_speak_tls(server: TlsRedis, authority: Authority, tmp_path: Path) -> None:
    url = server.url({"ssl_ca_certs": authority.file})
    worker = WorkerProcess(url, tmp_path, "w1")
    try:
        worker.ready_blocking()
        asyncio.run(asks(url))
        assert streamfleet(url, "enqueue", "--prompt", "Say hi", "--wait").returncode == 0
        assert streamfleet(url, "audit").returncode == 0
        worker.send(signal.SIGTERM)
        assert asyncio.run(worker.ended()) == 0
        assert str(authority.file) not in worker.printed()
    finally:
        worker.destroy()


async def asks(url: str) -> None:
    async with Client(url) as fleet:
        handles = await fleet.enqueue_many([{"body": chat()} for _ in range(10)])
        assert all([(await handle.result(10)).ok for handle in handles])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_certificate_that_fits_is_trusted(server: TlsRedis, authority: Authority, host: str) -> None:
    await ping(server.url({"ssl_ca_certs": authority.file}, host=host))


@pytest.mark.parametrize("trusted", ["the system's", "another"])
async def test_a_server_of_another_authority_is_refused(server: TlsRedis, stranger: Authority, trusted: str) -> None:
    options = {} if trusted == "the system's" else {"ssl_ca_certs": stranger.file}
    url = server.url(options)
    with pytest.raises(SettingsError) as caught:
        await ping(url)
    said = str(caught.value)
    assert said.startswith(f"REDIS_URL rediss://localhost:{server.tls_port}/0: ")
    assert "certificate" in said
    assert "ssl_ca_certs" in said


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_server_of_another_name_is_refused(authority: Authority, host: str, binary: Path | None) -> None:
    with tls_redis(authority, authority.issue("redis.example"), binary=binary) as elsewhere:
        with pytest.raises(SettingsError, match=f"REDIS_URL rediss://{host}:.*not valid for '{host}'.*host name"):
            await ping(elsewhere.url({"ssl_ca_certs": authority.file}, host=host))
        # A client that wants no check of the name has to say so.
        await ping(elsewhere.url({"ssl_ca_certs": authority.file, "ssl_check_hostname": "false"}, host=host))


def test_host_names_are_checked_whatever_redis_py_does_by_itself() -> None:
    """Before 6.0 it compares none unless it is told to."""
    assert connection_maker("rediss://localhost").connection_kwargs["ssl_check_hostname"] is True
    told = connection_maker("rediss://localhost?ssl_check_hostname=false")
    assert told.connection_kwargs["ssl_check_hostname"] is False


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
async def test_a_file_that_is_not_there_is_named(server: TlsRedis, authority: Authority, option: str) -> None:
    options = {"ssl_ca_certs": authority.file, option: "/nowhere/file.pem"}
    with pytest.raises(SettingsError, match=f"REDIS_URL .*{option}.*/nowhere/file.pem"):
        await ping(server.url(options))


async def test_clients_show_their_certificates(strict_server: TlsRedis, authority: Authority, person: Pair) -> None:
    files = {"ssl_certfile": person.certificate, "ssl_keyfile": person.key}
    await ping(strict_server.url({"ssl_ca_certs": authority.file, **files}))
    with pytest.raises(BrokerUnavailable):
        await ping(strict_server.url({"ssl_ca_certs": authority.file}))


async def test_a_client_certificate_of_another_authority_is_no_way_in(
    strict_server: TlsRedis, authority: Authority, stranger: Authority
) -> None:
    pair = stranger.issue("worker@streamfleet.example")
    files = {"ssl_certfile": pair.certificate, "ssl_keyfile": pair.key}
    with pytest.raises((BrokerUnavailable, SettingsError)):
        await ping(strict_server.url({"ssl_ca_certs": authority.file, **files}))


async def test_certificates_are_read_again_for_each_new_connection(
    strict_server: TlsRedis, authority: Authority, stranger: Authority, person: Pair, tmp_path: Path
) -> None:
    """Once it was connected, it waits for files that fit, though its URL stays."""
    files = {name: tmp_path / name for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")}

    def put(trusted: Authority, pair: Pair) -> None:
        for path, source in zip(files.values(), (trusted.file, pair.certificate, pair.key), strict=True):
            path.write_bytes(source.read_bytes())

    async def cut() -> None:
        assert connection._server._clients
        idle = connection._server._clients.commands._idle
        with redis.Redis.from_url(strict_server.server.url) as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        # Then redis-py opens the same connection again.
        await eventually(lambda: all(each._reader.at_eof() for each in idle), 5, "it knows that it was cut")

    put(authority, person)
    connection = Connection(strict_server.url(files), patience_s=0)
    await connection.ping()
    put(stranger, person)
    await cut()
    assert not await answers(connection)
    assert not await answers(connection)  # a new connection, which knows the reason
    assert "certificate is refused" in connection.refusal
    put(authority, stranger.issue("other@streamfleet.example"))
    assert not await answers(connection)
    put(authority, person)
    assert await answers(connection)
    await connection.close()


async def answers(connection: Connection) -> bool:
    with contextlib.suppress(BrokerUnavailable):
        await connection.ping()
        return True
    return False


def test_a_worker_that_does_not_trust_its_redis_ends_and_says_why(
    server: TlsRedis, stranger: Authority, tmp_path: Path
) -> None:
    worker = WorkerProcess(server.url({"ssl_ca_certs": stranger.file}, user="me:S3cr3t@"), tmp_path, "w1")
    try:
        assert asyncio.run(worker.ended(15)) == 2
        assert f"REDIS_URL rediss://localhost:{server.tls_port}/0" in worker.printed()
        assert "S3cr3t" not in worker.printed()
    finally:
        worker.destroy()
    ended = streamfleet(server.url({"ssl_ca_certs": stranger.file}), "audit")
    assert ended.returncode == 2
    assert "ssl_ca_certs" in ended.stderr
    with redis.Redis.from_url(server.server.url) as admin:
        assert admin.exists("{default}:workers") == 0
