"""A certificate authority of the tests' own, and a real Redis server that speaks TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trustme

from tests.programs import FOLDER
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers, free_port


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder.

    Attributes:
        file: the authority's own certificate, which clients trust.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._ca, self._folder, self._name = trustme.CA(), folder, name
        self.file = folder / f"{name}-ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, *names: str) -> Pair:
        """A certificate for host names, addresses, or a person's e-mail address."""
        stem = f"{self._name}-{names[0].replace('@', '-at-')}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        issued = self._ca.issue_cert(*names)
        issued.cert_chain_pems[0].write_to_path(str(pair.certificate))
        issued.private_key_pem.write_to_path(str(pair.key))
        return pair


@dataclass(frozen=True)
class TlsRedis:
    """A server that also listens with TLS, or one behind a proxy that does."""

    server: RedisServer
    tls_port: int

    def url(self, options: Mapping[str, object] | None = None, *, host: str = "localhost", user: str = "") -> str:
        """Its URL, with redis-py's options behind it."""
        query = "&".join(f"{name}={value}" for name, value in (options or {}).items())
        return f"rediss://{user}{host}:{self.tls_port}/0" + (f"?{query}" if query else "")


@cache
def with_tls() -> Path | None:
    """A server program that was built with TLS, as those out of wheels are not; None where there is none."""
    servers = list(find_servers().values())
    # The wrapper of an unpacked program is text.
    programs = (FOLDER.parent / "lib/system/usr/bin" / path.name if path.parent == FOLDER else path for path in servers)
    found = zip(servers, programs, strict=True)
    return next((path for path, program in found if b"SSL_CTX_new" in program.read_bytes()), None)


@contextlib.contextmanager
def tls_redis(
    authority: Authority, pair: Pair, *, clients: str = "no", binary: Path | None = None
) -> Iterator[TlsRedis]:
    """A server with this certificate, behind a proxy where no server program has TLS.

    Args:
        authority: whose certificates clients may show.
        pair: the server's own.
        clients: whether they need one: `yes` or `no`.
        binary: a program built with TLS; none starts the proxy.
    """
    if binary is None:
        with RedisServer(newest(find_servers())) as server, _proxy(server.port, authority, pair, clients) as port:
            yield TlsRedis(server, port)
        return
    port = free_port()
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(pair.certificate),
        "tls-key-file": str(pair.key),
        "tls-ca-cert-file": str(authority.file),
        "tls-auth-clients": clients,
    }
    with RedisServer(binary, options=options) as server:
        yield TlsRedis(server, port)


@contextlib.contextmanager
def _proxy(target: int, authority: Authority, pair: Pair, clients: str) -> Iterator[int]:
    """Ends TLS in front of a port of this machine, in a thread of its own. Yields the proxy's port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(pair.certificate, pair.key)
    context.verify_mode = ssl.CERT_REQUIRED if clients == "yes" else ssl.CERT_NONE

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pass_on(reader, back), pass_on(onward, writer))

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def run() -> None:
        ended = asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        loop = asyncio.get_running_loop()
        listening.set_result((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(ended.set)))
        await ended.wait()
        server.close()

    listening: Future[tuple[int, Callable[[], object]]] = Future()
    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    port, end = listening.result(10)
    try:
        yield port
    finally:
        end()
        thread.join()
