"""Tenants: what is left of those that have gone, and limits that operators have set (lua/order/tenants.lua).

A part of the records and charges is looked at in each turn, and some turns in the lanes: hands may have deleted their
records. `tidy_tenants.lua` checks each again, and changes what is not as it should be.
"""

from __future__ import annotations

from streamfleet.common.protocol import LANES
from streamfleet.worker.services.turn import Turn

SOME = 16


async def keep_tenants(turn: Turn) -> None:
    """Look after what is known of tenants."""
    keys, turns = turn.keys, [turn.keys.turns(lane) for lane in LANES]
    known, rules, number, *some = await turn.ask(
        ("HGET", keys.lane_states, "tenants"),
        ("HLEN", keys.tenants),
        ("HLEN", keys.served),
        *(("ZRANDMEMBER", key, SOME) for key in turns),
    )
    if known is None:
        return
    # What operators set counts within seconds.
    await turn.ask(("HSET", keys.lane_states, "tenants", "rules" if rules else "1"))
    in_lanes = {b"t|" + name for names in some for name in names}
    async for fields in turn.scan(keys.served):
        names = [name for name in fields if name.startswith((b"t|", b"c|"))]
        unused = number if len(fields) == number and not (names or in_lanes) else None
        await turn.broker.tidy_tenants([*names, *sorted(in_lanes.difference(names))], unused)
        if not turn.set_back:
            break
    numbers = await turn.ask(*(("ZCARD", key) for key in turns))
    # Where nobody has a turn, the next one starts at the beginning.
    if idle := [lane.number for lane, turns_left in zip(LANES, numbers, strict=True) if turns_left == 0]:
        await turn.ask(("HDEL", keys.served, *(f"{name}|{lane}" for lane in idle for name in ("level", "new"))))
