"""Homes of sessions: which of them are lost, and which sessions nobody uses (lua/order/homes.lua).

A home is lost if its worker has asked for nothing for a minute, or for a second while something has waited for it as
long. A session, a beginning of prompts or a program is forgotten an hour after its last use.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamfleet.common.protocol import stream_ms
from streamfleet.common.replies import labelled_lanes, mapping, number, ready_entries
from streamfleet.worker.services.turn import Turn

SILENT_MS, GONE_MS, UNUSED_MS = 1_000, 60_000, 3_600_000
LOST, FIRST = 1e9, 16
"""Load of a home that is lost; and how many of those that wait for a home are looked at."""
MOST_RECORDS = 100_000


async def keep_homes(turn: Turn) -> None:
    """Find what is lost, and forget what is unused."""
    (homing, labelled), loads, known = await turn.ask(
        ("HMGET", turn.keys.lane_states, "sessions", "labelled"),
        ("ZRANGE", turn.keys.loads, 0, -1, "WITHSCORES"),
        ("HLEN", turn.keys.sessions),
    )
    if homing is None:
        return
    await _forget(turn, known)
    homes = {name: float(load) for name, load in mapping(loads).items()}
    lost, unused = await _lost(turn, homes, labelled), None
    if known <= 100 + 3 * len(homes):  # so few may all be of workers
        (names,) = await turn.ask(("HKEYS", turn.keys.sessions))
        unused = None if any(name[:1] in b"spf" for name in names) else len(names)
    if lost or unused is not None:
        await turn.broker.lose_homes(lost, unused)


async def _forget(turn: Turn, known: int) -> None:
    """Forget what is unused, and of too many the older half of each part. `known`: number of fields."""
    sessions, now_ms = turn.keys.sessions, turn.now_ms
    async for fields in turn.scan(sessions):
        used = _used(fields)
        ahead = [name for name, ms in used.items() if ms > now_ms]
        words = [word for name in ahead for word in (name, b"%d %b" % (now_ms, fields[name].partition(b" ")[2]))]
        old = {name for name, ms in used.items() if now_ms - ms > UNUSED_MS}
        old.update(name for name in ahead if name.startswith(b"f"))  # these tell when they came first, too
        old.update(sorted(used, key=lambda name: used[name])[: min(max(0, known - MOST_RECORDS), len(used) // 2)])
        await turn.ask(*[("HSET", sessions, *words)] * bool(words), *[("HDEL", sessions, *old)] * bool(old))
        known -= len(old)
        if known <= MOST_RECORDS and not turn.set_back:
            break


async def _lost(turn: Turn, homes: Mapping[bytes, float], labelled: bytes | None) -> dict[bytes, bytes]:
    """Homes that are lost, and their states as they were read."""
    keys, now_ms = turn.keys, turn.now_ms
    if odd := [name for name in homes if not name.isdigit()]:
        await turn.ask(("ZREM", keys.loads, *odd))
    numbers = [name for name in homes if name not in odd]
    states = await turn.ask(*(("HGET", keys.sessions, b"w|" + name) for name in numbers))
    state_of = {name: state or b"" for name, state in zip(numbers, states, strict=True)}
    silent = {name: now_ms - number(state.partition(b" ")[0]) for name, state in state_of.items()}
    lost = [name for name in numbers if homes[name] >= LOST or silent[name] >= GONE_MS]
    sets = [
        (name, f"{keys.ready(lane)}:{kind}:{int(name)}")
        for lane, waiting in labelled_lanes(labelled).items()
        for kind, some in (("h", waiting.home), ("ht", waiting.both))
        for name in numbers
        if some and name not in lost and silent[name] >= SILENT_MS
    ]
    firsts = await turn.ask(*(("ZRANGE", key, 0, FIRST - 1, "WITHSCORES") for _, key in sets))
    for (name, _), members in zip(sets, firsts, strict=True):
        waits_ms = [now_ms - stream_ms(stream_id) for stream_id, _ in ready_entries(members)]
        if any(not 0 <= ms < SILENT_MS for ms in waits_ms):  # below 0: an id that tells no time
            lost.append(name)
    return {name: state_of[name] for name in lost}


def _used(fields: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Records of use, and of workers' last questions: the time of each, epoch ms."""
    return {name: number(words.partition(b" ")[0]) for name, words in fields.items() if name[:1] in b"spfw"}
