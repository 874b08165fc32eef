"""The history of a run as plain values: read from the logs of all processes and from Redis at its end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from streamfleet.common.protocol import LANES
from tests.fault.collector import SIGNATURE, text
from tests.fault.harness import Harness
from tests.fault.journal import read
from tests.fault.leftovers import Leftover, leftovers

AWAY: dict[str, Callable[[History], list[tuple[int, int]]]] = {
    "redis_kill": lambda history: history.outages,
    "restore": lambda history: history.rewinds,
    "password": lambda history: history.outages,
}
STEP_MS = 1_000  # between a step of Redis's clock and the line in the log that tells of it


@dataclass(frozen=True)
class Accepted:
    """A request that Redis took.

    Attributes:
        id: its id.
        nonce: the same in every log line about it.
        kind: what it is.
        reply: the stream that is to be told.
        ttl_ms: its time to live.
        at_ms: when its producer knew, by the machine's clock.
    """

    id: str
    nonce: str
    kind: str
    reply: str
    ttl_ms: int | None = None
    at_ms: int = 0


@dataclass(frozen=True)
class Execution:
    """A request in an engine: `end_ms` is None where the process went with it, `entry` is the one that it ran for."""

    id: str
    worker: str
    attempt: int
    start_ms: int
    end_ms: int | None = None
    entry: str = ""


@dataclass(frozen=True)
class Notified:
    """One entry of a reply stream; `result` is what stood when it was first seen, by SIGNATURE."""

    reply: str
    id: str
    told: str
    result: Mapping[str, str]


@dataclass(frozen=True)
class Exit:
    """A worker process that ended at `at_ms`; `code` negative for a signal."""

    worker: str
    code: int
    at_ms: int = 0


@dataclass
class History:
    """A run, to be judged.

    Attributes:
        accepted: requests by id.
        nonces: of everything that was ever sent, accepted or not.
        results: the final result hashes by id: SIGNATURE, lane, entry, enqueued_ms, meta.
        live: notifications as they came.
        replies: (reply name, request id) of every entry at the end.
        executions: by request id.
        touched: worker name to the kinds of faults that touched it; "" for all of them.
        gave_way: (request id, worker, attempt) to how often that run ended for an urgent request.
        marked: workers that ran a poisonous or hanging request.
        exits: of workers.
        letters: (id, status) of dead letters.
    lost_with: id to the workers that its dead letter names.
        cancelled: id to what the first cancelling call said.
        got: (id, status, worker, attempt) as clients were told.
        leftovers: what is left in the queues' keys at the end, by queue.
        left: name of a key, or of a count, that holds too much at the end, to what it holds.
        problems: whatever the audit, or a log, complains of.
        counts: the queue's counters.
        redis_clock: (machine's clock, how far Redis's was ahead of it from then on), epoch ms and ms.
        outages: when Redis was away, or refused logins, by the machine's clock: beginning and end, epoch ms.
        refusals: how often Redis refused a login or a command in each change of its password.
        started: worker to when, epoch ms.
        ready: workers that took requests.
        rewinds: (from, to) in epoch ms of what a restored snapshot undid, by the machine's clock.
        rewound: ids of which something happened in such a time, or right after a stop that began in it: the worker may
            have taken the request before.
        stopped: worker name to (from, to) of its stops, epoch ms.
        told_lost: ids whose callers were told that Redis has lost them.
        doubles: entries sent on purpose, or in doubt, under an id that had been sent before.
        doubted: ids of those in doubt: where both entries are there, both may run at once.
    stuck, orphans: processes that had to be killed, and those left behind.
    """

    max_deliveries: int = 5
    lease_ms: int = 3_000
    accepted: dict[str, Accepted] = field(default_factory=dict)
    nonces: set[str] = field(default_factory=set)
    results: dict[str, dict[str, str]] = field(default_factory=dict)
    live: list[Notified] = field(default_factory=list)
    replies: list[tuple[str, str]] = field(default_factory=list)
    executions: dict[str, list[Execution]] = field(default_factory=lambda: defaultdict(list))
    touched: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    gave_way: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    marked: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    exits: list[Exit] = field(default_factory=list)
    letters: list[tuple[str, str]] = field(default_factory=list)
    lost_with: dict[str, list[str]] = field(default_factory=dict)
    cancelled: dict[str, bool] = field(default_factory=dict)
    got: list[tuple[str, str, str, int]] = field(default_factory=list)
    leftovers: dict[str, list[Leftover]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    redis_clock: list[tuple[int, int]] = field(default_factory=list)
    outages: list[tuple[int, int]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    started: dict[str, int] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    rewinds: list[tuple[int, int]] = field(default_factory=list)
    rewound: set[str] = field(default_factory=set)
    stopped: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    told_lost: set[str] = field(default_factory=set)
    doubles: int = 0
    doubted: set[str] = field(default_factory=set)
    stuck: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def undone(self, at_ms: int) -> bool:
        """True if a restored snapshot may have undone what happened at this time."""
        return any(began <= at_ms <= over + STEP_MS for began, over in self.rewinds)

    def taken_undone(self, execution: Execution) -> bool:
        """True if its worker, which then stood still, may have taken it in a time that was undone."""
        stops = self.stopped.get(execution.worker, [])
        return any(self.undone(began) and over <= execution.start_ms <= over + STEP_MS for began, over in stops)

    def lasting(self) -> History:
        """The history without the requests that a restored snapshot may have touched."""

        def of_lasting(found: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in found.items() if name not in self.rewound}

        return replace(
            self,
            accepted=of_lasting(self.accepted),
            results=of_lasting(self.results),
            executions=of_lasting(self.executions),
            cancelled=of_lasting(self.cancelled),
            live=[seen for seen in self.live if seen.id not in self.rewound],
            replies=[(reply, name) for reply, name in self.replies if name not in self.rewound],
            letters=[(name, status) for name, status in self.letters if name not in self.rewound],
            got=[told for told in self.got if told[0] not in self.rewound],
        )

    def back(self, at_ms: int) -> int:
        """The moment itself, or the end of an outage that it fell into: nothing can be written before."""
        return max((over for began, over in self.outages if began - STEP_MS <= at_ms <= over), default=at_ms)

    def moments(self, redis_ms: int) -> list[int]:
        """Moments of the machine's clock at which Redis's clock may have shown this time; in order, epoch ms."""
        steps = [(0, 0), *self.redis_clock, (2**63, 0)]
        found = [
            redis_ms - ahead_ms
            for (since_ms, ahead_ms), (until_ms, _) in pairwise(steps)
            if since_ms - STEP_MS <= redis_ms - ahead_ms <= until_ms + STEP_MS
        ]
        return sorted(found) or [redis_ms]


async def collect(harness: Harness) -> History:
    """Everything of a run whose workers have left and whose producers have not."""
    history = History(harness.setup.max_deliveries, harness.setup.lease_ms)
    for broker in harness.brokers:
        await _read_results(harness.redis.direct, history, broker.keys.base)
        await _read_rest(harness.redis.direct, history, broker.keys.base)
        found = await leftovers(harness.redis.direct, broker.keys, harness.fleet.fallen)
        history.leftovers[broker.keys.queue] = found
        history.left |= {key: size for each in found for key, size in each.wrong.items()}
        history.problems += (await broker.audit()).problems()
    await asyncio.to_thread(read_logs, harness.folder, history)
    return history


def read_logs(folder: Path, history: History) -> None:
    """The journals of producers, workers and the harness."""
    for path in sorted(folder.glob("*.journal")):
        _read_producer(path, history)
    for path in sorted(folder.glob("*.witness")):
        _read_witness(path, history)
    _read_events(folder / "events.jsonl", history)
    if history.rewinds:
        logs = (path for kind in ("*.journal", "*.witness", "events.jsonl") for path in folder.glob(kind))
        lines = (line for path in logs for line in read(path))
        history.rewound = {line["id"] for line in lines if line.get("id") and history.undone(line["at"])}
        history.rewound |= {name for name, some in history.executions.items() if any(map(history.taken_undone, some))}


def _read_events(path: Path, history: History) -> None:
    for line in read(path):
        match line["e"]:
            case "redis_clock":
                history.redis_clock.append((line["at"], line["ahead_ms"]))
            case "outage" if line["what"] in AWAY:
                AWAY[line["what"]](history).append((line["at"], line["at"]))
            case "outage_over" if line["what"] in AWAY:
                times = AWAY[line["what"]](history)
                open_at = next(at for at, (began, over) in enumerate(times) if began == over)  # some overlap
                times[open_at] = times[open_at][0], line["at"]
            case "refused":
                history.refusals.append(line["count"])
            case "fault" | "started" | "ready" | "exit":
                _read_life(line, history)
            case "notified":
                history.live.append(Notified(line["reply"], line["id"], line["told"], line["result"]))


def _read_life(line: dict[str, Any], history: History) -> None:
    match line["e"]:
        case "fault":
            history.touched[line["worker"]].add(line["kind"])
            if line["kind"] in ("stop", "point_stop"):
                history.stopped[line["worker"]].append((line["at"], line["at"]))
            elif line["kind"] == "point_stall":
                history.stopped[line["worker"]].append((line["at"], line["at"] + round(line["seconds"] * 1_000)))
            elif line["kind"] == "cont" and (stops := history.stopped[line["worker"]]):
                stops.append((stops.pop()[0], line["at"]))
        case "started":
            history.started[line["worker"]] = line["at"]
        case "ready":
            history.ready.add(line["worker"])
        case "exit":
            history.exits.append(Exit(line["worker"], line["code"], line["at"]))


def _read_producer(path: Path, history: History) -> None:
    intents: dict[str, dict[str, Any]] = {}
    sent: set[str] = set()
    for line in read(path):
        if line["e"] == "unknown" or (line["e"] == "accepted" and "existing" not in line):  # made by hand
            if line["nonce"] in sent:
                history.doubles += 1
                history.doubted.add(str(intents[line["nonce"]]["id"]))
            sent.add(line["nonce"])
        match line["e"]:
            case "intent":
                intents[line["nonce"]] = line
                history.nonces.add(line["nonce"])
            case "accepted":
                intent = intents[line["nonce"]]
                history.accepted.setdefault(
                    line["id"],
                    Accepted(line["id"], line["nonce"], intent["kind"], intent["reply"], intent["ttl"], line["at"]),
                )
            case "told_lost":
                history.told_lost.add(line["id"])
            case "cancel":
                history.cancelled.setdefault(line["id"], line["said"])
            case "got":
                history.got.append((line["id"], line["status"], line["worker"], line["attempt"]))
            case "broke":
                history.problems.append(f"{path.stem}: {line['why']}")


def _read_witness(path: Path, history: History) -> None:
    worker = path.name.removesuffix(".witness")
    started: dict[int, int] = {}
    for line in read(path):
        match line["e"]:
            case "start":
                executions = history.executions[line["id"]]
                started[line["n"]] = len(executions)
                executions.append(Execution(line["id"], worker, line["attempt"], line["at"], entry=line["entry"]))
            case "end":
                executions, where = history.executions[line["id"]], started.pop(line["n"])
                executions[where] = replace(executions[where], end_ms=line["at"])
            case "gave_way":
                history.gave_way[line["id"], worker, line["attempt"]] += 1
            case "poison" | "hang":
                history.marked[worker].add(line["e"])


async def _read_results(redis: Any, history: History, base: str) -> None:
    fields = (*SIGNATURE, "lane", "entry", "enqueued_ms", "meta", "error")
    keys = [key async for key in redis.scan_iter(f"{base}result:*", count=5_000)]
    for first in range(0, len(keys), 500):
        part = keys[first : first + 500]
        async with redis.pipeline(transaction=False) as pipe:
            for key in part:
                pipe.hmget(key, fields)
            values = await pipe.execute()
        for key, found in zip(part, values, strict=True):
            history.results[text(key).partition(":result:")[2]] = dict(zip(fields, map(text, found), strict=True))


async def _read_rest(redis: Any, history: History, base: str) -> None:
    for lane in LANES:
        pending = await redis.execute_command("XPENDING", f"{base}lane:{lane}", "workers")
        history.left[f"{base}pending:{lane}"] = pending["pending"]
    history.left[f"{base}charges"] = sum(name.startswith(b"c|") for name in await redis.hkeys(f"{base}served"))
    for name, count in (await redis.hgetall(f"{base}counts")).items():
        history.counts[text(name)] = history.counts.get(text(name), 0) + int(count)
    async for key in redis.scan_iter(f"{base}reply:*", count=5_000):
        reply = text(key).partition(":reply:")[2]
        history.replies += [(reply, text(fields.get(b"id"))) for _, fields in await redis.xrange(key)]
    for _, letter in await redis.xrange(f"{base}dead"):
        name = text(letter.get(b"_id"))
        history.letters.append((name, text(letter.get(b"_status"))))
        history.lost_with[name] = text(letter.get(b"_workers")).replace(",", " ").split()
