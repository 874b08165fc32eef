"""Two small taps on an in-process engine's front end: what is inside, and when its first token came.

Wraps the two methods through which every request goes; neither bodies nor answers are touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from streamfleet.worker.engine.watchdog import Watchdog


@dataclass(slots=True)
class Timing:
    """Filled in while a request runs. ``first_token_ms`` stays None where the engine does not tell."""

    first_token_ms: float | None = None


# The context travels with the tasks that the application starts for a request: no ids to match.
current_timing: ContextVar[Timing | None] = ContextVar("streamfleet_timing", default=None)


def tap(engine: Any, watchdog: Watchdog) -> None:
    """Watch ``engine.generate`` and ``engine.encode``, for this one object."""
    engine.generate = _tapped(engine.generate, watchdog)
    engine.encode = _tapped(engine.encode, watchdog)


def _tapped(method: Callable[..., Any], watchdog: Watchdog) -> Callable[..., AsyncIterator[Any]]:
    async def tapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        timing = current_timing.get()
        watchdog.entered()
        try:
            # Closed with us: an inner generator left to the garbage collector would abort its request late.
            async with aclosing(method(*args, **kwargs)) as outputs:
                async for output in outputs:
                    if timing is not None:
                        _note(timing, output)
                    yield output
        finally:
            watchdog.left()

    return tapped


def _note(timing: Timing, output: Any) -> None:
    latency_s = getattr(getattr(output, "metrics", None), "first_token_latency", None)
    if timing.first_token_ms is None and isinstance(latency_s, (int, float)) and latency_s > 0:
        timing.first_token_ms = latency_s * 1000
