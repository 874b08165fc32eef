"""pull.lua, first part: arrivals come into the ready sets whatever they look like, bounded, each once."""

from __future__ import annotations

import re

import pytest

from streamfleet.common.broker.types import Hint
from streamfleet.common.broker.worker import STAGE_ENTRIES
from streamfleet.common.keys import GROUP
from tests.scripts.harness import BODY, NOW, PATIENCE, Queue, entry
from tests.scripts.mutants import fails_without


async def test_every_lane_is_staged_by_deadline_ttl_or_patience(queue: Queue) -> None:
    await queue.add("high", "1000-0", deadline=NOW + 5)
    await queue.add("high", "1000-1", ttl=NOW)
    await queue.add("high", "1001-0")
    await queue.add("low", "1000-0", deadline=NOW + 1, ttl=1)
    pulled = await queue.pull("w1", 0)
    assert (pulled.staged, pulled.ready, pulled.claims, pulled.dropped) == (4, 4, [], 0)
    high = {
        "1000-0": entry(deadline=NOW + 5),
        "1000-1": entry(ttl=NOW),
        "1001-0": entry(),
    }
    assert await queue.dump() == {
        "lane:high": {"entries": high},
        "lane:low": {"entries": {"1000-0": entry(deadline=NOW + 1, ttl=1)}},
        "ready:high": [("1001-0", 1001 + PATIENCE), ("1000-0", NOW + 5), ("1000-1", NOW + 1000)],
        "ready:low": [("1000-0", NOW + 1)],
        "counts": {"staged": "4"},
    }


@fails_without("entry: deadlines have 16 digits at most", "text and #text <= 16 and", "text and", argument="1" * 17)
@pytest.mark.parametrize(
    "odd",
    [
        "nan",
        "NaN",
        "inf",
        "-inf",
        "0x10",
        "1e9",
        "-1",
        "+1",
        " 1",
        "1 ",
        "",
        "1.5",
        "٣",
        "1" * 17,
        "1\n",
        "\0",
        b"\xff",
    ],
    ids=repr,
)
async def test_a_deadline_that_is_no_digits_is_none_and_stages_all_the_same(queue: Queue, odd: str | bytes) -> None:
    await queue.add("high", "1000-0", deadline=odd, ttl=odd)
    await queue.add("high", "1001-0", deadline=NOW + 7)
    await queue.pull("w1", 0)
    assert (await queue.dump())["ready:high"] == [("1000-0", 1000 + PATIENCE), ("1001-0", NOW + 7)]


async def test_the_largest_deadlines_are_finite(queue: Queue) -> None:
    await queue.add("high", "1000-0", deadline="9" * 16)
    await queue.add("high", "1000-1", ttl="9" * 16)
    await queue.add("high", f"{2**64 - 1}-0")
    await queue.pull("w1", 0)
    assert (await queue.dump())["ready:high"] == [
        (f"{2**64 - 1}-0", NOW + PATIENCE),
        ("1000-0", 9e15),
        ("1000-1", 9e15 + 1000),
    ]


async def test_the_last_of_repeated_fields_counts(queue: Queue) -> None:
    await queue.add_flat("high", "1000-0", "deadline", 5, "deadline", NOW + 9, "body", BODY)
    await queue.pull("w1", 0)
    assert (await queue.dump())["ready:high"] == [("1000-0", NOW + 9)]


@fails_without("pull: what is too large on arrival ends", "not again and unfit", "not again and deadline and unfit")
async def test_what_is_too_large_ends_as_it_is_staged(queue: Queue) -> None:
    """If it became ready first, the pull that takes it would copy it once more, and Redis serves nobody meanwhile."""
    await queue.add("high", "1000-0", id="r1", body="x" * 2_001)
    hints = await queue.hand_out()
    await queue.add("high", "1000-1", id="r2", body="x" * 2_001)
    assert (await queue.pull("w1", 0, hints)).dropped == 2
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["result:r2"]["status"]) == ("failed", "failed")
    assert after["counts"] == {"staged": "2", "failed": "2"}
    assert not {"lane:high", "ready:high"} & set(after)


@fails_without(
    "entry: ties first in, first out",
    "return string.char(64 + #ms) .. ms .. '-' .. string.char(64 + #seq) .. seq",
    "return 'A' .. ms .. '-A' .. seq",
)
@fails_without("stage: bounded in entries", "if staged >= limits.stage_entries or bytes", "if bytes")
async def test_staging_is_bounded_in_entries_and_goes_on_with_the_next_call(queue: Queue) -> None:
    for number in range(20):
        await queue.add("high", f"1000-{number}")
    pulled = await queue.pull("w1", 0, stage_entries=5)
    assert 5 <= pulled.staged < 20
    before = await queue.dump()
    assert len(before["lane:high"]["undelivered"]) == 20 - pulled.staged
    assert pulled.staged + (await queue.pull("w1", 0)).staged == 20
    assert [stream_id for stream_id, _ in (await queue.dump())["ready:high"]] == [f"1000-{i}" for i in range(20)]


@fails_without("stage: bounded in bytes", " or bytes >= cfg.copied_bytes or", " or")
@fails_without("stage: chunks shrink with large bodies", "(64, MOST_UNSEEN, math.floor(CHUNK_BYTES / largest))", "(64)")
async def test_staging_is_bounded_in_bytes(queue: Queue) -> None:
    queue = queue.with_limits(max_entry_bytes=250_000)
    for bytes_each, expected in ((100_000, [3, 3, 1]), (200_000, [2, 2, 1])):
        for number in range(sum(expected)):
            await queue.add("high", f"{bytes_each}-{number}", body="x" * bytes_each)
        assert [(await queue.pull("w1", 0)).staged for _ in range(3)] == expected


