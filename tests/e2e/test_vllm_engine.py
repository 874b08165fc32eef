"""Tests that need real vLLM: how it starts, is stopped, and is left behind. One engine at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from psutil import Process
from structlog.testing import capture_logs

from streamfleet.common.protocol import EMBEDDINGS, Lane
from streamfleet.worker.engine import vllm_host
from streamfleet.worker.engine.base import EngineDied, EngineRequest
from streamfleet.worker.engine.engine_thread import alive, command_line, descendants, end_all
from streamfleet.worker.engine.vllm import VllmEngine
from streamfleet.worker.engine.vllm_setup import arguments
from tests.contract.subjects import VLLM_ARGS, children
from tests.waiting import eventually, eventually_blocking

pytestmark = [
    pytest.mark.needs_vllm,
    pytest.mark.timeout(360),
    pytest.mark.filterwarnings("ignore:::(torch|vllm|transformers|multiprocessing)"),
]

WATCHDOG_S = 3.0


def spawned(pid: int) -> frozenset[Process]:
    """The engine's processes below one from their first moment, when they have no title yet."""
    marks = ("VLLM::", "spawn_main")
    return frozenset(p for p in descendants(pid) if any(mark in command_line(p) for mark in marks))


@dataclass(frozen=True)
class Pooling:
    """A started engine that embeds, after the process of another one was killed while that started.

    Attributes:
        engine: shared by all tests that do not start their own.
        others: processes below this one that are none of the engine's.
        levels: what the engine's start was to leave as it is, before and after.
        temp: the folder for temporary files of both engines.
        killed: name of the folder in it that the killed one had.
        orphans: processes of the killed one's engine.
    """

    engine: VllmEngine
    others: frozenset[Process]
    levels: tuple[tuple[int, int], tuple[int, int]]
    temp: Path
    killed: str
    orphans: frozenset[Process]

    def folders(self) -> list[str]:
        """Folders of engines among the temporary files."""
        return folders_in(self.temp)


def folders_in(temp: Path) -> list[str]:
    # Compiled code stays; files beside the folder are temporary ones of libraries, gone in a moment.
    found = [path for path in temp.iterdir() if path.is_dir()]
    return sorted(path.name for path in found if not path.name.startswith("torchinductor_"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pooling(smollm2: Path, repository: Path) -> AsyncIterator[Pooling]:
    def levels() -> tuple[int, int]:
        return logging.root.manager.disable, logging.root.level

    engine = VllmEngine(str(smollm2), {**VLLM_ARGS, "runner": "pooling", "convert": "embed"}, watchdog_s=WATCHDOG_S)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # short, as temp folders are
        temp = Path(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", name)
            killed, orphans = killed_while_it_starts(smollm2, repository, temp)
            others, before = children(), levels()
            patch.setattr(tempfile, "tempdir", name)
            await engine.start()
        try:
            yield Pooling(engine, others, (before, levels()), temp, killed, orphans)
        finally:
            await engine.stop()


def killed_while_it_starts(model: Path, repository: Path, temp: Path) -> tuple[str, frozenset[Process]]:
    """Kill a process whose engine starts. Returns the folder's name and the processes that the engine had then."""
    command = [sys.executable, "-m", "tests.e2e.engine_process", str(model)]
    with subprocess.Popen(
        command, cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            (folder,) = eventually_blocking(lambda: folders_in(temp), 60, "it has a folder")
            eventually_blocking(lambda: list((temp / folder).iterdir()), 60, "and uses it")
            orphans = eventually_blocking(lambda: spawned(process.pid), 60, "engine processes are there")
        finally:
            process.kill()
    return folder, orphans


def embeddings(identity: str, *texts: str) -> EngineRequest:
    """A request with these inputs."""
    return EngineRequest(identity, EMBEDDINGS, {"input": texts}, Lane.HIGH, 1_790_000_000_000)


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


def test_limits_of_vllms_own_choice_are_raised(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int | None, int | None]] = []

    def start(args: Any, **_: Any) -> None:
        started.append((args.max_num_seqs, args.max_num_batched_tokens))

    names = vllm_host.find_names()
    monkeypatch.setattr(names.AsyncLLM, "from_engine_args", start)
    for given in ({"max-num-seqs": None, "enable-chunked-prefill": True}, {}):
        argv = arguments({"max-model-len": 2048, **given}, cpu=True, reserve_percent=25)
        vllm_host.build(str(smollm2), argv, None, 25)
    assert started == [(160, None), (40, 2088)]


@pytest.mark.long
@pytest.mark.kill
def test_sigkill_of_a_parent_that_starts_leaves_no_engine_process(pooling: Pooling) -> None:
    """Of one that is ready: test_vllm_worker.py."""
    try:
        # A child must first get as far as loading the guard.
        eventually_blocking(lambda: not any(map(alive, pooling.orphans)), 60)
    finally:
        end_all(pooling.orphans, 5)


@pytest.mark.long
def test_files_of_a_killed_engine_are_gone_at_the_next_start(pooling: Pooling) -> None:
    (own,) = pooling.folders()
    assert own != pooling.killed
    assert any(path.is_socket() for path in (pooling.temp / own).iterdir())


@pytest.mark.long
def test_what_vllm_loads_leaves_the_logs_alone(pooling: Pooling) -> None:
    before, after = pooling.levels
    assert after == before


@pytest.mark.long
@pytest.mark.asyncio(loop_scope="module")
async def test_embeddings_reach_the_core_with_their_priority_and_its_room_is_known(
    pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, hosted = pooling.engine, pooling.engine._hosted
    assert hosted is not None
    encode, priorities = hosted.engine.encode, []

    def listening(*given: Any, **named: Any) -> Any:
        priorities.append(named["priority"])
        return encode(*given, **named)

    monkeypatch.setattr(hosted.engine, "encode", listening)
    reply = await engine.run(embeddings("e-1", "one", "two"))
    assert reply.status == 200, reply.body
    assert priorities == [11_790_000_000] * 2
    with capture_logs() as logs:
        told = engine.capacity().kv_tokens
    assert told == hosted.engine.vllm_config.cache_config.kv_cache_size_tokens
    assert told is not None
    assert logs == []


@pytest.mark.long
@pytest.mark.asyncio(loop_scope="module")
async def test_stopping_ends_what_runs(pooling: Pooling) -> None:
    """The last test of the shared engine. Of one that dies: tests/contract."""
    engine = pooling.engine
    texts = [f"{number} {'word ' * 1_500}" for number in range(16)]
    running = [asyncio.create_task(engine.run(embeddings(f"stopped-{n}", *texts))) for n in range(4)]
    await eventually(lambda: engine.inside == 64, 20, "all inputs of all four are inside")
    await asyncio.wait_for(engine.stop(), 10)
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineDied] * 4
    with pytest.raises(EngineDied, match="stopped"):
        await engine.run(embeddings("late", "one"))
    assert children() <= pooling.others
    assert pooling.folders() == [], "its files are gone with it"


# vLLM does not close its sockets when it cannot start, as when its processes are taken away.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_stopping_while_it_starts_leaves_no_process(smollm2: Path) -> None:
    before = children()
    engine = VllmEngine(str(smollm2), VLLM_ARGS)
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: spawned(os.getpid()) - before, 60, "the first engine process is there")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children() <= before
