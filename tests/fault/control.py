"""Orders to workers that no signal can carry, and word from them: JSON lines over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Heard = Callable[[str, dict[str, Any]], None]


class Controls:
    """The harness's end: knows every worker that has called.

    Args:
        path: of the socket.
        heard: called with a worker's name and what it said.
    """

    def __init__(self, path: Path, heard: Heard) -> None:
        self._path, self._heard = path, heard
        self._server: asyncio.Server | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    def tell(self, worker: str, **order: Any) -> bool:
        """Send an order; False when the worker is not there."""
        writer = self._writers.get(worker)
        if writer is None or writer.is_closing():
            return False
        writer.write((json.dumps(order) + "\n").encode())
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            while line := await reader.readline():
                said = json.loads(line)
                name = said["worker"]
                self._writers[name] = writer
                self._heard(name, said)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            if self._writers.get(name) is writer:
                del self._writers[name]
            writer.close()


class Line:
    """The worker's end. Orders are obeyed on a thread of their own; `tell` may be called on any thread."""

    def __init__(self, path: str, worker: str, obey: Callable[[dict[str, Any]], None]) -> None:
        self._worker, self._obey = worker, obey
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def tell(self, said: str, **fields: Any) -> None:
        """Say something to the harness; it has been sent when this returns."""
        line = json.dumps({"worker": self._worker, "said": said, **fields}) + "\n"
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(line.encode())

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._obey(json.loads(line))
