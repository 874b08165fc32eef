"""Tests that need real vLLM: it dies, hangs, and is left behind. One engine at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamfleet.common.protocol import EMBEDDINGS, Lane
from streamfleet.worker.engine import vllm_host
from streamfleet.worker.engine.base import EngineDied, EngineRequest
from streamfleet.worker.engine.processes import Process, alive, command_line, descendants, end_all
from streamfleet.worker.engine.vllm import VllmEngine
from tests.contract.subjects import VLLM_ARGS, chat, long_chat
from tests.waiting import eventually, eventually_blocking

pytestmark = [
    pytest.mark.needs_vllm,
    pytest.mark.timeout(360),
    pytest.mark.filterwarnings("ignore:::(torch|vllm|transformers|multiprocessing)"),
]

WATCHDOG_S = 3.0


def engine_processes(pid: int) -> dict[str, Process]:
    """The engine's processes below one, by vLLM's title for them: "EngineCore" and "Worker"."""
    titles = {process: command_line(process) for process in descendants(pid)}
    return {title.split("::")[1].split()[0]: process for process, title in titles.items() if "VLLM::" in title}


def children(pid: int) -> frozenset[Process]:
    """All processes below one, but for multiprocessing's tracker, which is no engine's."""
    return frozenset(p for p in descendants(pid) if "resource_tracker" not in command_line(p))


def spawned(pid: int) -> frozenset[Process]:
    """The engine's processes below one from their first moment, when they have no title yet."""
    marks = ("VLLM::", "spawn_main")
    return frozenset(p for p in descendants(pid) if any(mark in command_line(p) for mark in marks))


@asynccontextmanager
async def started(model: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(str(model), VLLM_ARGS, watchdog_s=WATCHDOG_S)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_names_of_vllm_are_where_they_are_looked_for() -> None:
    names = vllm_host.find_names()
    assert callable(names.build_app)
    assert callable(names.init_app_state)
    assert hasattr(names.AsyncLLM, "from_engine_args")
    assert hasattr(names.AsyncEngineArgs, "from_cli_args")


async def test_wrong_engine_arguments_are_named(smollm2: Path) -> None:
    engine = VllmEngine(str(smollm2), {"max-num-seqz": 3})
    with pytest.raises(vllm_host.VllmArguments, match="max-num-seqz"):
        await engine.start()
    engine = VllmEngine(str(smollm2), {"max-num-seqs": "many"})
    with pytest.raises(vllm_host.VllmArguments, match="max-num-seqs"):
        await engine.start()


async def test_embeddings_reach_the_core_with_their_priority_and_its_room_is_known(smollm2: Path) -> None:
    engine = VllmEngine(str(smollm2), {**VLLM_ARGS, "runner": "pooling", "convert": "embed"})
    await engine.start()
    try:
        hosted = engine._hosted
        assert hosted is not None
        encode, priorities = hosted.engine.encode, []

        def listening(*given: Any, **named: Any) -> Any:
            priorities.append(named["priority"])
            return encode(*given, **named)

        hosted.engine.encode = listening
        asked = EngineRequest("e-1", EMBEDDINGS, {"input": ["one", "two"]}, Lane.HIGH, 1_790_000_000_000)
        reply = await engine.run(asked)
        assert reply.status == 200, reply.body
        assert priorities == [11_790_000_000] * 2
        with capture_logs() as logs:
            told = engine.capacity().kv_tokens
        assert told == hosted.engine.vllm_config.cache_config.kv_cache_size_tokens
        assert told is not None
        assert logs == []
    finally:
        await engine.stop()


@pytest.mark.kill
async def test_death_of_the_core_fails_what_runs_and_is_reported(smollm2: Path) -> None:
    before = children(os.getpid())
    levels = logging.root.manager.disable, logging.root.level
    async with started(smollm2) as engine:
        assert (logging.root.manager.disable, logging.root.level) == levels, "what vLLM loads leaves the logs alone"
        mine = engine_processes(os.getpid())
        assert set(mine) == {"EngineCore", "Worker"}
        # Out of our group: a SIGTERM for the whole group lets us drain.
        assert os.getpgid(mine["EngineCore"].pid) != os.getpgrp()
        assert os.getpgid(mine["Worker"].pid) != os.getpgrp()
        failed = asyncio.create_task(engine.failed())
        running = [asyncio.create_task(engine.run(long_chat(f"doomed-{n}"))) for n in range(4)]
        await eventually(lambda: engine.inside == 4, 20, "all four run")
        killed_at = time.monotonic()
        os.kill(mine["EngineCore"].pid, signal.SIGKILL)
        outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
        assert [type(outcome) for outcome in outcomes] == [EngineDied] * 4
        reason = await asyncio.wait_for(failed, 5)
        assert time.monotonic() - killed_at < 2
        assert "died" in reason
        with pytest.raises(EngineDied):
            await engine.run(chat("late"))
    assert children(os.getpid()) <= before


async def test_stopping_ends_what_runs(smollm2: Path) -> None:
    before = children(os.getpid())
    async with started(smollm2) as engine:
        running = [asyncio.create_task(engine.run(long_chat(f"stopped-{n}"))) for n in range(4)]
        await eventually(lambda: engine.inside == 4, 20, "all four run")
        await asyncio.wait_for(engine.stop(), 10)
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EngineDied] * 4
        assert children(os.getpid()) <= before
        with pytest.raises(EngineDied, match="stopped"):
            await engine.run(chat("late"))


# vLLM does not close its sockets when it cannot start, as when its processes are taken away.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_stopping_while_it_starts_leaves_no_process(smollm2: Path) -> None:
    before = children(os.getpid())
    engine = VllmEngine(str(smollm2), VLLM_ARGS)
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: spawned(os.getpid()) - before, 60, "the first engine process is there")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children(os.getpid()) <= before


@pytest.mark.kill
def test_sigkill_of_a_parent_that_starts_leaves_no_engine_process(smollm2: Path, repository: Path) -> None:
    """Of one that is ready: test_vllm_worker.py."""
    with engine_in_a_process(smollm2, repository) as (process, wait_for):
        wait_for("starting")
        left = eventually_blocking(lambda: spawned(process.pid), 60, "engine processes are there")
        process.kill()
        process.wait()
        try:
            # A child must first get as far as loading the guard.
            eventually_blocking(lambda: not any(map(alive, left)), 60)
        finally:
            end_all(left, 5)


@contextmanager
def engine_in_a_process(model: Path, repository: Path) -> Iterator[tuple[subprocess.Popen[str], Waiter]]:
    command = [sys.executable, "-m", "tests.e2e.engine_process", str(model)]
    with subprocess.Popen(
        command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process, Waiter(process)
        finally:
            process.kill()


class Waiter:
    """Reads what a process prints up to a given line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, line: str) -> None:
        assert self._process.stdout is not None
        for printed in self._process.stdout:
            if printed.strip() == line:
                return
        raise AssertionError(f"the process ended without printing {line!r}")
