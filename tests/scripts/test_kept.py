"""Output of interrupted runs: who finds it, how much of it there may be, and when it is forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from streamfleet.common.broker.types import Claim, Lease, RenewCode
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without

OUT = b"7 state"


async def hand_back(queue: Queue, lease: Lease, run: str = "a1", output: bytes = OUT) -> None:
    """Keep the output of a run that gives way, and hand its request back."""
    assert await queue.broker.keep({run: output})
    kept = {lease: (run, len(output))}
    assert await queue.broker.release("w1", [lease], gave_way=True, kept=kept) == 1


async def claimed(queue: Queue) -> Claim:
    (claim,) = (await queue.pull("w1")).claims
    return claim


async def bytes_of_all(queue: Queue) -> int:
    return int(await queue.command("HGET", "{q}:entries", "kept_bytes") or 0)


@fails_without("interrupted: the bytes of what is kept are known")
async def test_the_next_run_finds_the_output_of_the_last_one(queue: Queue) -> None:
    await hand_back(queue, await queue.running("low"))
    first = await claimed(queue)
    assert (first.interrupted, first.kept) == (1, "a1")
    assert await queue.broker.kept(["a1", "gone"]) == [OUT, None]
    await queue.command("RPUSH", queue.keys.kept("odd"), "by hand")
    assert await queue.broker.kept(["a1", "odd"]) == [OUT, None]
    await hand_back(queue, first.lease, "b2", OUT * 3)
    again = await claimed(queue)
    assert (again.interrupted, again.kept) == (2, "b2")
    assert await bytes_of_all(queue) == 3 * len(OUT)


@fails_without("kept: the output of a worker without the lease is deleted")
async def test_output_of_a_worker_without_the_lease_is_not_what_counts(queue: Queue) -> None:
    lease = await queue.running("low")
    await queue.broker.release("w1", [lease])
    (other,) = (await queue.pull("w2")).claims
    assert await queue.broker.keep({"late": OUT})
    assert await queue.broker.release("w1", [lease], gave_way=True, kept={lease: ("late", len(OUT))}) == 0
    assert await queue.broker.kept(["late"]) == [None]
    await queue.broker.release("w2", [other.lease])
    assert (await claimed(queue)).kept == ""


@fails_without("renew: kept output counts if the lease does")
async def test_the_output_of_a_running_request_is_found_after_its_worker_is_lost(queue: Queue) -> None:
    lease = await queue.running("low")
    for run in ("a1", "b2"):
        assert await queue.broker.keep({run: OUT})
        assert await queue.broker.renew("w1", [lease], {lease: (run, len(OUT))}) == [RenewCode.RENEWED]
    assert await bytes_of_all(queue) == len(OUT)
    await queue.broker.reclaim(0, 3)
    (again,) = (await queue.pull("w2")).claims
    assert (again.lease.attempt, again.interrupted, again.kept) == (2, 0, "b2")
    assert await queue.broker.renew("w1", [lease], {lease: ("late", len(OUT))}) == [RenewCode.LOST]
    await queue.broker.release("w2", [again.lease])
    assert (await claimed(queue)).kept == "b2"


@fails_without("kept: what counts no more is deleted")
async def test_nothing_is_left_when_the_request_has_ended(queue: Queue) -> None:
    await hand_back(queue, await queue.running("low"))
    await queue.complete("w1", (await claimed(queue)).lease)
    await nothing_is_left(queue)


async def nothing_is_left(queue: Queue) -> None:
    assert await queue.command("KEYS", queue.keys.kept("*")) == []
    assert await bytes_of_all(queue) == 0
    left = await queue.command("HKEYS", "{q}:entries") + await queue.command("HKEYS", "{q}:lanes")
    assert not [name for name in left if b"interrupted" in name]


async def cancel(queue: Queue) -> None:
    await queue.command("SET", queue.keys.request("r1"), "d1 low:1000-0 ")
    assert await queue.broker.cancel("r1")


async def lose_the_lease_before_it_is_handed_back(queue: Queue) -> None:
    lease = await queue.claim()
    await queue.broker.release("w1", [lease])
    assert await queue.broker.keep({"late": OUT})
    assert await queue.broker.release("w1", [lease], kept={lease: ("late", len(OUT))}) == 0
    await cancel(queue)


async def lose_the_lease_before_a_checkpoint(queue: Queue) -> None:
    lease = await queue.claim()
    await queue.broker.release("w1", [lease])
    assert await queue.broker.keep({"late": OUT})
    assert await queue.broker.renew("w1", [lease], {lease: ("late", len(OUT))}) == [RenewCode.LOST]
    await cancel(queue)


async def go_on_from_a_later_output(queue: Queue) -> None:
    await hand_back(queue, await queue.claim(), "b2")
    assert await queue.broker.kept(["a1", "b2"]) == [None, OUT]
    await cancel(queue)


@pytest.mark.parametrize(
    "end", [lose_the_lease_before_it_is_handed_back, lose_the_lease_before_a_checkpoint, go_on_from_a_later_output]
)
async def test_output_goes_with_its_request(queue: Queue, end: Callable[[Queue], Awaitable[None]]) -> None:
    """Counted, it would take the room of others for ever; uncounted, it would not be bounded."""
    await hand_back(queue, await queue.running("low", id="r1", deadline=NOW + 9_000))
    assert await queue.broker.kept(["a1"]) == [OUT]
    await end(queue)
    await nothing_is_left(queue)


@fails_without("vanish: interruptions are forgotten")
async def test_nothing_is_left_of_a_request_that_vanished(queue: Queue) -> None:
    await hand_back(queue, await queue.running("low", id="r1"))
    await queue.command("SET", queue.keys.request("r1"), "d1 low:1000-0 ")
    await queue.command("DEL", queue.keys.lane("low"))
    assert await queue.broker.end_vanished(["r1"], mend=True) == ["r1"]
    await nothing_is_left(queue)


@fails_without(
    "kept: what counts is not deleted with a second release",
    "if run and string.match(interruptions(lane, id), '^%d+ (%S+)') ~= run then",
    "if run then",
)
async def test_a_release_that_is_sent_twice_deletes_no_output(queue: Queue) -> None:
    lease = await queue.running("low")
    await hand_back(queue, lease)
    assert await queue.broker.release("w1", [lease], gave_way=True, kept={lease: ("a1", len(OUT))}) == 0
    assert await queue.broker.kept(["a1"]) == [OUT]


async def test_what_is_kept_of_all_requests_is_bounded(queue: Queue) -> None:
    small = queue.with_limits(kept_bytes=2 * len(OUT))
    await hand_back(small, await small.running("low"))
    assert await small.broker.keep({"b2": OUT})
    assert not await small.broker.keep({"b2": OUT, "c3": OUT})


async def test_a_full_redis_keeps_nothing(queue: Queue) -> None:
    lease = await queue.running("low")
    await queue.command("CONFIG", "SET", "maxmemory", 1)
    try:
        assert not await queue.broker.keep({"a1": OUT})
        assert await queue.broker.release("w1", [lease], gave_way=True) == 1
    finally:
        await queue.command("CONFIG", "SET", "maxmemory", 0)


async def test_what_is_kept_expires(queue: Queue) -> None:
    await queue.broker.keep({"a1": OUT})
    assert 0 < await queue.command("PTTL", queue.keys.kept("a1")) <= queue.limits.kept_ttl_ms


async def waits_at_home(queue: Queue, *others: str, **more: str) -> None:
    """A request gives way at w1, and its output is kept; these others of its lane are ready behind it."""
    lease = await queue.running("low", **more)
    for stream_id in others:
        await queue.add("low", stream_id)
    await hand_back(queue, lease)


async def order(queue: Queue, worker: str, wanted: int = 1) -> list[str]:
    return [claim.lease.stream_id for claim in (await queue.pull(worker, wanted)).claims]


@fails_without(
    "order: what was interrupted is left to its worker", "if id and (not till or tonumber(till) <= now_ms())", "if true"
)
async def test_what_gave_way_is_left_to_the_worker_that_has_it_in_its_cache(queue: Queue) -> None:
    await waits_at_home(queue, "1001-0", "1002-0")
    assert await order(queue, "w2") == ["1001-0"]
    assert await order(queue, "w1", 2) == ["1000-0", "1002-0"]


@fails_without("order: what was interrupted goes where nothing else is")
async def test_any_worker_takes_it_if_nothing_else_is_ready(queue: Queue) -> None:
    await waits_at_home(queue, "1001-0")
    assert sorted(await order(queue, "w2", 2)) == ["1000-0", "1001-0"]


async def test_however_many_are_held_others_go_first(queue: Queue) -> None:
    leases = [await queue.running("low", f"{1000 + number}-0") for number in range(70)]
    await queue.add("low", "2000-0")
    for lease in leases:
        await hand_back(queue, lease)
    assert await order(queue, "w2") == ["2000-0"]
    assert await order(queue, "w1", 2) == ["1000-0", "1001-0"]


@fails_without("order: what was interrupted waits for its worker for a while")
async def test_it_waits_for_its_worker_for_a_bounded_time(queue: Queue) -> None:
    await waits_at_home(queue, "1001-0", "1002-0")
    assert await order(queue.at(NOW + 9_999), "w2") == ["1001-0"]
    assert await order(queue.at(NOW + 10_000), "w2") == ["1000-0"]


@fails_without(
    "interrupted: it waits for its worker no longer than its deadline allows",
    "deadline and (deadline - now_ms()) / 4 or HOME_MS",
    "HOME_MS",
)
async def test_it_waits_for_its_worker_for_a_quarter_of_the_time_to_its_deadline(queue: Queue) -> None:
    await waits_at_home(queue, deadline=f"{NOW + 4_000}")
    for stream_id in ("1001-0", "1002-0"):
        await queue.add("low", stream_id, deadline=f"{NOW + 5_000}")
    assert await order(queue.at(NOW + 999), "w2") == ["1001-0"]
    assert await order(queue.at(NOW + 1_000), "w2") == ["1000-0"]
