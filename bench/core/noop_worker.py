"""A worker whose engine answers at once, always the same, so that only the queue's own cost remains.

All except the engine is the real worker: `python -m bench.core.noop_worker`, with the settings of a worker in its
environment. BENCH_ANSWER_BYTES is the size of an answer; BENCH_SLOTS the number of requests that the engine holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from streamfleet.common.settings import EngineSettings, load_all
from streamfleet.worker.engine.base import Capacity, Engine, EngineReply, EngineRequest
from streamfleet.worker.main import run_worker


class NoopEngine:
    """Answers every request with the same chat completion, without any work."""

    kind = "no-op"
    models: tuple[str, ...] = ("none",)
    endpoints: tuple[str, ...] = ()

    def __init__(self, answer_bytes: int, slots: int) -> None:
        self._capacity = Capacity(slots)
        self._reply = EngineReply(200, answer(answer_bytes))

    async def start(self) -> None:
        """Nothing to start."""

    async def run(self, request: EngineRequest) -> EngineReply:  # noqa: ARG002 - every request is alike
        return self._reply

    def capacity(self) -> Capacity:
        return self._capacity

    async def failed(self) -> str:
        """Never return."""
        reason: str = await asyncio.get_running_loop().create_future()
        return reason

    async def stop(self) -> None:
        """Nothing to stop."""


def answer(size: int) -> bytes:
    """A chat completion of about so many bytes."""
    usage = {"prompt_tokens": 8, "completion_tokens": 16, "total_tokens": 24}

    def filled(text: str) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()

    return filled("x" * max(0, size - len(filled(""))))


def make_engine(settings: EngineSettings, max_sequences: int, reserve: int) -> Engine:  # noqa: ARG001 - the place of a real factory
    return NoopEngine(int(os.environ.get("BENCH_ANSWER_BYTES", "500")), int(os.environ.get("BENCH_SLOTS", "512")))


if __name__ == "__main__":
    sys.exit(run_worker(*load_all(engine="simulated", health_port=0), make_engine))
