"""A Redis server whose wall clock can be shifted while it runs, as if somebody set its machine's clock, or be stopped.

A small library stands before libc's clock functions in the server's process alone (shifted_clock.c). It is compiled
when it is first needed.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType

from tests.support.redis_server import RedisServer


def no_shifting() -> str | None:
    """The reason for which a server's clock cannot be shifted on this machine; None where it can."""
    if sys.platform != "linux":
        return "a server's clock is shifted by LD_PRELOAD, which is Linux's"
    return None if _compiler() else "a server's clock is shifted by a library that needs a C compiler (cc)"


def _compiler() -> list[str]:
    """Returns the words that call a C compiler; none without one."""
    if shutil.which("cc"):
        return ["cc"]
    return ["tcc", "-nostdlib"] if shutil.which("tcc") else []  # without libc's parts for linking


_FOLDER = tempfile.TemporaryDirectory(prefix="streamfleet-clock-")


@cache
def _library() -> Path:
    library = Path(_FOLDER.name, "shifted_clock.so")
    source = Path(__file__).with_suffix(".c")
    subprocess.run([*_compiler(), "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


class ShiftedServer(RedisServer):
    """A RedisServer whose clock is the machine's until `shift`; over restarts, too."""

    def __init__(
        self, binary: Path | None = None, *, appendonly: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(binary, appendonly=appendonly, options=options)
        self._shift = tempfile.NamedTemporaryFile(prefix="streamfleet-clock-")  # noqa: SIM115 - closed by __exit__
        self._shift.write(bytes(16))
        self._shift.flush()
        self._shared = mmap.mmap(self._shift.fileno(), 16)

    def __enter__(self) -> ShiftedServer:
        super().__enter__()
        return self

    def shift(self, by_ms: int) -> None:
        """Let the server's wall clock be so far ahead of the machine's from now on."""
        self._shared[:] = struct.pack("qq", by_ms, 0)

    def stand_at(self, now_ms: int) -> None:
        """Let the server's wall clock stand still at this time, epoch ms."""
        self._shared[:] = struct.pack("qq", 0, now_ms)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, trace)
        self._shared.close()
        self._shift.close()

    def _command(self, folder: Path) -> list[str]:
        shim = ["env", f"LD_PRELOAD={_library()}", f"CLOCK_SHIFT={self._shift.name}"]
        return [*shim, *super()._command(folder)]
