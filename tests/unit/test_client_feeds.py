"""Chunks for a reader: kept until it takes them, or handed over at once where that overtakes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.producer.events import Chunk, Event
from streamfleet.producer.feeds import MOST_WAITING, Feed
from streamfleet.producer.follower import Entry
from streamfleet.producer.streaming import Reading


def entry(number: int, **fields: bytes) -> Entry:
    """An entry at the stream id <number>-0."""
    return f"{number}-0", {name.encode(): value for name, value in fields.items()}


def a_feed() -> Feed:
    return Feed("r-1", "0-0", lambda: None)


def all_into(seen: list[Entry]) -> Callable[[Entry], bool]:
    """Takes whatever comes."""

    def take(came: Entry) -> bool:
        seen.append(came)
        return True

    return take


async def waiting(feed: Feed) -> asyncio.Task[bool]:
    """A reader that waits for what comes."""
    task = asyncio.create_task(feed.come())
    await asyncio.sleep(0)
    return task


async def test_what_comes_for_a_waiting_reader_is_handed_over() -> None:
    feed, seen = a_feed(), list[Entry]()
    feed.straight = all_into(seen)
    reader = await waiting(feed)
    feed.give([entry(1), entry(2)], "0-0")
    feed.give([entry(3)], "2-0")
    await asyncio.sleep(0)
    assert [at for at, _ in seen] == ["1-0", "2-0", "3-0"]
    assert feed.position == "3-0"
    assert not reader.done()  # nothing is left for it
    reader.cancel()


async def test_what_is_not_taken_waits_with_all_behind_it() -> None:
    feed, seen = a_feed(), list[str]()

    def take(came: Entry) -> bool:
        seen.append(came[0])
        return b"end" not in came[1]

    feed.straight = take
    reader = await waiting(feed)
    feed.give([entry(1), entry(2, end=b"x"), entry(3)], "0-0")
    assert seen == ["1-0", "2-0"]
    assert await reader
    assert [at for at, _ in feed.take()] == ["2-0", "3-0"]


async def test_nothing_overtakes_what_a_reader_has_yet_to_deal_with() -> None:
    feed, seen = a_feed(), list[Entry]()
    feed.straight = all_into(seen)
    feed.give([entry(1)], "0-0")  # nobody waits: its reader is busy
    reader = await waiting(feed)
    assert await reader
    assert [at for at, _ in feed.take()] == ["1-0"]
    feed.give([entry(2)], "1-0")  # it was woken, and has not come back
    assert (seen, [at for at, _ in feed.take()]) == ([], ["2-0"])


async def test_a_reader_that_was_told_of_silence_is_not_overtaken_either() -> None:
    feed, seen = a_feed(), list[Entry]()
    feed.straight = all_into(seen)
    reader = await waiting(feed)
    feed.look()
    feed.look()  # it is quiet: the reader is woken, and has not run yet
    feed.give([entry(1)], "0-0")
    assert seen == []
    assert await reader is False
    assert [at for at, _ in feed.take()] == ["1-0"]


async def test_what_goes_wrong_with_one_reader_is_told_to_that_one_alone() -> None:
    feed = a_feed()

    def breaks(came: Entry) -> bool:
        raise ValueError(came[0])

    feed.straight = breaks
    reader = await waiting(feed)
    feed.give([entry(1), entry(2)], "0-0")
    assert await reader
    with pytest.raises(ValueError, match="1-0"):
        feed.take()


async def test_a_reader_that_takes_nothing_fills_its_feed() -> None:
    feed = a_feed()
    feed.straight = lambda _: False
    feed.give([entry(number) for number in range(1, MOST_WAITING + 1)], "0-0")
    assert feed.full


def group(number: int) -> Entry:
    """The only chunk of the group at the stream id <number>-0, the first of which is 1-0."""
    return entry(number, attempt=b"1", run=b"a", seq=str(number - 1).encode(), chunks=b'{"n": %d}' % number)


def reading_from(feed: Feed) -> Reading:
    feeds = SimpleNamespace(open=lambda *_: feed, leave=lambda _: None)
    handle = SimpleNamespace(id="r-1", slot=None)
    mailbox = SimpleNamespace(check=lambda: None)
    return Reading(cast("Any", None), cast("Any", feeds), cast("Any", mailbox), cast("Any", handle), None, fresh=True)


async def test_a_reader_that_takes_none_now_gets_all_in_order_later() -> None:
    feed, straight, taking = a_feed(), list[str](), [True]
    reading = reading_from(feed)
    with pytest.raises(RuntimeError, match="once events have come"):
        reading.straight(lambda: True, lambda *_: None)

    async with aclosing(reading.events()) as groups:
        feed.give([group(1)], "0-0")
        assert raws(await anext(groups)) == ['{"n": 1}']
        reading.straight(lambda: taking[0], lambda _, chunks: straight.extend(chunks))
        following = asyncio.ensure_future(anext(groups))
        await asyncio.sleep(0)
        feed.give([group(2)], "1-0")
        taking[0] = False  # its connection is full
        feed.give([group(3)], "2-0")
        taking[0] = True  # too late: what comes now would overtake
        feed.give([group(4)], "3-0")
        assert straight == ['{"n": 2}']
        assert raws(await following) == ['{"n": 3}', '{"n": 4}']


def raws(events: list[Event]) -> list[str]:
    """Chunks as they stand in Redis."""
    return [event.raw for event in events if isinstance(event, Chunk)]
