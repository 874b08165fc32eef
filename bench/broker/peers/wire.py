"""Redis's protocol on a socket, to look at a queue and to measure the limit of raw bytes. Standard library only."""

from __future__ import annotations

import socket
from typing import Any, TypeAlias
from urllib.parse import urlsplit

Part: TypeAlias = str | bytes | int


class Wire:
    """A connection to Redis that implements RESP2."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def ask(self, *parts: Part) -> Any:
        """Send one command and return its reply; RuntimeError if Redis refuses it."""
        self.socket.sendall(encode(*parts))
        return self.read()

    def read(self) -> Any:
        """Return the next reply: bytes, int, None or a list."""
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RuntimeError(f"Redis says: {rest.decode()}")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        raise ConnectionError("Redis closed the connection")

    def keys(self, pattern: str) -> set[bytes]:
        """The keys that match a glob pattern."""
        cursor: Part = 0
        found: set[bytes] = set()
        while True:
            cursor, some = self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 10_000)
            found.update(some)
            if cursor == b"0":
                return found

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def encode(*parts: Part) -> bytes:
    """A command in the wire format of Redis."""
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        chunks.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(chunks)
