"""Child processes that end with the block that they were started for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

STOP_S = 40.0
"""Seconds before a process is killed; a worker drains for 25."""


@contextmanager
def ended_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate the process when the block is left, and kill it if it does not end."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
