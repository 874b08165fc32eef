"""Model names, and the queue whose workers serve each: from the settings, or from the workers themselves.

`Models.choose` maps the model of a request to a queue. It reads descriptions of workers from Redis, at most every two
seconds for a queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.common.clock import Clock
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.settings_gateway import ModelRoute
from streamfleet.gateway.errors import NO_WORKER_S, SERVER, ApiError, retry_after
from streamfleet.gateway.queues import Shared
from streamfleet.operator.fleet import WorkerView

REUSE_S = 2.0
OBEYED = frozenset(
    {"model", "stream", "stream_options", "service_tier", "prompt_cache_key", "user"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
"""Fields that gateways and workers obey themselves, whatever the engine reads."""
Look = Callable[[str], Awaitable[Sequence[WorkerView]]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Destination of a request.

    Attributes:
        queue: the queue to put it into.
        served: the workers' name of the model; None if the caller named none and there is only one.
    """

    queue: str
    served: str | None


def announced_models(workers: Sequence[WorkerView]) -> list[str]:
    """Models that living workers serve; if none lives, those of workers that Redis still remembers."""
    living = [worker for worker in workers if worker.alive]
    return sorted({model for worker in living or workers for model in worker.models if model})


class Models:
    """The models that callers may name.

    Args:
        routes: from the settings; empty to use what the workers say.
        queue: the queue of those workers.
        look: reads the workers of a queue from Redis.
        clock: for the age of such a reading.
    """

    def __init__(self, routes: Sequence[ModelRoute], queue: str, look: Look, clock: Clock) -> None:
        self._routes = {route.model: route for route in routes}
        self._queue = queue
        self._look = look
        self._clock = clock
        self._seen: dict[str, tuple[float, Sequence[WorkerView]]] = {}
        self._obeyed: dict[tuple[str, str | None, str], frozenset[str] | None] = {}
        self._looking: Shared[None] = Shared()

    @property
    def queues(self) -> list[str]:
        """All queues that requests may go to."""
        return sorted({route.queue for route in self._routes.values()}) or [self._queue]

    async def names(self) -> list[str]:
        """All models, by name."""
        return sorted(self._routes) if self._routes else announced_models(await self._workers(self._queue))

    @property
    def default_model(self) -> str:
        """The model of requests that name none, as far as workers were seen; empty if nobody knows."""
        _, workers = self._seen.get(self._queue, (0.0, ()))
        return next(iter(announced_models(workers)), "")

    async def choose(self, model: object, endpoint: str = "") -> Chosen:
        """Returns the destination of a request for this model.

        Args:
            model: as the caller named it.
            endpoint: the endpoint that all workers have to serve, as any of them may get the request; empty for any. A
                worker that names no endpoints may serve it, and so may one that starts later if none lives now.

        Raises:
            InvalidRequest: the model is no text, or it is missing and there are several.
            ApiError: there is no such model, or a living worker of its queue does not serve the endpoint.
        """
        chosen = await self._choose(model)
        if endpoint:
            declared = [worker.endpoints for worker in await self._workers(chosen.queue) if worker.alive]
            if any(served and endpoint not in served for served in declared):
                text = f"not every worker of this model serves {endpoint}"
                raise ApiError(404, text, "unknown_endpoint", param="model")
        return chosen

    async def context(self, queue: str, served: str | None = None) -> int | None:
        """Returns the most tokens of a sequence in any engine of a queue; None if a worker does not say it.

        Args:
            queue: the queue.
            served: the workers' name of a model, for the engines that serve it alone.
        """
        workers = await self._workers(queue)
        started = [worker for worker in workers if worker.slots and served in (None, *worker.models)]
        told = [worker.max_model_len for worker in [each for each in started if each.alive] or started]
        return max((length or 0 for length in told), default=0) or None if all(told) else None

    async def lengths(self) -> dict[str, int | None]:
        """The most tokens of a sequence of all models, prompt and output together, by name; None if it is unknown."""
        found: dict[str, int | None] = {}
        for name in await self.names():
            chosen = await self._choose(name)
            found[name] = await self.context(chosen.queue, chosen.served)
        return found

    def ignored(self, chosen: Chosen, endpoint: str, body: Mapping[str, Any]) -> list[str]:
        """Fields of a body that some worker that may get it ignores; none where no living worker tells."""
        key = (chosen.queue, chosen.served, endpoint)
        if key not in self._obeyed:
            told = [
                worker.fields[endpoint]
                for worker in self._seen.get(chosen.queue, (0.0, ()))[1]
                if worker.alive and endpoint in worker.fields and chosen.served in (None, *worker.models)
            ]
            self._obeyed[key] = frozenset.intersection(*told) | OBEYED if told else None
        obeyed = self._obeyed[key]
        if obeyed is None or body.keys() <= obeyed:
            return []
        return sorted(name for name in body.keys() - obeyed if body[name] is not None)

    async def _choose(self, model: object) -> Chosen:
        if model is not None and not isinstance(model, str):
            raise InvalidRequest("must be a string", "model", "invalid_type")
        if self._routes:
            return self._route(model)
        if model is None:
            return Chosen(self._queue, None)
        names = announced_models(await self._workers(self._queue))
        if model in names:
            return Chosen(self._queue, model)
        if not names:
            text = (
                "no worker has said yet which models there are; try again, or name them in STREAMFLEET_GATEWAY_MODELS"
            )
            raise ApiError(503, text, "no_worker", SERVER, headers=retry_after(NO_WORKER_S))
        raise model_not_found(model)

    def _route(self, model: str | None) -> Chosen:
        if model is None and len(self._routes) > 1:
            text = f"is missing: name one of {', '.join(sorted(self._routes))}"
            raise InvalidRequest(text, "model", "missing_required_parameter")
        route = next(iter(self._routes.values())) if model is None else self._routes.get(model)
        if route is None:
            raise model_not_found(str(model))
        return Chosen(route.queue, route.served)

    async def _workers(self, queue: str) -> Sequence[WorkerView]:
        """Workers of a queue, read at most two seconds ago."""
        if queue not in self._seen or self._clock.monotonic() - self._seen[queue][0] >= REUSE_S:
            await self._looking.run(queue, lambda: self._look_at(queue))
        return self._seen[queue][1]

    async def _look_at(self, queue: str) -> None:
        self._seen[queue] = (self._clock.monotonic(), await self._look(queue))
        self._obeyed.clear()


def model_not_found(model: str) -> ApiError:
    """Returns the answer for a model that does not exist."""
    text = f"the model {model[:80]!r} does not exist, or is not served here; GET /v1/models has those that are"
    return ApiError(404, text, "model_not_found", param="model")
