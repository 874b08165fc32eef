"""examples/demo-gateway.sh, as `make demo-gateway` runs it but for the engine, which is simulated here."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streamfleet.worker.engine.engine_thread import alive, descendants, end_all
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

SCRIPT = "examples/demo-gateway.sh"
WITHIN_S = 150.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: the demo's Redis listens on a Unix socket, whose path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@contextlib.contextmanager
def demo(repository: Path, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The running script; what it prints goes into the file `shown`."""
    (folder / "tmp").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Settings of another fleet, which would keep the parts from starting.
    env = {
        **os.environ,
        "PATH": path,
        "TMPDIR": str(folder / "tmp"),
        "STREAMFLEET_GATEWAY_KEYS": "theirs",
        "COLUMNS": "200",
    }
    with (folder / "shown").open("wb") as shown:
        process = subprocess.Popen(
            # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
            ["env", "--default-signal=INT", "bash", repository / SCRIPT, "--engine", "simulated", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    parts = frozenset[psutil.Process]()
    try:
        yield process
    finally:
        parts |= descendants(process.pid)
        process.kill()
        process.wait()
        end_all(parts, 10)


def until(process: subprocess.Popen[bytes], folder: Path, text: str) -> None:
    """Wait until the script shows a text."""
    shown = folder / "shown"
    eventually_blocking(lambda: text in shown.read_text() or process.poll() is not None, WITHIN_S, f"shows {text!r}")
    assert text in shown.read_text(), shown.read_text()


def left(folder: Path) -> list[Path]:
    """Files that the script has left in the folder for temporary files."""
    return list((folder / "tmp").iterdir())


@pytest.mark.long
def test_curl_the_sdk_a_batch_a_webhook_and_the_page(repository: Path, folder: Path) -> None:
    """It stays until it is interrupted, and ends well then."""
    with demo(repository, folder, "--wait") as process:
        until(process, folder, "until Ctrl-C")
        parts = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (folder / "shown").read_text()
    shown = (folder / "shown").read_text()
    assert "not as it should be" not in shown
    assert re.search(r"^\$ streamfleet gateway keys create demo\n(key .*\n)?sf-\S{40,}$", shown, re.MULTILINE)
    assert len(re.findall(r'^data: .*"delta":{"content":"', shown, re.MULTILINE)) >= 3
    assert re.search(r"^answer: \S", shown, re.MULTILINE)
    assert re.search(r"^stream: [^|]*(\|[^|]+){3,}", shown, re.MULTILINE)
    assert len(re.findall(r'"custom_id": "line-\d", .*"content": "\[simulated\] \w', shown)) == 5
    assert re.search(r"A webhook came: batch\.completed batch_\S+: its signature is right", shown)
    assert re.search(r"^The page: +http://127\.0\.0\.1:\d+/ui\nOperator key: +sf-\S{40,}$", shown, re.MULTILINE)
    assert re.search(r"^accepted=(\d+) = succeeded=\1 ", shown, re.MULTILINE)
    assert not [each for each in parts if alive(each)]
    assert left(folder) == []


@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL], ids=["SIGTERM", "SIGKILL"]
)
def test_its_parts_end_with_it(signum: signal.Signals, repository: Path, folder: Path) -> None:
    with demo(repository, folder) as process:
        until(process, folder, "What follows")
        parts = descendants(process.pid)
        assert len(parts) >= 3, "Redis, worker, gateway"
        process.send_signal(signum)
        assert process.wait(60) == (130 if signum is signal.SIGTERM else -signum)
        eventually_blocking(lambda: not [each for each in parts if alive(each)], 20, "all parts are gone")
        assert bool(left(folder)) == (signum is signal.SIGKILL)


@pytest.mark.long
def test_a_port_that_is_taken_is_said_and_the_log_stays(repository: Path, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(repository, folder, "--port", str(port)) as process:
            assert process.wait(WITHIN_S) == 1
    shown = (folder / "shown").read_text()
    assert "the gateway ended before it was ready" in shown
    assert f"cannot listen on 127.0.0.1:{port}" in shown
    (kept,) = left(folder)
    assert (kept / "gateway.log").is_file()
