"""Taps on an in-process engine's front end: the number of requests inside, and the tokens of each so far.

Wraps the two methods that every request passes; bodies and answers stay unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from streamfleet.worker.engine.watchdog import Watchdog


@dataclass(slots=True)
class Timing:
    """Progress of one request, filled in while it runs.

    Attributes:
        first_token_ms: milliseconds from submission to first token; None if the engine does not tell.
        ids: the engine's ids of its parts, one for each prompt, for `abort`.
        prompt_tokens, output_tokens: sums over all parts, as far as the engine has told.
    """

    first_token_ms: float | None = None
    ids: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0


_ID_AT = 2
"""Position of ``request_id`` among the arguments of both methods."""

# The application's tasks for a request inherit the context, so no ids need to be matched.
current_timing: ContextVar[Timing | None] = ContextVar("streamfleet_timing", default=None)


def tap(engine: Any, watchdog: Watchdog) -> None:
    """Wrap ``engine.generate`` and ``engine.encode`` of this one object."""
    engine.generate = _tapped(engine.generate, watchdog)
    engine.encode = _tapped(engine.encode, watchdog)


def _tapped(method: Callable[..., Any], watchdog: Watchdog) -> Callable[..., AsyncIterator[Any]]:
    async def tapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        timing = current_timing.get()
        if timing is not None and "request_id" in kwargs:
            timing.ids.append(kwargs["request_id"])
        elif timing is not None and len(args) > _ID_AT:
            timing.ids.append(args[_ID_AT])
        first = True
        watchdog.entered()
        try:
            # Closed together with this generator; an inner one left to the garbage collector would abort its request
            # late.
            async with aclosing(method(*args, **kwargs)) as outputs:
                async for output in outputs:
                    if timing is not None:
                        _note(timing, output, first=first)
                    first = False
                    yield output
        finally:
            watchdog.left()

    return tapped


def _note(timing: Timing, output: Any, *, first: bool) -> None:
    if first:
        timing.prompt_tokens += len(getattr(output, "prompt_token_ids", None) or ())
    choices = getattr(output, "outputs", None)
    if isinstance(choices, list):  # of generated text: each output holds new tokens, a whole answer all of them
        timing.output_tokens += sum(len(getattr(choice, "token_ids", ())) for choice in choices)
    latency_s = getattr(getattr(output, "metrics", None), "first_token_latency", None)
    if timing.first_token_ms is None and isinstance(latency_s, (int, float)) and latency_s > 0:
        timing.first_token_ms = latency_s * 1000