async def test_small_entries_come_in_growing_chunks_up_to_the_bound(queue: Queue) -> None:
    for number in range(600):
        await queue.add("high", f"1000-{number}")
    assert (await queue.pull("w1", 0)).staged in range(STAGE_ENTRIES, STAGE_ENTRIES + 64)


@fails_without("put back: deleted ones are counted as vanished", "else\n        count('vanished')\n      end", "end")
async def test_a_hint_deleted_by_hand_is_counted_as_vanished(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    hints = await queue.hand_out()
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0")
    assert (await queue.pull("w1", 1, hints)).claims == []
    after = await queue.dump()
    assert after["counts"] == {"staged": "1", "vanished": "1"}
    assert "lane:high" not in after
    assert (await queue.broker.audit()).problems() == []


async def test_a_hint_of_the_wake_stream_is_cleared(queue: Queue) -> None:
    await queue.command("XADD", queue.keys.wake, "*", "t", 1)
    words = ("XREADGROUP", "GROUP", "workers", "~", "COUNT", 1, "STREAMS", queue.keys.wake, ">")
    ((_, ((wake_id, _),)),) = await queue.command(*words)
    assert (await queue.dump())["wake"] == {"pending": 1}
    await queue.pull("w1", 0, [Hint(None, wake_id.decode())])
    assert "wake" not in await queue.dump()
    assert await queue.command("XLEN", queue.keys.wake) == 0


async def test_a_missing_group_is_made_again_and_finds_what_stood_there(queue: Queue) -> None:
    await queue.add("normal", "1000-0")
    await queue.command("DEL", queue.keys.lane("critical"))
    await queue.command("XGROUP", "DESTROY", queue.keys.lane("normal"), "workers")
    assert len((await queue.pull()).claims) == 1


@fails_without(
    "stage: what a group made anew brings is not counted again", " again and encode_id(id) <= encode_id(again) or ", " "
)
async def test_what_a_group_made_anew_brings_to_a_watcher_is_counted_once(queue: Queue) -> None:
    """An entry that ran is neither ready nor delayed by then; one that came meanwhile was never counted."""
    await queue.running("high", "1000-0")
    await queue.command("XGROUP", "DESTROY", queue.keys.lane("high"), GROUP)
    await queue.broker.ensure_groups()
    await queue.add("high", "1000-1")
    hints = [*await queue.hand_out(), *await queue.hand_out()]
    assert [hint.stream_id for hint in hints] == ["1000-0", "1000-1"]
    await queue.pull("w2", 0, hints)
    assert (await queue.dump())["counts"] == {"staged": "2"}
    assert (await queue.broker.audit()).problems() == []


async def test_a_missing_group_is_noticed_before_anything_is_written(queue: Queue) -> None:
    await queue.add("critical", "1000-0")
    hints = await queue.hand_out("critical")
    await queue.command("DEL", queue.keys.lane("low"))
    assert len((await queue.pull("w1", 1, hints)).claims) == 1
    assert (await queue.dump())["counts"] == {"staged": "1"}


async def test_lost_scripts_are_sent_again(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.command("SCRIPT", "FLUSH")
    assert len((await queue.pull()).claims) == 1


@fails_without("stage: what comes again stays where it is", "again and is_tracked(lane, item[1], item[2])", "false")
@fails_without("stage: counted once where nobody held it", "or HOOKS.waits(lane, id, fields) then", "then")
async def test_what_is_delivered_again_stays_where_it_is(queue: Queue) -> None:
    """After its group was set back, or made anew: nothing runs twice, is counted twice, or loses its delay."""
    await queue.running("high", "1000-0")
    await queue.retry("w1", await queue.running("high", "1000-1"), 50)
    await queue.add("high", "1000-2")
    await queue.pull("w1", 0)
    await queue.add("high", "1000-3")
    hints = await queue.hand_out()
    before = await queue.dump()
    await queue.command("XGROUP", "SETID", queue.keys.lane("high"), GROUP, "0")
    assert (await queue.pull("w2", 0)).staged == 4
    await queue.pull("w2", 0, hints)
    after = await queue.dump()
    assert [stream_id for stream_id, _ in after["ready:high"]] == ["1000-2", "1000-3"]
    assert (after["delayed"], after["tries"]) == (before["delayed"], before["tries"])
    assert after["lane:high"]["pending"] == {"1000-0": ("w1", 1)}
    assert after["counts"] == {"staged": "4"}


@fails_without("stage: chunks are bounded before sizes are known", "math.min(64, MOST_UNSEEN, ", "math.min(64, ")
@fails_without("take: rounds are bounded before sizes are known", "* 4, 128, MOST_UNSEEN, fitting", "* 4, 128, fitting")
async def test_no_more_is_read_at_once_than_is_bounded_if_all_of_it_is_as_large_as_may_be(queue: Queue) -> None:
    """Entries behind small ones may be large, and nobody knows before they are copied."""
    wide = queue.with_limits(max_entry_bytes=40_000_000)
    for number in range(60):
        await queue.add("high", f"1000-{number}")
    await queue.command("CONFIG", "RESETSTAT")
    assert len((await wide.pull("w1", 60)).claims) == 60
    stats = (await queue.command("INFO", "commandstats")).decode()
    calls = {name: int(count) for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", stats)}
    assert calls["xreadgroup"] >= 20
    assert calls["zpopmin"] >= 20
