"""Ties every engine process to the one that made it.

After a SIGKILL of the worker vLLM's processes would live on for good, with all their memory. vLLM loads this
in each of its processes: as an entry point of `vllm.platform_plugins`, at import, so that it acts while the engine
still starts, and of `vllm.general_plugins`, where an explicit platform skips the former. Only standard library
here: it is loaded as well where somebody uses vLLM without streamfleet, and there it does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys

# The process that creates engine processes sets it to its own id while it does; they inherit it.
OWNER_VARIABLE = "STREAMFLEET_ENGINE_OWNER"
_PR_SET_PDEATHSIG = 1


def install() -> None:
    """Make this process die with its parent, if it is a child of an engine that a streamfleet worker started.

    Raises:
        OSError: the kernel refuses; the engine then does not start, rather than run unguarded.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    if not sys.platform.startswith("linux") or owner in {None, str(os.getpid())} or not _is_child():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # A group of its own: a SIGTERM or Ctrl-C meant for the whole group lets the worker drain instead of
    # killing the engine under it. A session leader has one already and may not change it.
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    os.environ[OWNER_VARIABLE] = str(os.getpid())  # what this process starts in turn is tied to it
    if not _parent_lives(owner):  # it died before the request above, so no signal will come
        os.kill(os.getpid(), signal.SIGKILL)


def _is_child() -> bool:
    # While a spawned process still imports what it is to run, multiprocessing does not know its parent yet.
    return multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv


def _parent_lives(owner: str | None) -> bool:
    parent = multiprocessing.parent_process()
    return str(os.getppid()) == owner if parent is None else parent.is_alive()
