"""The services of the housekeeping: after a step of Redis's clock, with an error of one, and each rule of theirs."""

from __future__ import annotations

import json
import struct

import pytest
import structlog.testing

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.worker.housekeeping import SERVICES
from streamfleet.worker.services.turn import PART, Turn, take_turn
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without
from tests.scripts.test_affinity import meet

HOUR_MS, MANY = 3_600_000, 700
"""More records than a turn looks at usually."""


async def fill(queue: Queue) -> None:
    """Sessions, programs and tenants of now, many of each."""
    await meet(queue, "w1")
    await queue.add("high", f"{NOW}-1", tenant="t1", deadline=NOW + HOUR_MS)
    await queue.pull(wanted=0)
    record = struct.pack("<8d", 0, 1, 1, 1, 0, 0, NOW, NOW)
    words = {f"s{number:016x}": f"{NOW} 1.00 1" for number in range(MANY)}
    words |= {f"f{number:016x}": f"{NOW} {NOW} " for number in range(MANY)}
    await queue.command("HSET", queue.keys.sessions, *(word for item in words.items() for word in item))
    await queue.command(
        "HSET", queue.keys.served, *(word for number in range(MANY) for word in (f"t|many{number}", record))
    )


async def times(queue: Queue) -> list[int]:
    """All times that services look after."""
    dump = await queue.dump()
    found = [int(words.split()[0]) for name, words in dump["sessions"].items() if name[0] in "spfw"]
    found += [int(words.split()[1]) for name, words in dump["sessions"].items() if name[0] == "f"]
    found += [int(word) for name, words in dump["served"].items() if name[:2] == "t|" for word in words.split()[6:8]]
    found += [int(value) for value in (await queue.command("HGETALL", queue.keys.clock))[1::2]]
    return [*found, json.loads(await queue.command("GET", queue.keys.pace))["at"]]


@fails_without("homes: nothing is ahead of a clock that was set back", "if ms > now_ms]", "if False]", service="homes")
@fails_without(
    "homes: no program is ahead of a clock that was set back", 'name.startswith(b"f")', "False", service="homes"
)
@fails_without(
    "homes: after the clock was set back all records are looked at", " and not turn.set_back:", ":", service="homes"
)
@fails_without(
    "tenants: after the clock was set back all records are looked at",
    "if not turn.set_back:",
    "if True:",
    service="tenants",
)
@fails_without("turn: after the clock was set back a scan begins anew", "0 if self.set_back else ", "", service="turn")
@fails_without("turn: what was told of the clock before comes to now", "[*ahead, LAST]", "[LAST]", service="turn")
async def test_nothing_is_ahead_of_a_clock_that_was_set_back(queue: Queue) -> None:
    await fill(queue)
    await queue.command("HSET", queue.keys.clock, "forgot", NOW)
    await queue.broker.serve()
    back = queue.at(NOW - 500_000)
    await back.broker.serve()
    found = await times(back)
    assert len(found) >= 2 * MANY
    assert max(found) == NOW - 500_000


async def test_a_turn_looks_at_a_part_of_the_records(queue: Queue) -> None:
    await fill(queue)
    later = queue.at(NOW + HOUR_MS + 1)
    await later.broker.serve()
    left = await queue.command("HLEN", queue.keys.sessions), await queue.command("HLEN", queue.keys.served)
    assert min(left) > MANY // 2
    for _ in range(20):
        await later.broker.serve()
    assert await queue.command("HLEN", queue.keys.served) < 9
    assert not await queue.command("EXISTS", queue.keys.sessions)


@fails_without("turn: a scan goes on where the last one ended", "self.scans.get(name, 0)", "0", service="turn")
async def test_turns_look_at_all_records_one_after_another(queue: Queue) -> None:
    await fill(queue)
    seen: list[bytes] = []

    async def look(turn: Turn) -> None:
        async for fields in turn.scan(turn.keys.sessions):
            seen.extend(fields)
            break

    number = await queue.command("HLEN", queue.keys.sessions)
    for _ in range(number // PART + 1):
        await queue.broker.serve(look)
    assert len({*seen}) == number


@fails_without("turn: with an error all is looked at once more", "failed and turn.set_back", "False", service="turn")
async def test_an_error_of_a_service_is_logged_and_the_others_run(queue: Queue) -> None:
    await fill(queue)
    await queue.broker.serve()
    await queue.command("SET", queue.keys.loads, "by hand")
    back = queue.at(NOW - 500_000)
    with structlog.testing.capture_logs() as logs:
        await take_turn(back.broker, SERVICES)
    assert [(row["event"], row["service"]) for row in logs] == [("service_failed", "keep_homes")]
    assert json.loads(await queue.command("GET", queue.keys.pace))["at"] == NOW - 500_000
    await queue.command("DEL", queue.keys.loads)
    await back.broker.serve()
    assert max(await times(back)) == NOW - 500_000, "the next turn knows that the clock was set back"


async def test_a_full_server_is_no_error(queue: Queue) -> None:
    await fill(queue)
    async with queue.full_memory():
        await queue.broker.serve()
    await queue.broker.serve()
    assert json.loads(await queue.command("GET", queue.keys.pace))["at"] == NOW


async def test_a_server_that_is_away_ends_the_turn(queue: Queue) -> None:
    async def away(_: Turn) -> None:
        raise BrokerUnavailable("it is away")

    with pytest.raises(BrokerUnavailable):
        await take_turn(queue.broker, [away])
