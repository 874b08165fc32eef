"""Waiting for something to become true, within a bound, instead of sleeping for as long as it might take."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

POLL_S = 0.01


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], within_s: float = ..., what: str | None = ...) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], within_s: float = ..., what: str | None = ...) -> T: ...
async def eventually(predicate: Callable[[], Any], within_s: float = 5.0, what: str | None = None) -> Any:
    """The first truthy answer of `predicate`, sync or async.

    Raises:
        AssertionError: none came in time; names `what` (default: the predicate's name) and its last answer.
    """
    give_up = time.monotonic() + within_s
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > give_up:
            raise AssertionError(_too_late(predicate, within_s, what, answer))
        await asyncio.sleep(POLL_S)


async def until_somebody_blocks(rows: Any) -> None:
    """Wait until a connection to the Redis of this client waits in a blocking command: it will notice its end."""

    async def block() -> bool:
        return bool((await rows.info("clients"))["blocked_clients"])

    await eventually(block, 10, "a connection blocks")


def eventually_blocking(predicate: Callable[[], T], within_s: float = 5.0, what: str | None = None) -> T:
    """As `eventually`, for tests without an event loop."""
    give_up = time.monotonic() + within_s
    while not (answer := predicate()):
        if time.monotonic() > give_up:
            raise AssertionError(_too_late(predicate, within_s, what, answer))
        time.sleep(POLL_S)
    return answer


def _too_late(predicate: Callable[..., object], within_s: float, what: str | None, answer: object) -> str:
    name = what or getattr(predicate, "__qualname__", repr(predicate))
    return f"not within {within_s:g} s: {name}; last answer: {answer!r}"
