"""Ends every engine process when the process that made it ends.

After a SIGKILL of the worker, vLLM's processes would otherwise stay for good, with all their memory. vLLM loads this in
each of its processes: as an entry point of `vllm.platform_plugins` while the engine still starts, and of
`vllm.general_plugins`, if an explicit platform skips the former. It imports only the standard library, because it is
also loaded where vLLM runs without streamfleet, and does nothing there.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys

# A process sets this to its own id while it creates engine processes, which inherit it.
OWNER_VARIABLE = "STREAMFLEET_ENGINE_OWNER"
_PR_SET_PDEATHSIG = 1


def install() -> None:
    """Make this process die with its parent, if its parent is a streamfleet worker or an engine process of one.

    Raises:
        OSError: the kernel refuses; the engine then does not start, because it would run unguarded.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    if not sys.platform.startswith("linux") or owner in {None, str(os.getpid())} or not _is_child():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # A process group of its own: a SIGTERM or Ctrl-C for the whole group then lets the worker drain, and does not kill
    # the engine. A session leader has its own group already and may not change it.
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    os.environ[OWNER_VARIABLE] = str(os.getpid())  # processes that this one starts are tied to it
    if not _parent_lives(owner):  # it died before the request above, so no signal will come
        os.kill(os.getpid(), signal.SIGKILL)


def _is_child() -> bool:
    # While a spawned process still imports its main module, multiprocessing does not know its parent yet.
    return multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv


def _parent_lives(owner: str | None) -> bool:
    parent = multiprocessing.parent_process()
    return str(os.getppid()) == owner if parent is None else parent.is_alive()
