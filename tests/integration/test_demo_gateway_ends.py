"""`streamfleet demo-gateway` leaves nothing behind, however it ends; with the simulated engine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.integration.cli_processes import command, streamfleet
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

WITHIN_S = 120.0
PARTS = 3
"""Redis, worker, gateway."""


class Demo:
    """A running demo, as somebody sees it at a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int, folders: Path) -> None:
        self.process, self._screen, self._folders = process, screen, folders
        self._seen = b""

    def shows(self, text: str) -> bool:
        """True if the screen shows this text by now."""
        # Nothing there yet, or the other end is closed: Linux says that in this way too.
        with contextlib.suppress(OSError):
            while read := os.read(self._screen, 65_536):
                self._seen += read
        return text in self.text

    @property
    def text(self) -> str:
        return self._seen.decode(errors="replace")

    def until(self, text: str) -> None:
        """Wait for it."""
        eventually_blocking(lambda: self.shows(text) or self.process.poll() is not None, WITHIN_S, f"it shows {text!r}")
        assert self.shows(text), self.text

    def parts(self) -> list[int]:
        """The processes that it has started, by id."""
        found: list[int] = []
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                found += map(int, thread.read_text().split())
        return found

    def ended(self, within_s: float = WITHIN_S) -> int:
        """Wait for its end; its exit status."""
        # Looked at all the time: a screen that nobody reads takes no more.
        eventually_blocking(lambda: self.shows("\0") or self.process.poll() is not None, within_s, "the demo has ended")
        self.shows("")
        return self.process.wait()

    def left(self) -> list[str]:
        """Names that it has left in the folder for temporary files."""
        return sorted(path.name for path in self._folders.iterdir())


@contextlib.contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    """`streamfleet demo-gateway` on a terminal of its own."""
    folders = folder / "tmp"
    folders.mkdir()
    screen, its_end = os.openpty()
    os.set_blocking(screen, False)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
    process = subprocess.Popen(
        command("demo-gateway", "--engine", "simulated", *arguments),
        env={**outer, "TMPDIR": str(folders), "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
    )
    os.close(its_end)
    try:
        yield Demo(process, screen, folders)
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def gone(pids: list[int]) -> bool:
    """True if none of the processes runs any more."""
    return not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


def test_on_a_terminal_it_stays_until_ctrl_c_and_then_tells_how_it_went(tmp_path: Path) -> None:
    """At once, and well, whatever somebody has done meanwhile: a question that waits in a paused lane is cancelled."""
    with demo(tmp_path) as running:
        running.until("until Ctrl-C")
        parts = running.parts()
        assert len(parts) == PARTS
        found = re.search(r"REDIS_URL=(\S+)", running.text)
        assert found
        assert streamfleet(found[1], "pause", "normal").returncode == 0
        with redis.Redis.from_url(found[1]) as client:
            eventually_blocking(lambda: client.xlen("{default}:lane:normal"), 20, "a question waits")
        running.process.send_signal(signal.SIGINT)
        assert running.ended(within_s=20) == 0, running.text
        assert "not as it should be" not in running.text
        assert running.text.strip().splitlines()[-1].startswith("accepted=")
        eventually_blocking(lambda: gone(parts), what="all parts are gone")
        assert running.left() == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda signum: signum.name)
def test_interrupted_before_its_end(signum: signal.Signals, tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.until("3/8")
        eventually_blocking(lambda: len(running.parts()) >= PARTS, what="all parts run")
        parts = running.parts()
        running.process.send_signal(signum)
        assert running.ended() == 130, running.text
        assert "interrupted; all that was started has been ended" in running.text
        assert "Traceback" not in running.text
        eventually_blocking(lambda: gone(parts), what="all parts are gone")
        assert running.left() == []


def test_killed_it_takes_its_parts_along(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.until("3/8")
        eventually_blocking(lambda: len(running.parts()) >= PARTS, what="all parts run")
        parts = running.parts()
        running.process.kill()
        try:
            eventually_blocking(lambda: gone(parts), 20, "all parts are gone")
        except AssertionError:
            for pid in (each for each in parts if not gone([each])):
                os.kill(pid, signal.SIGKILL)
            raise


def test_a_port_that_is_taken_is_said_with_the_log(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(tmp_path, "--port", str(port)) as running:
            assert running.ended() == 1, running.text
            assert "the gateway ended before it was ready" in running.text
            assert f"cannot listen on 127.0.0.1:{port}" in running.text
            assert "Traceback" not in running.text
            (kept,) = running.left()
            assert (tmp_path / "tmp" / kept / "gateway.log").is_file()
