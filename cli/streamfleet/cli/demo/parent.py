"""Child processes that end with their parent, however it ends (Linux; no effect elsewhere)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Runs before the program: the kernel kills the program if its parent is killed.
# A separate program, not preexec_fn, which may deadlock in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def with_parent(command: Sequence[str]) -> list[str]:
    """Wrap a command so that it is killed when this process ends.

    For Linux, the parent's end is the end of the thread that started the child, so start it in a long-lived thread.

    Args:
        command: the program's path, and its arguments.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
