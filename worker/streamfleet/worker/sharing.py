"""One engine for the workers of several queues in one process.

`SharedEngine` starts with the first worker and stops with the last one. With it go what they know of its load, the
rules of fault containment, and whose turn it is to pull. A process with one queue uses the same parts. Nothing here
touches Redis.
"""

from __future__ import annotations

import asyncio

from streamfleet.common.errors import SettingsError
from streamfleet.common.garbage import collect_rarely
from streamfleet.common.settings import WorkerSettings
from streamfleet.worker.admission import Admission
from streamfleet.worker.containment import Containment
from streamfleet.worker.engine.base import Engine, EngineUnavailable
from streamfleet.worker.in_flight import InFlight
from streamfleet.worker.publishing import Tokens
from streamfleet.worker.turns import Turns


class SharedEngine:
    """An engine, and what the workers in front of it have in common.

    Args:
        engine: an engine that is not started yet.
        settings: the workers' settings.
        queues: the queues, each with its models: these must be among the engine's.

    Attributes:
        engine: the engine.
        queues: see above; empty if there is one queue with all models.
        in_flight: its load.
        streams: its open streams.
        admission, containment: the rules of what may run.
        turns: turns of the pullers; None if there is one queue.
    """

    def __init__(self, engine: Engine, settings: WorkerSettings, queues: dict[str, tuple[str, ...]]) -> None:
        self.engine, self.queues = engine, queues
        self.in_flight = InFlight()
        self.streams: set[Tokens] = set()
        self.admission = Admission(engine, self.in_flight, settings)
        self.containment = Containment()
        self.turns = Turns() if len(queues) > 1 else None
        self._users = 0
        self._starting = asyncio.Lock()
        self._started = False
        self._failed: asyncio.Future[str] | None = None

    def join(self) -> None:
        """Count a worker that uses the engine until it calls `leave`."""
        self._users += 1

    async def start(self) -> None:
        """Start the engine, unless another worker has.

        Raises:
            SettingsError: it does not serve a model that is set.
            EngineUnavailable: its server is not up, or does not serve a model yet.
        """
        async with self._starting:
            if self._started:
                return
            await self.engine.start()
            self._check_models()
            collect_rarely()
            self._started = True

    def _check_models(self) -> None:
        served = self.engine.models
        missing = sorted({model for models in self.queues.values() for model in models} - set(served))
        if not missing or getattr(self.engine, "loads_models", False):
            return
        said = f"the engine does not serve {', '.join(missing)}; it serves {', '.join(served)}"
        if self.engine.kind == "openai":  # a server may be told to load an adapter
            raise EngineUnavailable(said)
        raise SettingsError(f"STREAMFLEET_WORKER_MODELS: {said}")

    async def failed(self) -> str:
        """Return the reason once the engine is dead or hangs."""
        if self._failed is None:
            self._failed = asyncio.ensure_future(self.engine.failed())
        return await asyncio.shield(self._failed)

    async def leave(self) -> None:
        """Stop the engine if no other worker uses it."""
        self._users -= 1
        if self._users:
            return
        if self._failed is not None:
            self._failed.cancel()
            await asyncio.wait({self._failed})
        await self.engine.stop()
