"""The part of the operators' broker that reads what waits, in a bounded number of the sets that `Keys.ready` lists.

Of a lane in which nothing has a label that is one set. Of another the names of its sets are read first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.broker.types import Labelled
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import first_score, labelled_lanes, mapping, ranked_member, ready_entries, tenant_rule
from streamfleet.operator.broker.audit import PLACES, Ranked, places

MOST_SETS = 64
"""Largest number of tenants, and of homes, whose sets are read in a lane."""
MOST_LIMITED = 500
"""Largest number of tenants with a limit that are looked for in a lane where they are not in turn."""
STEPS = 5
"""Parts into which the ranks between two rows of a set are divided."""
Rows = Sequence[tuple[str, int]]
"""Stream ids and ranks, epoch ms."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a lane's sets: homes by their first rank; tenants by turns, and by about their first deadline.

    `full` has the tenants that wait at their limit, if fewer than `MOST_SETS` are in turn.
    """

    homes: Sequence[bytes]
    turns: Sequence[bytes]
    late: Sequence[bytes]
    full: list[bytes] = field(default_factory=list)

    @property
    def tenants(self) -> Sequence[bytes]:
        """Some tenants: those whose turns come next, those at their limit, and those with the first deadlines."""
        half = MOST_SETS // 2
        return [name for name in dict.fromkeys((*(*self.turns, *self.full)[:half], *self.late[:half])) if name]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Rows that are read of a set, by place; each of its requests stands for `scale` of such sets."""

    lane: Lane
    key: bytes
    places: Sequence[int]
    scale: float
    rows: list[tuple[int, Any]] = field(default_factory=list)


