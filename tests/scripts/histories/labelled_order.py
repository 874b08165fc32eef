"""The model of the order beside the scripts: it is told what they are, and must say what they say.

Which home a request gets is not compared, and neither is what is forgotten: both are read from the scripts' keys.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES
from tests.order.model import NO_LIMIT, Charge, Entry, Model, Needs
from tests.scripts.harness import Queue
from tests.scripts.keyspace import Dump, text

NEAR = 1e-6
"""Relative difference of tokens that comes from rounding."""
SEEN_MS = 2_000
"""Time until a limit that is set counts."""
NO_HOME = 1_000_000
"""Numbers of workers that the scripts give none begin here: what is held knows its worker by name."""
HOMING = b"1"
FILLS, NO_SLOT = 2, 2**19
"""Constants of filling.lua."""

# What a call does is undone: the keys before it, and after it.
KEEP = """
local all = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  all[i] = {key, math.max(0, redis.call('PTTL', key)), redis.call('DUMP', key)}
end
return all
"""
RESTORE = """
redis.call('FLUSHDB')
for i = 1, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
"""


class Order(Model):
    """The model, and what it is told of the scripts.

    Attributes:
        answered: entries that run, or wait, and whose results were written.
        free_since: by tenant the time since which it runs fewer than it may.
        rules: by tenant what an operator has set.
        homes: by entry, as `Request.member`, the number of the worker that it waits for.
        numbers: numbers of workers that are homes, by name.
        keepers: names of the workers for which entries are held.
    """

    def __init__(self, shares: Sequence[int]) -> None:
        super().__init__(shares)
        self.answered: set[Entry] = set()
        self.free_since: Counter[str] = Counter()
        self.rules: dict[str, TenantRule] = {}
        self.homes: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.keepers: dict[Entry, str] = {}
        self._others: dict[str, int] = {}

    # -- what the scripts know ------------------------------------------------------------------------------------

    @staticmethod
    def commands(keys: Keys) -> list[Sequence[Any]]:
        """Commands whose replies `follow` takes."""
        return [
            ("HGET", keys.lane_states, "sessions"),
            ("HGETALL", keys.sessions),
            ("HGETALL", keys.tickets),
        ]

    def follow(self, homing: bytes | None, *hashes: Sequence[bytes]) -> None:
        """Homes of what waits, and workers' numbers, are as the scripts have them."""
        sessions, tickets = (dict(zip(map(text, flat[::2]), map(text, flat[1::2]), strict=True)) for flat in hashes)
        self.homes = {member: int(words.split(" ")[0]) for member, words in tickets.items()}
        known = sessions if homing == HOMING else {}
        self.numbers = {name[2:]: int(words.split(" ")[0]) for name, words in known.items() if name[:2] == "n|"}
        for lane in self.lanes.values():
            for e in lane.waiting.values():
                e.home = self.number(self.keepers[e]) if e.until else self.homes.get(member_of(e), 0)

    def number(self, worker: str) -> int:
        """The number by which the model knows a worker."""
        return self.numbers.get(worker) or self._others.setdefault(worker, NO_HOME + len(self._others))

    def set_rule(self, name: str, rule: TenantRule) -> None:
        self.rules[name] = rule
        self.free_since[name] = self.now + SEEN_MS

    def see_rules(self) -> None:
        """What operators have set counts; whose limit was raised takes turns once the housekeeping has seen it."""
        for name, rule in self.rules.items():
            tenant = self.tenant(name)
            tenant.weight, tenant.limit = rule.weight, rule.max_running or NO_LIMIT

    # -- what happens ---------------------------------------------------------------------------------------------

    def ready(self, e: Entry, member: str, held: tuple[int, str], *, came: bool) -> None:
        """It waits for a worker from now on; `held`: as long as `Request.held` says for that worker alone."""
        e.came_back = not came
        e.until = held[0] if held[0] > self.now else 0
        self.keepers[e] = held[1]
        e.home = self.number(held[1]) if e.until else self.homes.get(member, 0)
        self.became_ready([e])

    def gone(self, e: Entry) -> None:
        """It ends, and nobody settles its run."""
        if e.id in self.lanes[e.lane].waiting:
            self.left(e.lane, e.id)
            return
        self.tenant(e.tenant).tokens += e.charge.kept
        if self.running.pop((e.lane, e.id), None) and e.charge.runs:
            self._settle(e, 0)

    def _settle(self, e: Entry, cost: int) -> None:
        tenant = self.tenant(e.tenant)
        was_full = not tenant.may_run
        super()._settle(e, cost)
        if was_full and tenant.may_run:
            self.free_since[e.tenant] = self.now

    def out_of_reach(self, e: Entry, now: int, needs: Needs) -> bool:
        """What has a result is not started either."""
        return e in self.answered or super().out_of_reach(e, now, needs)

    def tidy(self, names: Sequence[str], turns: Mapping[int, Mapping[str, float]]) -> None:
        """The housekeeping has come.

        Args:
            names: tenants that it knows, in its order.
            turns: those that it has not forgotten, by lane.
        """
        for name in names:
            before = [name in lane.in_turn for lane in self.lanes.values()]
            self._enter_where_it_waits(name)
            if before != [name in lane.in_turn for lane in self.lanes.values()]:
                self.free_since[name] = self.now
        for number, lane in self.lanes.items():
            lane.tokens = {name: tokens for name, tokens in lane.tokens.items() if name in turns[number]}
            if not turns[number]:
                lane.reached = lane.new = 0

    def wanted(self, worker: str, room: int, held: int, waiting: Sequence[tuple[str, float]]) -> int:
        """Most requests that it takes at once, while others have more room."""
        waits = [score for name, score in waiting if name != worker and score < NO_SLOT]
        number, lanes = self.number(worker), self.lanes.values()
        own = sum(e.home == number and not e.until for lane in lanes for e in lane.waiting.values())
        few = max(1, min(room, int(min(waits)) + FILLS - held)) if waits and room > 1 else room
        return max(few, min(room, own))

    # -- what must hold --------------------------------------------------------------------------------------------

    def compare(self, dump: Dump, charges: Mapping[str, Charge]) -> None:
        """Charges, records, turns, levels and credits are the scripts', and so is what waits in which set."""
        self._compare_served(dump.get("served", {}), charges)
        waits = {key: sorted(rows) for key, rows in dump.items() if key.startswith("ready:") and not _is_bound(key)}
        sets = self._sets()
        assert waits == sets, f"{waits}, not {sets}"
        for lane, number in zip(LANES, self.lanes, strict=True):
            self.compare_turns(number, dict(dump.get(f"turns:{lane}", [])))
            self._compare_late(number, dict(dump.get(f"ready:{lane}:late", [])))
        credit = [int(dump.get("lanes", {}).get(f"credit:{lane}", 0)) for lane in LANES]
        assert credit == self.shares.credit, f"{credit}, not {self.shares.credit}"

    def compare_turns(self, number: int, scores: Mapping[str, float]) -> None:
        """Those in turn, and their tokens; rounding is taken over, so that it does not add up."""
        lane = self.lanes[number]
        in_turn = {name for name, score in scores.items() if score >= 0}
        assert in_turn == lane.in_turn, f"lane {number}: in turn are {in_turn}, not {lane.in_turn}"
        for name in scores.keys() | lane.tokens.keys():
            score = scores.get(name, 0)
            tokens = score if score >= 0 else -1 - score
            assert math.isclose(tokens, lane.tokens.get(name, 0), rel_tol=NEAR, abs_tol=NEAR), (
                f"lane {number}: {name!r} has {tokens} tokens, not {lane.tokens.get(name)}"
            )
            lane.tokens[name] = tokens

    def _compare_served(self, served: Mapping[str, str], charges: Mapping[str, Charge]) -> None:
        found = {name[2:]: words.split(" ", 6) for name, words in served.items() if name.startswith("c|")}
        assert found.keys() == charges.keys(), f"{found.keys() ^ charges.keys()}"
        for name, (prompt, output, weight, kept, _, counted, _) in found.items():
            charge = charges[name]
            assert [int(prompt), int(output), int(kept)] == [charge.prompt, charge.output, charge.kept], name
            if charge.runs:
                assert [float(weight), counted == "1"] == [charge.weight, charge.counted], name
        for name, tenant in self.tenants.items():
            words = served.get(f"t|{name}", "0 0 0 0 0 0 0 0").split(" ")
            known = [tenant.running, tenant.requests, tenant.charged, tenant.tokens, tenant.lost, tenant.credited]
            assert [*map(int, words[:5]), int(words[7])] == known, f"{name!r}: {words}, not {known}"
        for number, lane in self.lanes.items():
            level, new = (float(served.get(f"{field}|{number}", 0)) for field in ("level", "new"))
            assert math.isclose(level, lane.reached, rel_tol=NEAR), f"lane {number}: {level}, not {lane.reached}"
            assert math.isclose(new, lane.new, rel_tol=NEAR), f"lane {number}: {new}, not {lane.new}"
            lane.reached, lane.new = level, new

    def _sets(self) -> dict[str, list[tuple[str, float]]]:
        sets = defaultdict(list)
        for lane, waiting in zip(LANES, self.lanes.values(), strict=True):
            for e in waiting.waiting.values():
                id_ = f"{e.id[0]}-{e.id[1]}"
                full = f"{id_} {e.size} {'' if e.limit is None else e.limit}"
                if e.until:
                    rows = {":held": f"{full} {e.tenant}"}
                elif e.home and e.tenant:
                    rows = {f":th:{e.tenant}": f"{full} {e.home}", f":ht:{e.home}": f"{full} {e.tenant}"}
                elif e.tenant:
                    rows = {f":t:{e.tenant}": full}
                else:
                    rows = {f":h:{e.home}" if e.home else "": id_}
                for kind, member in rows.items():
                    sets[f"ready:{lane}{kind}"].append((member, float(e.rank)))
        return {key: sorted(rows) for key, rows in sets.items()}

    def _compare_late(self, number: int, late: Mapping[str, float]) -> None:
        """In a shared lane `late` tells of each tenant a time before its first deadline to come.

        What has a home and no tenant is behind the first of that home, until that one is taken or has ended.
        """
        lane = self.lanes[number]
        firsts = {e.home: e for e in reversed(lane.of(""))}
        for e in lane.rows(lambda e: e.deadline is not None and e.deadline > self.now) if lane.shared else ():
            if not e.tenant and e.home and e is not firsts[e.home]:
                continue
            assert late.get(e.tenant, math.inf) <= e.rank, f"lane {number}: {e.tenant!r} has {e}, {late}"


def member_of(e: Entry) -> str:
    """Its name in the scripts' hashes."""
    return f"{e.lane}|{e.id[0]}-{e.id[1]}"


def _is_bound(key: str) -> bool:
    return key.endswith((":firsts", ":late", ":past"))


async def tried(queue: Queue, call: Callable[[], Awaitable[Any]], commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Replies of commands after a call of which nothing stays."""
    kept = await queue.command("EVAL", KEEP, 0)
    await call()
    replies = await queue.connection.pipeline([*commands])
    await queue.command("EVAL", RESTORE, 0, *[word for row in kept for word in row])
    return replies
