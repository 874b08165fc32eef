"""The limit of a Python process: the same commands as raw.py, as bytes on a socket, without a client library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, encode, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, encode, main


STREAM, GROUP, CONSUMER = "jobs", "workers", "w"
AT_ONCE = 100
RESULT_TTL_MS = 86_400_000
SOME = 1 << 18
# The part that changes from job to job is 32 question marks, in the place of the id.
NAME = "?" * 32
ADD = encode("XADD", STREAM, "*", "id", NAME, "body", PAYLOAD).split(NAME.encode())
SET = encode("SET", f"result:{NAME}", RESULT, "PX", RESULT_TTL_MS).split(NAME.encode())
REPLY = encode("LPUSH", f"reply:{NAME}", "1").split(NAME.encode())
READ = encode("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", AT_ONCE, "BLOCK", 0, "STREAMS", STREAM, ">")
HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[a-z]+\r\n\*(\d+)\r\n")
ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*4\r\n\$2\r\nid\r\n\$32\r\n(.{32})\r\n")
BODY_END = b"$%d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD.encode())


class RawBytes(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._wire = Wire(url)
        self._count = 0

    async def open(self) -> None:
        if not self._wire.ask("EXISTS", STREAM):
            self._wire.ask("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")

    async def close(self) -> None:
        self._wire.close()

    async def enqueue(self, count: int) -> None:
        until = self._count + count
        while self._count < until:
            some = range(self._count, min(until, self._count + AT_ONCE))
            self._count = some.stop
            self._send([(b"%032x" % number).join(ADD) for number in some], lines=2 * len(some))

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - there is but one way
        self._count += 1
        name = f"{self._count:032x}"
        self._wire.ask("XADD", STREAM, "*", "id", name, "body", PAYLOAD)
        self._wire.ask("BLPOP", f"reply:{name}", 10)
        return self._wire.ask("GET", f"result:{name}")

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("XLEN", STREAM))

    def finished(self, wire: Wire) -> int:
        return self.jobs - self.queued(wire)

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("result:*"))

    def work(self, mode: Mode) -> None:
        while True:
            self._wire.socket.sendall(READ)
            commands: list[bytes] = []
            for entry, name in ENTRY.findall(self._answer()):
                commands.append(name.join(SET))
                if mode != "drain":
                    commands.append(name.join(REPLY))
                commands.append(
                    b"*4\r\n$4\r\nXACK\r\n$4\r\njobs\r\n$7\r\nworkers\r\n$%d\r\n%b\r\n" % (len(entry), entry)
                )
                commands.append(b"*3\r\n$4\r\nXDEL\r\n$4\r\njobs\r\n$%d\r\n%b\r\n" % (len(entry), entry))
            self._send(commands, lines=len(commands))

    def _answer(self) -> bytes:
        """Reply of XREADGROUP: complete if it ends like a job, and has as many jobs as its head says."""
        got = self._wire.socket.recv(SOME)
        while not (got.endswith(BODY_END) and (head := HEAD.match(got)) and got.count(BODY_END) == int(head[1])):
            got += self._wire.socket.recv(SOME)
        return got

    def _send(self, commands: list[bytes], lines: int) -> None:
        """Send all in one piece, and wait for so many lines of replies."""
        self._wire.socket.sendall(b"".join(commands))
        while lines > 0:
            lines -= self._wire.socket.recv(SOME).count(b"\n")


if __name__ == "__main__":
    main(RawBytes)