class WaitingBroker(BrokerBase):
    """Queries about what waits, whether it has a label or not."""

    async def next_ready(self, most: int) -> dict[Lane, Rows]:
        """About the next `most` requests of each lane: stream ids and ranks, epoch ms."""
        plain = [("ZRANGE", self.keys.ready(lane), 0, most - 1, "WITHSCORES") for lane in LANES]
        labels, *replies = await self._look_all([("HGET", self.keys.lane_states, "labelled"), *plain])
        found: dict[Lane, Rows] = {lane: ready_entries(reply) for lane, reply in zip(LANES, replies, strict=True)}
        counts = labelled_lanes(labels)
        for lane, names in (await self._names(counts)).items():
            found[lane] = await self._next(lane, found[lane], names, counts[lane], most)
        return found

    async def tenants_waiting(self, tenants: Sequence[str]) -> dict[str, int]:
        """Number of requests of these tenants, in lanes that tenants share, that wait and were not interrupted."""
        counts = await self._shared_lanes()
        sets = [
            (tenant, key)
            for tenant in tenants
            for lane in counts
            for key in (self._sets_of(lane, tenant.encode()) if tenant else [self._set(lane)])
        ]
        found = dict.fromkeys(tenants, 0)
        if "" in found:
            found[""] = sum(each.home for each in counts.values())
        for (tenant, _), size in zip(sets, await self._sizes([key for _, key in sets]), strict=True):
            found[tenant] += size
        return found

    async def waiting_in_turns(self) -> int:
        """The same of all tenants, and of requests without one."""
        counts = await self._shared_lanes()
        sizes = await self._sizes([*map(self._set, counts)])
        return sum((*sizes, *(each.tenant + each.both + each.home for each in counts.values())))

    async def _ranked(self, counts: Mapping[Lane, Labelled]) -> dict[Lane, tuple[int | None, list[Ranked]]]:
        """The first rank of lanes in which something has a label, and places of their sets, merged by rank."""
        names = await self._names(counts)
        groups = [each for lane, some in names.items() for each in self._groups(some, lane, counts[lane])]
        keys = [key for _, group, _ in groups for key in group]
        sizes = dict(zip(keys, await self._sizes(keys), strict=True))
        samples = [
            _Sample(lane, key, places(sizes[key], _places_of(len(group))), total / seen if total else 1)
            for lane, group, total in groups
            if (seen := sum(map(sizes.__getitem__, group)))
            for key in group
            if sizes[key]
        ]
        words = [("ZRANGE", each.key, place, place, "WITHSCORES") for each in samples for place in each.places]
        replies = iter(await self._some(words))
        for each in samples:
            each.rows.extend((place, next(replies)) for place in each.places)
        found: dict[Lane, tuple[int | None, list[Ranked]]] = {}
        for lane in counts:
            mine = [each for each in samples if each.lane is lane]
            firsts = [rank for each in mine if (rank := first_score(each.rows[0][1])) is not None]
            found[lane] = min(firsts, default=None), _merged(lane, mine)
        return found

    async def _next(self, lane: Lane, plain: Rows, names: _Names, count: Labelled, most: int) -> Rows:
        homes = [self._set(lane, b":h:", home) for home in names.homes[:most]]
        tenants = [name for name in (*names.turns[:most], *names.full[:most]) if name] if count.shared else []
        keys = [*homes, *chain.from_iterable(self._sets_of(lane, name) for name in tenants)]
        keys.append(self._set(lane, b":held"))
        replies = await self._look_all([("ZRANGE", key, 0, most - 1, "WITHSCORES") for key in keys])
        rows = dict(zip(keys, map(ready_entries, replies), strict=True))
        of_nobody, held = _by_rank(plain, *(rows[key] for key in homes)), rows[keys[-1]]
        if not count.shared:
            return _by_rank(of_nobody, held)[:most]
        turns, full = (
            [_by_rank(*(rows[key] for key in self._sets_of(lane, name))) if name else of_nobody for name in some[:most]]
            for some in (names.turns, names.full)
        )
        return [*_by_turns(*turns, held), *_by_turns(*full)][:most]

    async def _names(self, counts: Mapping[Lane, Labelled]) -> dict[Lane, _Names]:
        """Names of the sets of lanes in which something has a label."""
        if not counts:
            return {}
        words: list[tuple[Any, ...]] = []
        for lane in counts:
            words.append(("ZRANGE", self._set(lane, b":firsts"), 0, MOST_SETS - 1))
            words.append(("ZRANGEBYSCORE", self.keys.turns(lane), 0, "+inf", "LIMIT", 0, MOST_SETS))
            words.append(("ZRANGE", self._set(lane, b":late"), 0, MOST_SETS - 1))
        *replies, rules = await self._look_all([*words, ("HGETALL", self.keys.tenants)])
        found = {lane: _Names(*replies[3 * at : 3 * at + 3]) for at, lane in enumerate(counts)}
        limited = [
            name
            for name, value in mapping(rules).items()
            if tenant_rule(value.decode(errors="replace")).max_running is not None
        ]
        asked = [
            (lane, name)
            for lane, names in found.items()
            if counts[lane].shared and len(names.turns) < MOST_SETS
            for name in limited[:MOST_LIMITED]
            if name not in names.turns
        ]
        sets = await self._some([("EXISTS", *self._sets_of(*each)) for each in asked])
        for (lane, name), number in zip(asked, sets, strict=True):
            if number:
                found[lane].full.append(name)
        return found

    def _set(self, lane: Lane, kind: bytes = b"", name: bytes = b"") -> bytes:
        return self.keys.ready(lane).encode() + kind + name

    def _sets_of(self, lane: Lane, tenant: bytes) -> list[bytes]:
        """The sets of a tenant in a lane, without what waits for its worker after an interruption."""
        return [self._set(lane, kind, tenant) for kind in (b":t:", b":th:")]

    def _groups(self, names: _Names, lane: Lane, count: Labelled) -> Iterable[tuple[Lane, list[bytes], int]]:
        """Sets that are alike, and the number of requests in all such sets of the lane; 0 for a single set."""
        yield lane, [self._set(lane)], 0
        yield lane, [self._set(lane, b":h:", home) for home in names.homes], count.home
        yield lane, [self._set(lane, b":t:", name) for name in names.tenants], count.tenant
        yield lane, [self._set(lane, b":th:", name) for name in names.tenants], count.both
        yield lane, [self._set(lane, b":held")], 0

    async def _shared_lanes(self) -> dict[Lane, Labelled]:
        counts = labelled_lanes(await self._look("HGET", self.keys.lane_states, "labelled"))
        return {lane: each for lane, each in counts.items() if each.shared}

    async def _sizes(self, keys: Sequence[bytes]) -> list[int]:
        return await self._some([("ZCARD", key) for key in keys])

    async def _some(self, words: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._look_all(words) if words else []


def _places_of(sets: int) -> int:
    """Number of places to read of each of so many sets."""
    return min(PLACES, max(3, 4 * MOST_SETS // sets))


def _by_rank(*sets: Rows) -> Rows:
    return sorted(chain.from_iterable(sets), key=lambda row: row[1])


def _by_turns(*sets: Rows) -> Rows:
    return [each for at_once in zip_longest(*sets) for each in at_once if each]


def _merged(lane: Lane, samples: Iterable[_Sample]) -> list[Ranked]:
    """The rows of all samples, by rank. What stands between two rows of a set is taken to be spread evenly."""
    points: list[tuple[float, float, Ranked | None]] = []
    for each in samples:
        read = [(place, *one) for place, reply in each.rows if (one := ranked_member(reply))]
        for (place, came, rank), after in zip_longest(read, read[1:]):
            between = 0 if after is None else (after[0] - place - 1) * each.scale
            points.append((rank, each.scale, Ranked(lane, 0, came, rank, each.scale + between)))
            if after is not None and between:
                step = (after[2] - rank) / STEPS
                points.extend((rank + step * number, between / (STEPS - 1), None) for number in range(1, STEPS))
    found, before = [], 0.0
    for _, number, row in sorted(points, key=lambda point: point[0]):
        if row is not None:
            found.append(replace(row, place=round(before)))
        before += number
    return found
