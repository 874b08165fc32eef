"""Folder for the temporary files of one vLLM engine: its sockets, and the files by which its processes find each other.

vLLM leaves them behind in the temp folder of the machine. `TempFolder.make` makes a folder of the worker's own there,
`in_use` lets an engine that is built meanwhile use it, `remove` removes it with all that is in it. The process holds a
lock on its folder, so that the next one can tell the folders of killed workers, and removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

PREFIX = "streamfleet-vllm-"
_SOCKETS = "VLLM_RPC_BASE_PATH"
_NAME_BYTES = 1 + 36
"""A socket's name: vLLM adds a UUID."""
_MOST_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
"""Longest path of a Unix socket."""
_NO_BASE = Path("/tmp")  # noqa: S108 - the usual place, where the chosen one is too deep for a socket


class TempFolder:
    """A folder that this process has locked.

    Args:
        path: the folder.
        lock: descriptor that holds the lock; closed by `remove`.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def make(cls) -> Self | None:
        """Returns a new folder, after the removal of those of killed workers; None if there is no place for one.

        A place is where the variables say that vLLM's sockets and temporary files are to be, or /tmp where paths there
        are too long for a socket.
        """
        for base in (Path(os.environ.get(_SOCKETS) or tempfile.gettempdir()), _NO_BASE):
            _remove_abandoned(base)
            room = _MOST_PATH_BYTES - _NAME_BYTES - len(os.fsencode(base / f"{PREFIX}12345678"))
            made = _make(base) if room >= 0 else None
            if made is not None:
                return cls(*made)
        return None

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which processes that are started put their temporary files into this folder."""
        usual = tempfile.gettempdir()  # remembered by `tempfile`: this process itself stays with it
        # Compiled code is worth keeping, so it stays where torch would put it.
        compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{usual}/torchinductor_{_user()}"
        changed = {_SOCKETS: str(self.path), "TMPDIR": str(self.path), "TORCHINDUCTOR_CACHE_DIR": compiled}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def remove(self) -> None:
        """Remove the folder; again does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _remove_abandoned(base: Path) -> None:
    """Remove the folders of workers that were killed: no process holds a lock on them."""
    for path in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _opened(path) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(folder).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def _make(base: Path) -> tuple[Path, int] | None:
    """A new folder and the descriptor that holds its lock; None if no folder can be made there."""
    while True:
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError:
            return None
        with contextlib.suppress(FileNotFoundError), _opened(path) as folder:
            if _lock(folder) and path.exists():
                return path, os.dup(folder)  # another process may have removed it before it was locked


def _lock(folder: int) -> bool:
    """Lock a folder. False if another process holds the lock; True without a lock if the file system has none."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # nobody will remove the folder of a killed worker
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # a user id without a name
        return f"uid_{os.getuid()}"
