"""Finding and ending the processes below one, and tying them to it. With real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psutil import Process

from streamfleet.worker.engine.engine_thread import EngineThread, alive, command_line, descendants, end_all
from streamfleet.worker.engine.orphan_guard import OWNER_VARIABLE, install
from tests.waiting import eventually_blocking

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ends children with their parent"),
]

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# A worker with an engine process: `install` runs in a spawned child of multiprocessing, as vLLM would have it: while
# the child imports (first for its main module), and when it runs.
FAMILY = """
import multiprocessing, os, sys, time
from streamfleet.worker.engine.orphan_guard import OWNER_VARIABLE, install

if sys.argv[2] == "import" and __name__ != "__main__":
    install()

def engine():
    if sys.argv[2] == "run":
        install()
    print(os.getpid(), os.getpgrp(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    if sys.argv[1] == "owned":
        os.environ[OWNER_VARIABLE] = str(os.getpid())
    multiprocessing.get_context("spawn").Process(target=engine, daemon=True).start()
    time.sleep(600)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER) as process:
        yield process
        process.kill()


def test_descendants_are_found_and_ended(sleeper: subprocess.Popen[bytes]) -> None:
    below = frozenset(p for p in descendants(os.getpid()) if p.pid == sleeper.pid)
    assert len(below) == 1
    (found,) = below
    assert "time.sleep(600)" in command_line(found)
    assert end_all(below, 5) == frozenset()
    assert not alive(found)  # though it is a zombie still: nobody waited for it
    assert found not in descendants(os.getpid())


def test_a_process_that_stands_still_is_ended_too(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    mine = frozenset(p for p in descendants(os.getpid()) if p.pid == sleeper.pid)
    assert end_all(mine, 5) == frozenset()


def test_a_later_process_of_the_same_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    other = Process(sleeper.pid)
    other._ident = (sleeper.pid, 1.0)  # as of a process that started earlier
    assert not alive(other)
    assert end_all(frozenset({other}), 1) == frozenset()
    assert sleeper.poll() is None


def test_what_is_gone_has_no_command_line_and_nothing_below_it() -> None:
    with subprocess.Popen(SLEEPER) as ended:
        known = Process(ended.pid)
        ended.kill()
    assert command_line(known) == ""
    assert descendants(ended.pid) == frozenset()


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("when", ["import", "run"])
def test_the_guard_ends_an_engine_process_with_its_parent(tmp_path: Path, owned: bool, when: str) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    word = "owned" if owned else "foreign"
    with subprocess.Popen([sys.executable, script, word, when], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, group = map(int, parent.stdout.readline().split())
        family = descendants(parent.pid)
        engine = frozenset(process for process in family if process.pid == pid)
        parent.kill()
        parent.wait()
        try:
            if owned:
                assert group == pid
                eventually_blocking(lambda: not any(map(alive, engine)), 5, "the engine process is gone")
            else:  # somebody else's use of vLLM: not ours to change
                assert group != pid
                assert all(map(alive, engine))
        finally:
            end_all(family, 5)


def test_the_guard_leaves_a_process_alone_that_is_no_child_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    group = os.getpgrp()
    monkeypatch.setenv(OWNER_VARIABLE, "1")
    install()  # not started by multiprocessing
    assert os.getpgrp() == group


async def test_an_engine_builds_and_ends_on_one_thread_that_outlives_the_rest() -> None:
    children: list[subprocess.Popen[bytes]] = []
    ended: list[str] = []

    def build() -> str:
        children.append(subprocess.Popen(SLEEPER))
        return "engine"

    thread = EngineThread(build, ended.append)
    assert await thread.start() == "engine"
    assert {process.pid for process in thread.children} == {children[0].pid}
    await thread.stop()
    assert ended == ["engine"]
    assert children[0].wait(5) == -signal.SIGKILL  # shutting down did not end it, so `stop` did
    await thread.stop()  # again does no harm


async def test_what_failed_to_build_leaves_no_process() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def build() -> str:
        children.append(subprocess.Popen(SLEEPER))
        raise OSError("no room on the device")

    with pytest.raises(OSError, match="no room"):
        await EngineThread(build, lambda _: None).start()
    assert children[0].wait(5) == -signal.SIGKILL


async def test_a_build_that_wants_to_end_the_process_is_an_error() -> None:
    def build() -> str:
        raise SystemExit(2)

    with pytest.raises(RuntimeError, match="gave up while starting"):
        await EngineThread(build, lambda _: None).start()


async def test_stopping_while_building_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.worker.engine.engine_thread._END_TIMEOUT_S", 1.0)
    children: list[subprocess.Popen[bytes]] = []
    born = asyncio.Event()
    loop = asyncio.get_running_loop()

    def build() -> str:
        children.append(subprocess.Popen(SLEEPER))
        loop.call_soon_threadsafe(born.set)
        children[0].wait()  # as an engine waits for its processes, and fails without them
        raise OSError("the engine's process is gone")

    thread = EngineThread(build, lambda _: None)
    starting = asyncio.create_task(thread.start())
    await born.wait()
    starting.cancel()
    await thread.stop()
    assert children[0].returncode == -signal.SIGKILL
