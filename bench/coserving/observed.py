"""An engine under observation: notes each run of a request in it, and when patient requests get their tokens.

It sees what the engine really did, those runs included that were ended early, and whose tokens nobody got.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.coserving.cases import PATIENT_LANE
from streamfleet.worker.engine.base import Capacity, Engine, EngineReply, EngineRequest

MOST_PROBES = 2
"""So many patient requests are streamed at a time: each shows the engine's steps, and costs a little."""


@dataclass(frozen=True)
class Run:
    """One stay of a request in an engine; times in epoch seconds.

    Attributes:
        id: the request's id.
        lane: its lane.
        began_s, ended_s: the stay, waiting in front of the engine's slots included.
        first_ms: time from `began_s` to the first token; None if it is not known.
        kept: tokens taken over from an earlier run.
        tokens: tokens that it wrote itself.
        whole: true if it was not ended early.
    """

    id: str
    lane: str
    began_s: float
    ended_s: float
    first_ms: float | None
    kept: int
    tokens: int
    whole: bool


@dataclass
class Log:
    """Log of one engine.

    Attributes:
        runs: in the order in which they ended.
        token_times: for each request that was looked at, when its tokens came, in epoch seconds.
    """

    runs: list[Run] = field(default_factory=list)
    token_times: list[list[float]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        half_done = path.with_suffix(".part")
        half_done.write_text(json.dumps(asdict(self)), encoding="utf-8")
        half_done.replace(path)

    @classmethod
    def load(cls, path: Path) -> Log:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return cls([Run(**run) for run in raw["runs"]], raw["token_times"])


class Observed:
    """An engine that logs its runs.

    Args:
        engine: the engine itself.
        log: gets the runs.
        sharers: number of workers that start and stop it.
        patient_lane: lane of the patient work.
    """

    def __init__(self, engine: Engine, log: Log, sharers: int = 1, patient_lane: str = PATIENT_LANE) -> None:
        self._engine, self._log, self._sharers, self._patient_lane = engine, log, sharers, patient_lane
        self._probes = 0
        self._starting, self._started = asyncio.Lock(), False
        self.kind, self.models, self.endpoints = engine.kind, engine.models, engine.endpoints

    async def start(self) -> None:
        """Start it, once for all workers that share it."""
        async with self._starting:
            if not self._started:
                await self._engine.start()
                self.models, self.endpoints = self._engine.models, self._engine.endpoints
                self._started = True

    async def stop(self) -> None:
        """Stop it with the last worker."""
        self._sharers -= 1
        if self._sharers <= 0:
            await self._engine.stop()

    def capacity(self) -> Capacity:
        return self._engine.capacity()

    async def failed(self) -> str:
        return await self._engine.failed()

    async def run(self, request: EngineRequest) -> EngineReply:
        """Answer one request, and log the run."""
        began_s, looks = time.time(), request.lane == self._patient_lane and self._probes < MOST_PROBES
        if looks:
            self._probes += 1
            request.on_chunk = self._look(request.on_chunk)
        reply = None
        try:
            reply = await self._engine.run(request)
        finally:
            self._probes -= looks
            self._log.runs.append(_run(request, began_s, reply))
        return reply

    def _look(self, hand_on: Callable[[bytes], None] | None) -> Callable[[bytes], None]:
        times: list[float] = []
        self._log.token_times.append(times)

        def look(chunk: bytes) -> None:
            times.append(time.time())
            if hand_on is not None:
                hand_on(chunk)

        return look


class Slots:
    """A fixed part of an engine's slots, as the engine of one of the workers that share it."""

    def __init__(self, engine: Observed, slots: int) -> None:
        self._engine, self._slots = engine, slots
        self.kind, self.models, self.endpoints = engine.kind, engine.models, engine.endpoints

    async def start(self) -> None:
        await self._engine.start()
        self.models, self.endpoints = self._engine.models, self._engine.endpoints

    async def run(self, request: EngineRequest) -> EngineReply:
        return await self._engine.run(request)

    def capacity(self) -> Capacity:
        """So many slots, and as large a part of the KV cache."""
        whole = self._engine.capacity()
        kv_tokens = None if whole.kv_tokens is None else whole.kv_tokens * self._slots // whole.slots
        return Capacity(self._slots, kv_tokens, whole.max_model_len)

    async def failed(self) -> str:
        return await self._engine.failed()

    async def stop(self) -> None:
        await self._engine.stop()


def _run(request: EngineRequest, began_s: float, reply: EngineReply | None) -> Run:
    answer: dict[str, Any] = {} if reply is None else json.loads(reply.body)
    usage = answer.get("usage") or request.usage or {}
    return Run(
        id=request.id,
        lane=str(request.lane),
        began_s=began_s,
        ended_s=time.time(),
        first_ms=None if reply is None else reply.first_token_ms,
        kept=request.resumed_tokens,
        tokens=max(0, int(usage.get("completion_tokens", 0)) - request.resumed_tokens),
        whole=reply is not None and reply.status < 400,
    )
