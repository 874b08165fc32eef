"""The engines under contract, each with what a test must know of it beyond the contract."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import REGISTRY
from psutil import Process

from streamfleet.common.protocol import CHAT, Lane
from streamfleet.worker.engine.base import Engine, EngineRequest
from streamfleet.worker.engine.engine_thread import command_line, descendants
from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from streamfleet.worker.engine.vllm import VllmEngine

MAX_MODEL_LEN = 2048
VLLM_ARGS: Mapping[str, Any] = {
    "max-model-len": MAX_MODEL_LEN,
    "dtype": "float32",
    "served-model-name": "smollm2",
    "max-num-seqs": 32,
}
TOOL_PARSER = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}

BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "a number that is none": ({"max_tokens": "many"}, 400, "max_tokens"),
    "no tokens at all": ({"max_tokens": -1}, 400, "max_tokens"),
    "a negative temperature": ({"temperature": -3}, 400, "temperature"),
    "messages that are none": ({"messages": "hi"}, 400, "messages"),
    "a message without a role": ({"messages": [{"content": "hi"}]}, 400, "role"),
    "a model that is not there": ({"model": "no-such-model"}, 404, "model"),
    "a prompt that is too long": ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "input"),
    "too many tokens wanted": ({"max_tokens": 100_000}, 400, "max_tokens"),
    "too many choices": ({"n": 100_000}, 400, "n"),
}
"""By name: the change to a chat, the status that refuses it, and a word of the refusal."""


@dataclass(frozen=True)
class Subject:
    """A started engine.

    Attributes:
        engine: what is under test.
        running: how many requests run in the engine itself, asked behind the back of what is under test.
        others: processes below this one that are none of the engine's.
    """

    engine: Engine
    running: Callable[[], Awaitable[float]]
    others: frozenset[Process]


def children() -> frozenset[Process]:
    """All processes below this one, but for multiprocessing's tracker and the simulated server: neither is vLLM's."""
    none_of_vllm = ("resource_tracker", "simulated_server")
    return frozenset(p for p in descendants(os.getpid()) if not any(name in command_line(p) for name in none_of_vllm))


@asynccontextmanager
async def simulated() -> AsyncIterator[Subject]:
    """The simulated engine, about as fast as a small GPU."""
    others = children()
    engine = SimulatedEngine(replace(GENERIC_FAST, slots=32, max_model_len=MAX_MODEL_LEN), embeddings=False)

    async def running() -> float:
        return engine.running

    await engine.start()
    try:
        yield Subject(engine, running, others)
    finally:
        await engine.stop()


@asynccontextmanager
async def simulated_server(repository: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A process that serves the simulated engine over HTTP: its address, and itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contract.simulated_server",
        str(MAX_MODEL_LEN),
        cwd=repository,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 20))
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def openai(repository: Path) -> AsyncIterator[Subject]:
    """The openai engine in front of a server process with the simulated engine in it."""
    async with simulated_server(repository) as (url, _), httpx.AsyncClient(base_url=url) as client:
        others = children()

        async def running() -> float:
            return float((await client.get("/running")).text)

        engine = OpenAIEngine(Upstream(url + "/v1"))
        await engine.start()
        try:
            yield Subject(engine, running, others)
        finally:
            await engine.stop()


@asynccontextmanager
async def vllm(model: Path) -> AsyncIterator[Subject]:
    """Real vLLM with a real model."""
    others = children()
    engine = VllmEngine(str(model), {**VLLM_ARGS, **TOOL_PARSER})
    await engine.start()

    async def running() -> float:
        labels = {"model_name": "smollm2", "engine": "0"}
        return REGISTRY.get_sample_value("vllm:num_requests_running", labels) or 0.0

    try:
        yield Subject(engine, running, others)
    finally:
        await engine.stop()


def chat(identity: str, content: str = "What is the capital of France?", **body: Any) -> EngineRequest:
    """A chat request of one message."""
    messages = [{"role": "user", "content": content}]
    return EngineRequest(identity, CHAT, {"messages": messages, "max_tokens": 8, **body}, Lane.NORMAL)


def long_chat(identity: str) -> EngineRequest:
    """A request that runs for many seconds in every engine under test, unless it is cancelled."""
    return chat(identity, max_tokens=1900, ignore_eos=True)


@dataclass
class Collected:
    """A streamed request, and its chunks."""

    request: EngineRequest
    chunks: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.request.on_chunk = lambda line: self.chunks.append(json.loads(bytes(line)))

    @property
    def text(self) -> str:
        """The text of the first choice, from all its chunks."""
        choices = [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == 0]
        return "".join(
            choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices
        )
