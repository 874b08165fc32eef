"""Processes that end with the one that started them, however that one ends (Linux; elsewhere nothing changes)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Run in front of the program: when the process that started it is killed, the program goes too.
# A program of its own, not preexec_fn, because that one may deadlock in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def with_parent(command: Sequence[str]) -> list[str]:
    """The command as one that is killed when this process ends.

    Linux takes the end of the thread that started a child for its parent's end: start it in one that lives as long.

    Args:
        command: the program's path, and its arguments.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
