"""Which models there are, and whose workers answer for each: as the settings say, or as the workers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from streamfleet.common.clock import Clock
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.settings_gateway import ModelRoute
from streamfleet.gateway.errors import NO_WORKER_S, SERVER, ApiError, retry_after
from streamfleet.producer.fleet import WorkerView

REUSE_S = 2.0
Look = Callable[[], Awaitable[Sequence[WorkerView]]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where a request goes.

    Attributes:
        queue: whose workers answer.
        served: what they call the model; None where the caller named none and there is only one.
    """

    queue: str
    served: str | None


def announced(workers: Sequence[WorkerView]) -> list[str]:
    """Models that workers say they serve: the living, or where none lives, those that are not forgotten yet."""
    living = [worker for worker in workers if worker.alive]
    return sorted({model for worker in living or workers for model in worker.models if model})


class Models:
    """The models that callers may name.

    Args:
        routes: of the settings; empty to go by the workers.
        queue: whose workers that are.
        look: asks Redis for them.
        clock: for how long an answer serves.
    """

    def __init__(self, routes: Sequence[ModelRoute], queue: str, look: Look, clock: Clock) -> None:
        self._routes = {route.model: route for route in routes}
        self._queue = queue
        self._look = look
        self._clock = clock
        self._seen: list[str] = []
        self._seen_at = float("-inf")
        self._looking = asyncio.Lock()

    @property
    def queues(self) -> list[str]:
        """All queues that requests may go to."""
        return sorted({route.queue for route in self._routes.values()}) or [self._queue]

    async def names(self) -> list[str]:
        """All models, by name."""
        return sorted(self._routes) if self._routes else await self._announced()

    async def choose(self, model: object) -> Chosen:
        """Where a request for this model goes.

        Raises:
            InvalidRequest: the model is no text, or none is named and there are several.
            ApiError: there is no such model.
        """
        if model is not None and not isinstance(model, str):
            raise InvalidRequest("must be a string", "model", "invalid_type")
        if self._routes:
            return self._routed(model)
        if model is None:
            return Chosen(self._queue, None)
        names = await self._announced()
        if model in names:
            return Chosen(self._queue, model)
        if not names:
            text = (
                "no worker has said yet which models there are; try again, or name them in STREAMFLEET_GATEWAY_MODELS"
            )
            raise ApiError(503, text, "no_worker", SERVER, headers=retry_after(NO_WORKER_S))
        raise unknown(model)

    def _routed(self, model: str | None) -> Chosen:
        if model is None and len(self._routes) > 1:
            text = f"is missing: name one of {', '.join(sorted(self._routes))}"
            raise InvalidRequest(text, "model", "missing_required_parameter")
        route = next(iter(self._routes.values())) if model is None else self._routes.get(model)
        if route is None:
            raise unknown(str(model))
        return Chosen(route.queue, route.served)

    async def _announced(self) -> list[str]:
        if self._clock.monotonic() - self._seen_at >= REUSE_S:
            async with self._looking:  # one look for all who wait for it
                if self._clock.monotonic() - self._seen_at >= REUSE_S:
                    self._seen = announced(await self._look())
                    self._seen_at = self._clock.monotonic()
        return self._seen


def unknown(model: str) -> ApiError:
    """There is no such model."""
    text = f"the model {model[:80]!r} does not exist, or is not served here; GET /v1/models has those that are"
    return ApiError(404, text, "model_not_found", param="model")
