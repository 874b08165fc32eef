"""A real Redis and a worker process with real vLLM, for as long as one run lasts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.redis_server import free_port
from tests.waiting import eventually

START_S = 240.0


@dataclass(frozen=True)
class Scene:
    """The running processes.

    Attributes:
        url: the Redis.
        process: the worker.
        log: what the worker printed.
    """

    url: str
    process: asyncio.subprocess.Process
    health_port: int
    log: Path

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def get(self, path: str) -> str:
        """A page of the worker's health server."""

        def read() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=10) as page:
                return str(page.read().decode())

        return await asyncio.to_thread(read)

    async def _ready(self) -> bool:
        assert self.alive, self.log.read_text(errors="replace")[-3_000:]
        try:
            return bool(await self.get("/readyz"))
        except OSError:
            return False


def faster_dtype() -> list[str]:
    """vLLM's arguments for the number format that this CPU computes faster: bfloat16, the model's, if it knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    knows_bfloat16 = cpuinfo.exists() and "avx512_bf16" in cpuinfo.read_text(encoding="utf-8")
    return [] if knows_bfloat16 else ["--dtype", "float32"]


@contextlib.asynccontextmanager
async def scene(url: str, model: Path, log: Path, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    """A worker that takes requests; ended at the end.

    Args:
        url: of a Redis.
        model: the model's folder.
        log: where the worker's output goes.
        settings: the worker's, by their variables' names.
    """
    port = free_port()
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMFLEET_", "REDIS_URL"))}
    environment = {**outer, "REDIS_URL": url, "STREAMFLEET_HEALTH_PORT": str(port), **settings}
    command = [sys.executable, "-m", "streamfleet.cli", "worker", "--engine", "vllm", "--model", str(model)]
    command += ["--", "--max-model-len", "2048", *faster_dtype()]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=out, stderr=out)
    running = Scene(url, process, port, log)
    try:
        await eventually(running._ready, START_S, "the worker is ready")
        yield running
    finally:
        if running.alive:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 45)
            except TimeoutError:
                process.kill()
        await process.wait()
