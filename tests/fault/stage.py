"""The stage of directed scenarios: workers one by one, entries by hand, and waiting for what a witness saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from streamfleet.common import scripts
from tests.fault import mutations
from tests.fault.collector import text
from tests.fault.faults import Striker
from tests.fault.fleet import Member
from tests.fault.harness import Harness
from tests.fault.journal import Journal, read
from tests.fault.plan import Item, Kind, body
from tests.waiting import eventually

REPLY = "stage"


class Stage:
    """One scenario's hands on a harness.

    Attributes:
        harness, fleet: as they are.
        mutation: the guard that is out; empty for none.
    """

    def __init__(self, harness: Harness, mutation: str) -> None:
        self.harness, self.fleet, self.mutation = harness, harness.fleet, mutation
        self.fleet.mutation = mutation
        self.striker = Striker(harness)
        self.struck: list[tuple[str, str]] = []
        self._journal = Journal(harness.folder / "stage.journal")
        self._sent: set[str] = set()
        self.fleet.on_struck = self._was_struck

    @property
    def redis(self) -> Any:
        return self.harness.redis.direct

    # -- workers -------------------------------------------------------------------------------------------

    async def worker(self, slot: int) -> Member:
        """A new worker in a slot, ready."""
        await self.fleet.start(slot)
        return await self.fleet.ready(slot)

    async def idle(self, slot: int) -> Member:
        """A new worker that watches for work."""
        before = await self.redis.zcard("{default}:watch")
        member = await self.worker(slot)

        async def watches() -> bool:
            return bool(await self.redis.zcard("{default}:watch") > before)

        await eventually(watches, 5, f"{member.name} watches")
        await asyncio.sleep(0.1)  # from its pull's answer to its blocking read
        return member

    async def send(self, member: Member, signum: Any, kind: str) -> None:
        """A signal, logged as a fault of this kind."""
        self.striker.mark(kind, member.name)
        await self.fleet.signal(member, signum)

    async def arm(self, member: Member, point: str, action: str, seconds: float = 0.0) -> None:
        """Strike a worker the next time it comes to a point."""
        self.fleet.controls.tell(member.name, do="arm", point=point, action=action, seconds=seconds, skip=0)
        await asyncio.sleep(0.1)  # for the order to arrive

    async def was_struck(self, member: Member, within_s: float = 5.0) -> None:
        """Wait until a strike that was armed took place."""
        await eventually(lambda: any(name == member.name for name, _ in self.struck), within_s, "a strike at a point")

    def _was_struck(self, name: str, said: dict[str, Any]) -> None:
        self.striker.mark(f"point_{said['action']}", name, point=said["point"], seconds=said["seconds"])
        self.struck.append((name, said["point"]))

    # -- requests ------------------------------------------------------------------------------------------

    async def add(
        self,
        name: str,
        tokens: int = 20,
        kind: Kind = Kind.GOOD,
        lane: str = "normal",
        ttl: int | None = None,
        queue: str = "default",
        **more: str,
    ) -> None:
        """A plain XADD; `more` are further fields."""
        await self.add_all([(name, tokens, kind, lane, ttl)], queue, **more)

    async def add_all(
        self, entries: Sequence[tuple[str, int, Kind, str, int | None]], queue: str = "default", **more: str
    ) -> None:
        """Plain XADDs that appear at once: (id, tokens, kind, lane, ttl)."""
        async with self.redis.pipeline(transaction=True) as pipe:
            for name, tokens, kind, lane, ttl in entries:
                if name not in self._sent:
                    self._journal.write("intent", nonce=name, id=name, kind=kind, reply=REPLY, ttl=ttl)
                self._sent.add(name)
                late = {} if ttl is None else {"ttl": str(ttl)}
                fields = {"id": name, "body": body(tokens), "reply": REPLY, "meta": name, **late, **more}
                pipe.xadd(f"{{{queue}}}:lane:{lane}", fields)
            await pipe.execute()
        for name, *_ in entries:
            self._journal.write("accepted", id=name, nonce=name)

    async def cancel(self, name: str, before_ms: int | None = None) -> None:
        """Cancel a request, and log what was said; with `before_ms` one that is yet to come, within so many ms."""
        self._journal.write("cancel", id=name, said=await self.harness.broker.cancel(name, before_ms=before_ms))

    async def ask_to_cancel(self, name: str) -> None:
        """Let a worker cancel a request, as producers do."""
        self._journal.write("cancel", id=name, said=True)
        await self.redis.xadd("{default}:cancel_requests", {"id": name})

    async def load_scripts(self) -> None:
        """Have Redis know all scripts, so that the first call of each is none that is answered with NOSCRIPT."""
        for verb in scripts.VERBS:
            await self.redis.script_load(mutations.source(verb, self.mutation))

    async def runs(self, name: str, times: int = 1, within_s: float = 8.0) -> str:
        """Wait until a request was started so often; the worker that did so last."""
        await eventually(lambda: len(self._starts(name)) >= times, within_s, f"{name} is started {times} times")
        return self._starts(name)[-1]

    def _starts(self, name: str) -> list[str]:
        lines = [
            line
            for path in self.harness.folder.glob("*.witness")
            for line in read(path)
            if line["e"] == "start" and line["id"] == name
        ]
        return [str(line["worker"]) for line in sorted(lines, key=lambda line: line["at"])]

    async def ended(self, name: str, within_s: float, queue: str = "default") -> dict[str, str]:
        """Wait for a result; some of its fields."""
        fields = ("status", "worker", "attempt", "error")

        async def there() -> list[bytes | None]:
            found: list[bytes | None] = await self.redis.hmget(f"{{{queue}}}:result:{name}", fields)
            return found if found[0] else []

        values = await eventually(there, within_s, f"{name} has a result")
        return dict(zip(fields, map(text, values), strict=True))

    async def exit_code(self, member: Member, within_s: float) -> int:
        """Wait for a worker's end."""
        await eventually(member.ended.done, within_s, f"{member.name} has ended")
        return member.ended.result()


def item(name: str, tokens: int, kind: Kind = Kind.GOOD) -> Item:
    """A request for a producer process."""
    return Item(name, name, kind, "normal", {"body": body(tokens)})
