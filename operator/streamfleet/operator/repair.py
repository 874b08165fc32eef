"""Checks a whole queue for damage that only manual Redis commands can cause, and repairs it while workers run.

Every check is a bounded script call that finds and repairs atomically. A request that moves between two calls and is
missed by both is in order, because the scripts that move requests leave no intermediate state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from streamfleet.common.broker.reconciling import ENTRIES, PARTS, Damage, KeyCheck
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES, Lane, check_name
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.audit import Audit
from streamfleet.operator.broker.repairing import SCANNED
from streamfleet.operator.mistyped import find_mistyped

EXAMPLES = 3
LOCK_MS = 1_000
SILENT_MS = 600_000
STAGE_ROUNDS = 100_000
GROUPS_FIRST = frozenset({"group_gone", "group_back"})
GROUPS = GROUPS_FIRST | {"group_ahead"}
AT_FIRST = GROUPS | {"interrupted_off", "odd_count", "miscounted"}
OF_LABELS = frozenset({"labels_off", "wrong_type"})
KINDS = {
    "wrong_type": ("of another type than streamfleet's ({detail})", "renamed"),
    "no_status": ("a result without a status", "renamed"),
    "no_ttl": ("never expires", "given a life"),
    "group_gone": ("its group is gone", "made anew, and what it delivered before is kept where it was"),
    "group_back": ("its group was set back", "brought forward, and what it delivered before is kept where it was"),
    "group_ahead": ("its group is beyond the end, so that nothing is delivered", "set to the end"),
    "differs": ("its entries do not have one place each: ready, delayed or running", "its sets are made anew"),
    "nowhere": ("delivered, but neither ready nor delayed nor running", "made ready at their rank"),
    "twice": ("ready, and delayed or running as well", "ready no longer"),
    "misplaced": ("ready, and not found there in their turn", "placed anew"),
    "turn_gone": ("tenants that wait and are not in turn", "in turn again"),
    "gone": ("known of, but deleted from the lane", "forgotten"),
    "odd": ("known of in a way that does not fit", "removed"),
    "labels_off": ("the number of requests with a tenant or a home is wrong", "counted anew"),
    "interrupted_off": ("the number of interrupted requests or of their bytes is wrong", "counted anew"),
    "consumer_gone": ("consumers of workers that are gone", "removed"),
    "vanished": ("requests whose entry is gone, without a result", "ended as dead"),
    "mistyped": ("a mistyped XADD: {detail}", "left as it is: XADD its entries to that lane, and DEL it"),
    "odd_count": ("counters that are no numbers", "deleted"),
    "miscounted": ("the counters do not add up ({detail})", "brought to what is there"),
}
"""Description and repair of each kind of finding."""

Progress = Callable[[int, int], None]
"""Callback with the number of things checked, and the approximate total."""


@dataclass
class DamageGroup:
    """Damage of one kind in one lane or the whole queue; the count is 0 for the lane or queue itself."""

    kind: str
    lane: str
    count: int = 0
    examples: list[str] = field(default_factory=list)
    detail: str = ""

    def line(self, mended: bool) -> str:
        """One line for people."""
        what, done = KINDS[self.kind]
        told = f"lane {self.lane}: " if self.lane else ""
        told += (
            what.format(detail=self.detail) if self.count == 0 else f"{self.count} {what.format(detail=self.detail)}"
        )
        if self.examples:
            told += f" ({', '.join(self.examples)}{', …' if self.count > len(self.examples) else ''})"
        return f"{told}: {done}" if mended else told

    def to_json(self, mended: bool) -> dict[str, object]:
        """As JSON values."""
        return {
            "kind": self.kind,
            "lane": self.lane or None,
            "count": self.count,
            "examples": self.examples,
            "mended": mended,
            "text": self.line(mended),
        }


@dataclass(frozen=True)
class Report:
    """Outcome of an inspection.

    Attributes:
        found: findings by kind and lane, in the order of detection.
        mended: True if they were repaired.
        audit: the counters afterwards; None if a key of a wrong type makes them unreadable.
        partial: later checks were skipped, because the groups must be repaired first.
    """

    found: Sequence[DamageGroup]
    mended: bool
    audit: Audit | None
    partial: bool = False

    @property
    def problems(self) -> list[str]:
        """Remaining problems, one line each."""
        left = [found.line(False) for found in self.found if not self.mended or found.kind == "mistyped"]
        return left + [f"does not add up: {text}" for text in (self.audit.problems() if self.audit else [])]


class Inspection:
    """One inspection of a queue.

    Args:
        broker: the queue.
        mend: True to repair findings, False to report only.
        progress: called with the progress.
    """

    def __init__(self, broker: OperatorBroker, mend: bool, progress: Progress | None = None) -> None:
        self._broker, self._mend = broker, mend
        self._progress = progress or (lambda _done, _total: None)
        self._found: dict[tuple[str, str], DamageGroup] = {}
        self._done = self._total = 0
        self._labels: dict[Lane, list[bytes]] = {lane: [] for lane in LANES}

    async def run(self) -> Report:
        """Run all checks, in the order of their dependencies."""
        mistyped, *_ = await find_mistyped(self._broker.connection, self._broker.keys.base)
        for line in mistyped:
            self._found["mistyped", line] = DamageGroup("mistyped", "", detail=line)
        await self._look_at_types()
        if not self._mend and self._has({"wrong_type"}):
            return Report([*self._found.values()], False, None, partial=True)
        if not await self._look_at_groups():
            return await self._report(partial=True)
        await self._measure()
        *parts, tickets = PARTS
        for part in parts:
            await self._sweep(part)
        for lane in LANES:
            await self._look_through(lane)
        await self._sweep(tickets)
        await self._look_at_consumers()
        await self._look_at_every_key()
        self._note(await self._compare({"miscounted"}, self._mend))
        return await self._report()

    async def _report(self, partial: bool = False) -> Report:
        audit = await self._broker.audit()
        return Report([*self._found.values()], self._mend, audit, partial)

    def _note(self, findings: Iterable[Damage]) -> None:
        for finding in findings:
            lane = finding.name.partition(":")[0]
            lane = lane if lane in LANES else ""
            found = self._found.setdefault((finding.kind, lane), DamageGroup(finding.kind, lane))
            found.detail = found.detail or finding.detail
            if finding.name == lane:
                continue  # a finding about the lane itself, not about one entry
            found.count += 1
            if len(found.examples) < EXAMPLES:
                found.examples.append(finding.name)

    def _has(self, kinds: set[str] | frozenset[str]) -> bool:
        return any(kind in kinds for kind, _ in self._found)

    # -- keys ----------------------------------------------------------------------------------------------

    async def _look_at_types(self) -> None:
        """Check the keys that all requests share, and the sets of what waits with a label, which have keys by name."""
        self._note(await self._broker.set_aside(shared_checks(self._broker.keys), self._mend))
        async for sets in self._broker.label_sets():
            keys = [self._broker.keys.ready(lane).encode() + label for lane, label in sets]
            for lane, label in sets:
                self._labels[lane].append(label)
            self._note(await self._broker.set_aside([KeyCheck(key, "zset") for key in keys], self._mend))

    async def _look_at_every_key(self) -> None:
        """Check results, records, reply streams and tokens, and recorded requests whose entry is gone."""
        async for names in self._broker.every_key():
            checks = [check for name in names if (check := key_check(name, self._broker.keys, self._broker.limits))]
            if checks:
                self._note(await self._broker.set_aside(checks, self._mend))
            recorded = [name for name in map(self._recorded, names) if name]
            if recorded:
                gone = await self._broker.end_vanished(recorded, self._mend)
                self._note(Damage("vanished", name) for name in gone)
            self._step(SCANNED)

    def _recorded(self, key: str) -> str:
        name = key.removeprefix(self._broker.keys.request(""))
        try:
            return check_name(name, "id") if name != key else ""
        except InvalidRequest:
            return ""

    # -- places of entries -----------------------------------------------------------------------------------

    async def _look_at_groups(self) -> bool:
        """Check the groups. True if the later checks can run."""
        self._note(await self._compare(AT_FIRST, False))
        if self._mend:
            await self._broker.compare(None, True)
        if self._mend and self._has(GROUPS):
            await self._stage()
        return self._mend or not self._has(GROUPS_FIRST)

    async def _compare(self, kinds: Set[str], mend: bool) -> list[Damage]:
        """Compare the queue's sums. Returns findings of these kinds; the counters at one instant say what is wrong."""
        found = [damage for damage in await self._broker.compare(None, mend, counters="all") if damage.kind in kinds]
        return [Damage(each.kind, "", each.name) if each.kind == "miscounted" else each for each in found]

    async def _stage(self) -> None:
        """Stage redelivered entries with pull.lua, which knows the ones that were delivered before."""
        for _ in range(STAGE_ROUNDS):
            if (await WorkerBroker.of(self._broker).pull("~repair", 0, stage_entries=256)).staged == 0:
                return

    async def _measure(self) -> None:
        audit = await self._broker.audit(0)
        ready = sum(lane.ready for lane in audit.lanes)
        entries = audit.outstanding + ready + audit.delayed + audit.tries
        self._total = entries + await self._broker.database_size()
        self._step(0)

    def _step(self, done: int) -> None:
        self._done += done
        self._progress(self._done, max(self._done, self._total))

    async def _to_the_end(self, call: Callable[[str], Awaitable[tuple[str, list[Damage]]]]) -> list[Damage]:
        """Repeat a call from where it ended. Returns its findings."""
        after, all_found = "", []
        while True:
            before = after
            after, found = await call(before)
            all_found += found
            self._step(ENTRIES)
            if after in ("", before):
                self._note(all_found)
                return all_found

    async def _sweep(self, part: str) -> None:
        await self._to_the_end(lambda after: self._broker.sweep(part, after, self._mend))

    async def _look_through(self, lane: Lane) -> None:
        """Compare a lane's sums and examine its entries. If its sets are damaged, they are made anew."""
        if self._mend:
            await self._make_anew(lane)  # what somebody has begun
        found = await self._broker.compare(lane, self._mend, self._labels[lane])
        self._note(damage for damage in found if damage.kind in OF_LABELS or damage == Damage("differs", lane))
        damaged = await self._to_the_end(lambda after: self._broker.examine(lane, after, self._mend))
        if self._mend and (damaged or Damage("differs", lane) in found):
            await self._broker.begin(lane, self._labels[lane])
            await self._make_anew(lane)
            await self._broker.compare(lane, True, self._labels[lane])

    async def _make_anew(self, lane: Lane) -> None:
        while (await self._broker.go_on(lane))[0]:
            self._step(ENTRIES)

    async def _look_at_consumers(self) -> None:
        while count := await self._forgotten():
            found = self._found.setdefault(("consumer_gone", ""), DamageGroup("consumer_gone", ""))
            found.count += count
            if not self._mend:
                return

    async def _forgotten(self) -> int:
        limit = 500 if self._mend else 1_000_000
        return await WorkerBroker.of(self._broker).deregister(
            silent_ms=SILENT_MS, limit=limit, look_only=not self._mend
        )


def shared_checks(keys: Keys) -> list[KeyCheck]:
    """Expected properties of the keys that all requests share."""
    return [KeyCheck(key, kind, LOCK_MS if key == keys.maintain else None) for key, kind in keys.typed().items()]


def key_check(key: str, keys: Keys, limits: QueueLimits) -> KeyCheck | None:
    """Expected properties of a key of one request or client; None for any other key."""
    if ":broken:" in key:
        return None
    if key.startswith(keys.result("")):
        return KeyCheck(key, "hash", limits.result_ttl_ms, "status")
    if key.startswith(keys.request("")):
        return KeyCheck(key, "string", limits.record_ttl_ms)
    if key.startswith(keys.kept("")):
        return KeyCheck(key, "string", limits.kept_ttl_ms)
    if key.startswith((keys.reply(""), keys.tokens(""))):
        return KeyCheck(key, "stream", limits.result_ttl_ms)
    return None
