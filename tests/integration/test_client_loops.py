"""A client that one event loop opened and another one uses: an error of its own, in place of a wait for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

from streamfleet.common.errors import WrongEventLoop
from streamfleet.producer import Ask, Client, Handle, SyncClient

WITHIN_S = 10.0
BODY = {"prompt": "hi"}
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
Use = Callable[[Client, Handle], Awaitable[Any]]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Connections of loops that have ended are collected here, not in another test."""
    yield
    gc.collect()


async def all_of(source: Any) -> None:
    async with aclosing(source) as items:
        async for _ in items:
            pass


USES: dict[str, Use] = {
    "enqueue": lambda fleet, _: fleet.enqueue(BODY),
    "enqueue_many": lambda fleet, _: fleet.enqueue_many([{"body": BODY}]),
    "run_many": lambda fleet, _: all_of(fleet.run_many([{"body": BODY}])),
    "stream_many": lambda fleet, _: all_of(fleet.stream_many([{"body": BODY}])),
    "result": lambda fleet, handle: fleet.result(handle.id),
    "result now": lambda fleet, handle: fleet.result(handle.id, 0),
    "stream": lambda fleet, handle: all_of(fleet.stream(handle.id)),
    "cancel": lambda fleet, handle: fleet.cancel(handle.id),
    "status": lambda fleet, handle: fleet.status(handle.id),
    "as_completed": lambda fleet, handle: all_of(fleet.as_completed([handle])),
    "judge_draft": lambda fleet, _: fleet.judge_draft(fleet.draft(Ask(body=BODY))),
    "handle.result": lambda _, handle: handle.result(),
    "handle.stream": lambda _, handle: all_of(handle.stream()),
    "handle.cancel": lambda _, handle: handle.cancel(),
    "handle.status": lambda _, handle: handle.status(),
    "async with": lambda fleet, _: fleet.__aenter__(),
}


async def opened(url: str) -> tuple[Client, Handle]:
    """A client that nobody closes, all of whose parts have been used, and its request."""
    fleet = await Client(url, patience_s=0.5).__aenter__()
    handle = await fleet.enqueue(BODY, stream=True)
    waits = [asyncio.create_task(work) for work in (handle.result(), all_of(handle.stream()))]
    await asyncio.wait(waits, timeout=0.05)
    return fleet, handle


async def refused(work: Awaitable[Any]) -> str:
    with pytest.raises(WrongEventLoop) as caught:
        await asyncio.wait_for(work, WITHIN_S)
    return str(caught.value)


@contextmanager
def loop_on_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WITHIN_S)
        loop.close()


@pytest.mark.parametrize("use", [name for name in USES if name != "async with"])
def test_what_a_former_run_opened_is_refused(redis_url: str, use: str) -> None:
    fleet, handle = asyncio.run(opened(redis_url))

    async def later() -> str:
        return await refused(USES[use](fleet, handle))

    said = asyncio.run(later())
    assert "was opened in another event loop" in said
    assert "async with Client" in said


@pytest.mark.parametrize("use", USES)
def test_what_the_loop_of_another_thread_opened_is_refused(redis_url: str, use: str) -> None:
    with loop_on_a_thread() as loop:
        fleet, handle = asyncio.run_coroutine_threadsafe(opened(redis_url), loop).result(WITHIN_S)

        async def here() -> str:
            await refused(fleet.close())
            return await refused(USES[use](fleet, handle))

        assert "was opened in another event loop" in asyncio.run(here())
        asyncio.run_coroutine_threadsafe(fleet.close(), loop).result(WITHIN_S)


def test_each_run_may_open_it_again(redis_url: str) -> None:
    fleet = Client(redis_url)

    async def run() -> None:
        async with fleet:
            await (await fleet.enqueue(BODY)).status()

    asyncio.run(run())
    asyncio.run(run())


@pytest.mark.parametrize("closes", [False, True])
def test_what_a_former_run_left_open_can_be_opened_again(redis_url: str, closes: bool) -> None:
    fleet, _ = asyncio.run(opened(redis_url))

    async def run() -> None:
        if closes:
            await asyncio.wait_for(fleet.close(), WITHIN_S)
        async with fleet:
            await (await fleet.enqueue(BODY)).status()

    asyncio.run(run())


async def test_the_client_without_await_is_for_any_loop(redis_url: str) -> None:
    """Its calls block the loop, but work."""
    with SyncClient(redis_url) as fleet:
        handle = fleet.enqueue(BODY)
        assert fleet.status(handle.id).state == "queued"
