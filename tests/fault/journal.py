"""Append-only logs of JSON lines: what a process wrote stands, however it ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def epoch_ms() -> int:
    """The machine's clock, whatever a clock step made `time.time` of this process say."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


class Journal:
    """One file, written unbuffered: a line is in it before `write` returns, or not at all.

    Args:
        path: made when missing, added to when not.
        always: fields of every line.
    """

    def __init__(self, path: Path, **always: Any) -> None:
        self._always = always
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """Add one line, with the time."""
        line = {"e": event, "at": epoch_ms(), **self._always, **fields}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines; nothing when there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
