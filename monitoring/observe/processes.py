"""Processes that end with what they were started for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

STOP_S = 40.0
"""Seconds that one has to end by itself: a worker drains for 25."""


@contextmanager
def ended_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Tell it to end when the block is left, and kill it when it does not."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
