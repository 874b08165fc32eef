"""Random histories that call every verb of the queue's scripts, for requests with labels and without."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.types import Completion, Hint, Home, Lease, Retry, Rooms, TenantRule, TokenGroup
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES, Status, digest_of_bytes, hashed_bytes
from streamfleet.operator.repair import shared_checks
from tests.scripts.compare.twins import TwinQueue, Twins
from tests.scripts.harness import ERROR, submission
from tests.scripts.histories.steps import Step

OFTEN = {"pull": 24, "add": 14, "enqueue": 14, "complete": 12, "clock": 10, "wait": 6, "keep_house": 6, "retry": 5}
VERBS = OFTEN | {"renew": 4, "release": 4, "cancel": 3, "look": 3, "set_tenant": 3, "operate": 3, "requeue": 2}
VERBS |= {"repair": 2, "damage": 1, "forget": 1, "full": 1}
WORKERS = ("w1", "w2", "w3", "w4")
ROOMS = (0, 1, 1, 2, 4, Rooms((2, 2, 2, 1), (2, 2, 2, 2), 1, 3), Rooms((1, 1, 0, 0), (1, 1, 1, 1), 0, 3))
NEEDS = dict.fromkeys(["none", *map(str, range(20))], 4_000)
LIMITS = QueueLimits(max_entry_bytes=20_000, lane_limit=30, watchers=1, dead_cap=20, result_ttl_ms=600_000)
LEASE_MS, MOST = 10_000, 3


def make(seed: int, length: int) -> list[Step]:
    """A history from a seed. In every third one no request has a tenant or a session."""
    numbers = random.Random(seed)
    verbs = numbers.choices(list(VERBS), list(VERBS.values()), k=length)
    return [Step(verb, seed, numbers.randrange(2**32), 0) for verb in verbs]


class EveryVerb:
    """Workers, clients, an operator and a clumsy hand, on a clock that steps move."""

    def __init__(self, both: Twins) -> None:
        self.both, self.queue = both, TwinQueue(both, LIMITS)
        self.broker, self.keys = self.queue.broker, self.queue.keys
        self.leases: list[tuple[str, Lease]] = []
        """Also those that were lost meanwhile, and some that have ended."""
        self.hints: list[Hint] = []
        self.scan = ExpiryScan()
        self.labelled = True

    async def run(self, steps: Sequence[Step]) -> None:
        """Raises Different as soon as the two sides do not do the same."""
        await self.broker.ensure_groups()
        for step in steps:
            self.chance, self.labelled = random.Random(step.y), step.x % 3 != 0
            self.pick = self.chance.choice
            try:
                await getattr(self, f"_{step.verb}")()
            except (StreamfleetError, ResponseError):  # both sides have raised the same
                await self._repair(mend=True)
            await self.both.compare()

    # -- clients -----------------------------------------------------------------------------------------------------

    def _request(self) -> dict[str, str]:
        pick = self.pick
        number = pick(range(60))
        of_id = random.Random(number).choice  # an id always comes with the same body
        text = of_id("ab") * 1_100 if of_id(range(5)) == 0 else "x" * of_id([1, 40, 400])
        body = {"prompt": text} | ({"max_tokens": of_id([5, 200])} if of_id([0, 1]) else {})
        fields = {"body": json.dumps(body), "id": f"r{number}", "reply": pick(["", "me", "you"])}
        late = pick([0, 0, 3_000, 20_000, 90_000])
        fields |= {"ttl": str(late or "")} if pick([0, 1]) else {"deadline": str(late and self.both.now + late)}
        if self.labelled:
            fields |= {"tenant": pick(["", *"abcd"]), "session": pick(["", "s1", "s2", "s3"])}
            fields |= {"program": pick(["", "", "p"]), "bounded": pick(["", "1"])}
        return {name: value for name, value in (fields | {"if_late": pick(["", "", "refuse"])}).items() if value}

    async def _add(self) -> None:
        odd: dict[str, str] = self.pick([{}, {}, {}, {"deadine": "1"}, {"id": "a b"}, {"body": "y" * 20_100, "id": ""}])
        stream_id = self.pick(["*", "*", "*", f"{self.both.now + 5_000}-*"])
        await self.queue.add(self.pick(LANES), stream_id, **self._request() | odd)

    async def _enqueue(self) -> None:
        items = []
        for _ in range(self.pick([1, 1, 2, 5])):
            fields = self._request()
            given = submission(fields["id"], self.pick(LANES), fields.get("reply", ""))
            encoded = {name: value.encode() for name, value in fields.items()}
            digest = 16 * self.pick("dde") + hashed_bytes(encoded["body"], b"")
            items.append(type(given)(given.id, given.lane, encoded, digest, given.reply))
        await self.broker.enqueue(items)

    async def _cancel(self) -> None:
        name = self.pick([f"r{self.pick(range(60))}", "high:1-1", *[lease.entry for _, lease in self.leases[:1]]])
        before = self.pick([None, 5_000])
        await self.broker.ask_to_cancel(f"r{self.pick(range(60))}", before)
        for stream_id, request_id, ahead in await self.broker.cancel_requests(5):
            await self.broker.drop_cancel_request(stream_id)
            if ahead:
                await self.broker.cancel(request_id, before_ms=int(ahead))
        await self.broker.cancel(name, before_ms=before)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _some(self) -> tuple[str, list[Lease]]:
        """A worker, and some leases that it believes to have; mostly it does not, afterwards."""
        worker = self.pick(self.leases)[0] if self.leases else "w1"
        mine = [lease for name, lease in self.leases if name == worker]
        return worker, self.chance.sample(mine, min(len(mine), self.pick([1, 1, 3])))

    def _drop(self, worker: str, leases: Sequence[Lease]) -> None:
        if self.pick(range(10)):
            self.leases = [each for each in self.leases if each[0] != worker or each[1] not in leases]

    async def _pull(self) -> None:
        worker, pick = self.pick(WORKERS), self.pick
        held = len([name for name, _ in self.leases if name == worker])
        hints, self.hints = self.hints, []
        pulled = await self.queue.pull(
            worker,
            pick(ROOMS),
            hints,
            watching=pick([False, True]),
            owing=pick([False, True]),
            stage_entries=pick([1, 3, 256]),
            needs=pick([None, None, NEEDS]),
            home=pick([None, Home(f"start-{worker}", held), Home(f"start-{worker}", held)]),
        )
        self.leases += [(worker, claim.lease) for claim in pulled.claims]

    async def _wait(self) -> None:
        """Ends the waits of idle workers: by an entry of a lane, or a token."""
        self.hints += await self.queue.read(LANES)
        for key in (self.keys.bench, self.keys.standby, self.keys.home(self.pick(WORKERS))):
            await self.queue.command("LPOP", key)

    async def _complete(self) -> None:
        (worker, leases), pick, done = self._some(), self.pick, []
        for lease in leases:
            status = pick([Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED])
            values: dict[str, Any] = {"response": "{}" * pick([1, 900]), "resumed_tokens": pick([0, 3]), "waited_ms": 5}
            if pick([0, 1, 1]):
                values["usage"] = json.dumps({"prompt_tokens": pick([1, 90]), "completion_tokens": pick([0, 300])})
            if pick([0, 0, 1]):
                values["streamed"] = 1
                await self.broker.publish_tokens([TokenGroup(lease.request_id, 1, "run", 0, b"{}", lasting=True)], 100)
            error = "" if status is Status.SUCCEEDED else ERROR
            done.append(Completion(lease, status, values, pick(["", "me"]), error, pick([None, 9.0, float("inf")])))
        await self.broker.complete(worker, done)
        self._drop(worker, leases)

    async def _renew(self) -> None:
        worker, leases = self._some()
        if self.labelled:  # see differences.NOT_PLAYED
            leases = [each for each in leases if await self.queue.command("XRANGE", *self._place(each))]
        await self.broker.renew(worker, leases, {lease: ("run", 7) for lease in leases if self.pick([0, 1])})

    def _place(self, lease: Lease) -> tuple[str, str, str]:
        return self.keys.lane(lease.lane), lease.stream_id, lease.stream_id

    async def _release(self) -> None:
        worker, leases = self._some()
        runs = {lease: f"run-{lease.stream_id}" for lease in leases if self.pick([0, 1])}
        await self.broker.keep(dict.fromkeys(runs.values(), b"output"))
        how: dict[str, Any] = self.pick([{}, {"in_turn": True}, {"gave_way": True}, {"gave_way": True}])
        how |= {"kept": {lease: (run, 6) for lease, run in runs.items()}, "generated": dict.fromkeys(runs, 8)}
        await self.broker.release(worker, leases, **how)
        if self.pick([0, 0, 1]):
            await self.broker.disown(worker, [lease for name, lease in self.leases if name == worker])
        self._drop(worker, leases)

    async def _retry(self) -> None:
        (worker, leases), pick = self._some(), self.pick
        held = pick([None, 20.0, float("inf")])
        retries = [Retry(lease, pick([0, 0, 500, 8_000]), ERROR, pick([False, True]), held) for lease in leases]
        await self.broker.retry_later(worker, retries, MOST)
        self._drop(worker, leases)

    async def _keep_house(self) -> None:
        worker, pick = self.pick(WORKERS), self.pick
        await self.broker.heartbeat(worker, {"state": "ready", "slots": 4})
        await self.broker.agree()
        turn = await self.broker.acquire_housekeeping_lock(worker, 900, 5_000)
        await self.broker.reclaim(LEASE_MS, MOST, latest_ms=pick([None, turn.now_ms + 1_000]))
        await self.broker.before_reclaiming(most_delay_ms=30_000)
        _, self.scan = await self.broker.after_staging(pick([None, self.scan]), pick([3, 1_000]))
        await self.broker.retain()
        await self.broker.deregister(pick(["", "", worker]), 60_000, pause_ms=pick([0, 5_000]))

    # -- operators ---------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        await self.broker.audit(self.pick([2, 10_000]))
        asked: list[Any] = [(lane, None, self.both.now + 9_000, None, "a", 2) for lane in LANES]
        for lane, found in (await self.broker.next_ready(5)).items():
            asked += [(lane, stream_id, None, None, self.pick([None, "", "a"])) for stream_id, _ in found]
        await self.broker.expected([*asked, *[(lease.lane, lease.stream_id) for _, lease in self.leases]])

    async def _requeue(self) -> None:
        for letter_id, fields in await self.broker.dead_letters(2):
            kept = [part for pair in fields.items() if not pair[0].startswith(b"_") for part in pair]
            name, entry = fields[b"_id"].decode(), fields[b"_entry"].decode()
            digest = digest_of_bytes(fields)
            await self.broker.requeue(letter_id, name, self.pick(LANES), kept, entry=entry, digest=digest)

    async def _operate(self) -> None:
        await self.broker.pause([self.pick(LANES)]) if self.pick([0, 0, 1]) else await self.broker.resume(LANES)
        await self.broker.set_configuration({"result_ttl_ms": self.pick(["60000", "600000"])})
        await self.broker.drain(self.pick(WORKERS))

    async def _set_tenant(self) -> None:
        rule = TenantRule(self.pick([0.5, 1, 3]), self.pick([None, 1, 2]), self.pick(["", "key"]), self.both.now)
        await self.broker.set_tenant(self.pick("abc"), rule)

    async def _repair(self, *, mend: bool | None = None) -> None:
        mend, command = self.pick([True, True, False]) if mend is None else mend, self.queue.command
        await self.broker.ensure_groups()
        await self.broker.check_keys(shared_checks(self.keys), mend)
        await self.broker.check_groups(mend)
        for lane in LANES:
            for part in ("lane", "pending"):
                await self.broker.check_entries(part, lane, "", mend)
            await self.broker.check_members("ready", lane, await command("ZRANGE", self.keys.ready(lane), 0, -1), mend)
        await self.broker.check_members("delayed", None, await command("ZRANGE", self.keys.delayed, 0, -1), mend)
        await self.broker.check_members("tries", None, await command("HKEYS", self.keys.tries), mend)
        await self.broker.end_vanished([f"r{number}" for number in range(60)], mend)
        await self.broker.balance()

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    async def _clock(self) -> None:
        """Time passes; now and then somebody sets the clock back."""
        self.both.at(self.both.now + self.pick([50, 400, 1_200, 3_000, 11_000, 70_000, -1_500]))

    async def _damage(self) -> None:
        """Somebody enters a command by hand, or Redis loses a key."""
        lane, keys = self.pick(LANES), self.keys
        lost = [keys.ready(lane), keys.turns(lane), keys.waiting, keys.homes, keys.served, keys.sessions]
        ids = [lease.stream_id for _, lease in self.leases[:3]] or ["1-1"]
        harm: list[tuple[str, ...]] = [
            ("DEL", key) for key in (*lost, keys.counts, keys.tries, keys.delayed, keys.loads, keys.watch)
        ]
        harm += [("XDEL", keys.lane(lane), *ids), ("XACK", keys.lane(lane), GROUP, *ids)] * 3
        of_lanes = [keys.lane_states, keys.entries, keys.clock, keys.dead_parts, keys.pace, keys.listeners]
        harm += [("EVAL", "redis.call('DEL', unpack(KEYS))", str(len(of_lanes)), *of_lanes)]
        harm += [("XGROUP", "DESTROY", keys.lane(lane), GROUP), ("XGROUP", "SETID", keys.lane(lane), GROUP, "0")]
        harm += [("ZADD", keys.ready(lane), "5", "nonsense"), ("SET", keys.dead, "x"), ("FLUSHALL",)]
        await self.queue.command(*self.pick(harm))

    async def _forget(self) -> None:
        """A worker that renews nothing loses what it holds; the server forgets its scripts."""
        for owner in (self.pick(WORKERS), NOBODY):
            for lane in LANES:
                rows = await self.queue.command("XPENDING", self.keys.lane(lane), GROUP, "-", "+", 9, owner)
                for row in rows:
                    await self.queue.age(lane, row[0].decode(), owner)
        await self.queue.command("SCRIPT", "FLUSH")

    async def _full(self) -> None:
        async with self.queue.full_memory():
            await getattr(self, self.pick(["_pull", "_complete", "_retry", "_release", "_keep_house", "_enqueue"]))()
