"""A process that has imported everything and forks workers and producers on demand.

    python -m tests.fault.zygote [MODULE …]     # imports these as well

Starting a worker from nothing costs about a second of CPU, a fork some milliseconds; each is a process of its own all
the same, with its own pid, log and exit status. Orders come as JSON lines on the standard input, answers go out on the
standard output.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import sys
from typing import Any

from tests.fault.deathwish import die_with_parent

ROLES = {
    "worker": "tests.fault.worker_process",
    "producer": "tests.fault.producer_process",
    "module": "tests.integration.forked",
}


class Zygote:
    """Forks, reaps, and passes signals on to children that are not reaped yet."""

    def __init__(self) -> None:
        self._children: set[int] = set()
        self._unread = b""
        self._reading, self._woken = os.pipe()
        for end in (self._reading, self._woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken)
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(self._reading, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Until the input ends; in a child, what it is to be."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._reading:
                    os.read(self._reading, 4096)
                    self._reap()
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    return None
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    spec = self._obey(json.loads(line))
                    if spec is not None:
                        return spec

    def _obey(self, order: dict[str, Any]) -> dict[str, Any] | None:
        if order["do"] == "signal":
            alive = order["pid"] in self._children
            if alive:
                os.kill(order["pid"], order["signal"])
            _answer(n=order["n"], alive=alive)
            return None
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_a_child(parent, order["spec"])
            return dict(order["spec"])
        self._children.add(pid)
        _answer(n=order["n"], pid=pid)
        return None

    def _become_a_child(self, parent: int, spec: dict[str, Any]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.close(self._reading)
        os.close(self._woken)
        die_with_parent(parent)
        os.dup2(os.open(spec.get("stdin", os.devnull), os.O_RDONLY), 0)
        for target, log in ((1, spec["log"]), (2, spec.get("stderr", spec["log"]))):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            _answer(ended=pid, code=os.waitstatus_to_exitcode(status))


def _answer(**fields: Any) -> None:
    os.write(1, (json.dumps(fields) + "\n").encode())


def _import_everything() -> None:
    from streamfleet.common import scripts

    for module in ("streamfleet.worker.engine.simulated", *ROLES.values(), *sys.argv[1:]):
        importlib.import_module(module)
    scripts.read_all()  # who is forked later must not see files that were edited meanwhile
    gc.collect()
    gc.freeze()


def main() -> int:
    die_with_parent(os.getppid())
    _import_everything()
    _answer(ready=os.getpid())
    spec = Zygote().serve()
    if spec is None:
        return 0
    return int(importlib.import_module(ROLES[spec["role"]]).run(spec))


if __name__ == "__main__":
    sys.exit(main())
