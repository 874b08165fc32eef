"""An engine that several workers share: started once, stopped last, and only with the models that are set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.engine.base import EngineUnavailable
from streamfleet.worker.sharing import SharedEngine
from tests.unit.worker_requests import OK, ScriptedEngine


class Counted(ScriptedEngine):
    """Counts its starts, stops and watchers."""

    def __init__(self, kind: str = "simulated", models: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__(self._ok)
        self.kind, self.models = kind, models
        self.starts = self.stops = self.watchers = 0

    async def _ok(self, _: Any) -> Any:
        return OK

    async def start(self) -> None:
        await asyncio.sleep(0)
        self.starts += 1

    async def stop(self) -> None:
        self.stops += 1

    async def failed(self) -> str:
        self.watchers += 1
        return await super().failed()


def shared(engine: Counted, **queues: tuple[str, ...]) -> SharedEngine:
    return SharedEngine(engine, load(WorkerSettings), queues)


async def test_it_starts_once_is_watched_once_and_stops_with_the_last() -> None:
    engine = Counted()
    both = shared(engine, qa=("a",), qb=("b",))
    both.join()
    both.join()
    await asyncio.gather(both.start(), both.start())
    watching = [asyncio.create_task(both.failed()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert (engine.starts, engine.watchers) == (1, 1)
    watching[0].cancel()
    await both.leave()
    assert engine.stops == 0
    assert not watching[1].done()
    await both.leave()
    assert engine.stops == 1
    await asyncio.gather(*watching, return_exceptions=True)


async def test_a_model_that_is_not_served_is_named() -> None:
    with pytest.raises(SettingsError, match="STREAMFLEET_WORKER_MODELS: the engine does not serve c; it serves a, b"):
        await shared(Counted(), qa=("a",), qb=("c",)).start()


async def test_a_server_may_load_a_model_later() -> None:
    engine = Counted("openai")
    both = shared(engine, qa=("a",), qb=("c",))
    with pytest.raises(EngineUnavailable, match="does not serve c"):
        await both.start()
    engine.models = ("a", "b", "c")
    await both.start()
    assert engine.starts == 2


async def test_an_engine_that_loads_models_when_they_are_asked_for_is_believed() -> None:
    engine = Counted("vllm")
    engine.loads_models = True  # type: ignore[attr-defined]
    await shared(engine, qa=("a",), qb=("c",)).start()
    assert engine.starts == 1
