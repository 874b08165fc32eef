"""What comes for a reader: kept until it is taken, or handed over at once where that overtakes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamfleet.producer.feeds import MOST_WAITING, Feed
from streamfleet.producer.follower import Entry


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


async def test_a_reader_that_takes_nothing_fills_its_feed() -> None:
    feed = a_feed()
    feed.straight = lambda _: False
    feed.give([entry(number) for number in range(1, MOST_WAITING + 1)], "0-0")
    assert feed.full
