"""Commands of `streamfleet` as forks of a process that has imported everything; from nothing each takes half a second.

    python -m tests.integration.command_server SOCKET     # serves until it is stopped

`shim` is a program to put on PATH in place of `streamfleet`: it hands its arguments, environment and streams over, and
ends as the command does. What goes on until it is stopped is started as usual.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from tests.integration.forked import IMPORTED

SHIM = """#!{python} -SE
import json, os, socket, sys
words = sys.argv[1:]
first, second = [*words, "", ""][:2]
if first in ("worker", "exporter") or first == "gateway" and second[:1] in ("", "-"):
    os.execv({program!r}, [{program!r}, *words])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    order = dict(words=words, folder=os.getcwd(), environment=dict(os.environ))
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    sys.exit((server.recv(1) or b"\\1")[0])
"""


def shim(address: Path) -> str:
    """The text of a program that lets the server at this address run a command."""
    return SHIM.format(python=sys.executable, program=str(Path(sys.prefix) / "bin/streamfleet"), address=str(address))


def serve(address: str) -> None:
    """Fork for each command, until a signal comes."""
    for module in IMPORTED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        while True:
            caller, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _run(caller)
            caller.close()


def _run(caller: socket.socket) -> None:
    """Be the command that a caller asks for."""
    from streamfleet.cli.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    order = json.loads(text)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["streamfleet", *order["words"]]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.send(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
