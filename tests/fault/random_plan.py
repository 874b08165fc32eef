"""Makes a plan from a seed: the same seed and size, the same requests and the same faults in the same order."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from streamfleet.worker.failpoints import Point
from tests.fault.plan import Fault, FaultKind, Item, Kind, Plan, Setup, Step, body, of_tenants
from tests.passwords import ORDERS

LANES = ("critical", "high", "normal", "normal", "low")
CLIENTS, PLAIN = 3, 1
SCRIPTS = ("pull", "complete", "renew", "retry_later", "release", "reclaim", "enqueue")
REDIS_STEPS_MS = ("-3600000", "3600000", "-30000", "30000")
ACTIONS = ("kill", "stop", "stall")
QUEUES = ("default", "beside")
KEYS = (
    *(f"{kind}:{lane}" for kind in ("ready", "turns") for lane in ("high", "normal", "low")),
    *(f"ready:normal:{name}" for name in ("t:a", "th:a", "ht:1", "h:1", "held", "firsts", "late")),
    *("delayed", "tickets", "served", "sessions", "loads", "waiting", "watch", "workers"),
    *("lanes", "entries", "clock", "pace", "dead_parts"),
)
"""Keys to delete by hand; the workers make them anew."""
HOLES = ("", "cut", "forget")
ON_THE_LOOP = (Point.AFTER_PULL, Point.BEFORE_ENGINE, Point.RESULT_COMPUTED, Point.BEFORE_COMPLETE)
MALFORMED: tuple[dict[str, str], ...] = (
    {},
    {"body": "{not json"},
    {"body": "[1, 2]"},
    {"body": body(1), "deadline": "soon"},
    {"body": body(1), "endpoint": "/admin"},
    {"body": json.dumps({"messages": "hi"})},
    {"body": json.dumps({"messages": [], "x": "y" * 100_000})},
)


@dataclass(frozen=True)
class Size:
    """Amount of everything in a plan.

    Attributes:
        requests, seconds: how many are asked for in how long.
        kills, stops, restarts: SIGKILLs and SIGSTOPs of workers, SIGKILLs of Redis.
        others: how many of each other kind of fault.
        points: how often each failpoint is struck by each action.
        poison, hanging: requests that kill their worker, or hang its engine.
        lease_ms: the workers' lease.
        password_s: time between server and files when the password changes.
    """

    requests: int
    seconds: float
    kills: int
    stops: int
    restarts: int
    others: int
    points: int = 1
    poison: int = 4
    hanging: int = 2
    lease_ms: int = 3_000
    password_s: float = 5.0


FULL = Size(24_000, 540, kills=170, stops=55, restarts=11, others=14, points=2, poison=8, hanging=4)
SHORT = Size(2_600, 60, kills=22, stops=6, restarts=3, others=3, poison=2, hanging=1, lease_ms=2_000)
QUICK = Size(
    600, 13, kills=6, stops=2, restarts=1, others=1, points=0, poison=1, hanging=1, lease_ms=2_000, password_s=2
)


def make_plan(seed: int, size: Size, workers: int = 8) -> Plan:
    """A plan of this size."""
    chance = random.Random(seed)
    setup = Setup(workers=workers, lease_ms=size.lease_ms, queues=QUEUES, more={"CHECKPOINT_TOKENS": "16"})
    special = [Kind.POISON] * size.poison + [Kind.HANG] * size.hanging
    producers = [list(_client_steps(chance, number, size)) for number in range(CLIENTS)]
    producers += [list(_plain_steps(chance, CLIENTS + number, size)) for number in range(PLAIN)]
    for number, kind in enumerate(special):
        at_s = size.seconds * chance.uniform(0.05, 0.75)
        name = f"{kind}-{number}"
        item = Item(name, name, kind, "normal", {"body": body(20)})
        producers[number % CLIENTS].append(Step(at_s, "one", (item,)))
    timed = tuple(tuple(sorted(map(of_tenants, steps), key=lambda step: step.at_s)) for steps in producers)
    return Plan(seed, setup, timed, tuple(_faults(chance, size, setup)), size.seconds)


def _client_steps(chance: random.Random, number: int, size: Size) -> Iterator[Step]:
    names = (f"c{number}-{index}" for index in itertools.count())
    left = int(size.requests * 0.84 / CLIENTS)
    while left > 0:
        how = chance.choices(("many", "one", "again"), (50, 45, 5))[0]
        count = min(left, chance.choice((5, 20, 60)) if how == "many" else chance.randint(1, 5))
        items = tuple(_client_item(chance, next(names)) for _ in range(count))
        left -= count
        yield Step(size.seconds * chance.random(), how, items)


def _client_item(chance: random.Random, name: str) -> Item:
    kind = chance.choices((Kind.GOOD, Kind.DEADLINE, Kind.LATE, Kind.CANCELLED), (86, 9, 1, 4))[0]
    fields = {"body": body(_tokens(chance))}
    if kind is Kind.DEADLINE:
        fields["ttl"] = str(chance.choice((300, 1_000, 4_000, 30_000)))
    if kind is Kind.LATE:
        fields["ttl"] = "1"
        fields["body"] = body(600)
    after = chance.choice((0.0, 0.2, 1.0)) if kind is Kind.CANCELLED else None
    return Item(name, name, kind, chance.choice(LANES), fields, after)


def _plain_steps(chance: random.Random, number: int, size: Size) -> Iterator[Step]:
    left = int(size.requests * 0.16 / PLAIN)
    for index in range(left):
        kind = chance.choices((Kind.GOOD, Kind.NAMELESS, Kind.TWICE, Kind.MALFORMED), (50, 25, 15, 10))[0]
        nonce = f"p{number}-{index}"
        fields = dict(chance.choice(MALFORMED)) if kind is Kind.MALFORMED else {"body": body(_tokens(chance))}
        nameless = kind is Kind.NAMELESS or (kind is Kind.MALFORMED and chance.random() < 0.5)
        item = Item(nonce, "" if nameless else nonce, kind, chance.choice(LANES), fields)
        at_s = size.seconds * chance.random()
        yield Step(at_s, "xadd", (item,))
        if kind is Kind.TWICE:
            yield Step(at_s + chance.choice((0.0, 0.1, 2.0)), "xadd", (replace(item, lane=chance.choice(LANES)),))


def _tokens(chance: random.Random) -> int:
    """Hundredths of a second: mostly below one second, now and then longer than a lease."""
    if chance.random() < 0.02:
        return chance.randint(350, 500)
    return min(300, max(1, round(chance.lognormvariate(3.6, 1.0))))


def _faults(chance: random.Random, size: Size, setup: Setup) -> list[Fault]:
    lease_s = setup.lease_ms / 1000
    made = [_fault(chance, FaultKind.KILL, setup) for _ in range(size.kills)]
    made += [_fault(chance, FaultKind.STOP, setup, lease_s + chance.uniform(0.3, 1.5)) for _ in range(size.stops)]
    made += [
        _fault(chance, FaultKind.REDIS_KILL, setup, chance.choice((0.0, 0.5, lease_s + 1)))
        for _ in range(size.restarts)
    ]
    for _ in range(size.others):
        made += [
            _fault(chance, FaultKind.TERM, setup, what=chance.choice(("once", "twice"))),
            _fault(chance, FaultKind.CUT, setup, what=chance.choice(("", "", "producer"))),
            _fault(chance, FaultKind.DELAY, setup, chance.uniform(0.5, 3), chance.choice(("20", "200"))),
            _fault(chance, FaultKind.BLACK_HOLE, setup, chance.choice((0.5, lease_s + 1)), chance.choice(HOLES)),
            _fault(chance, FaultKind.SWALLOW, setup, what=chance.choice(SCRIPTS)),
            _fault(chance, FaultKind.CLOCK, setup, what=chance.choice(("-3600000", "3600000", "-5000", "86400000"))),
            _fault(chance, FaultKind.SCRIPT_FLUSH, setup),
            _fault(chance, FaultKind.LIMIT, setup, chance.uniform(1, 5), chance.choice(("1", "2", "4"))),
            _fault(chance, FaultKind.DELETE, setup, what=chance.choice(KEYS)),
            _fault(
                chance,
                FaultKind.REDIS_CLOCK,
                setup,
                chance.choice((0.5, lease_s, 2 * lease_s)),
                chance.choice((*REDIS_STEPS_MS, str(round(-0.6 * setup.lease_ms)), str(round(0.6 * setup.lease_ms)))),
            ),
        ]
    changes = itertools.cycle((order, user) for order in reversed(ORDERS) for user in ("fleet", "-"))
    for number, (order, user) in zip(range(size.others * 3 // 2), changes, strict=False):
        how = " restart" if number == 2 else ""
        made.append(_fault(chance, FaultKind.PASSWORD, setup, size.password_s, f"{order} {user}{how}"))
    for _ in range(max(1, size.others // 3)):
        made += [
            _fault(chance, FaultKind.TERM_STORM, setup, what=chance.choice(("once", "twice"))),
            _fault(chance, FaultKind.ENGINE_DEATH, setup),
            _fault(chance, FaultKind.ENGINE_HANG, setup),
            _fault(chance, FaultKind.MAXMEMORY, setup, chance.uniform(1, 3)),
            _fault(chance, FaultKind.RESTORE, setup, chance.uniform(0.5, 2)),
            # An event loop that stands still for longer than the watchdog allows: the lease thread ends the process.
            _fault(chance, FaultKind.POINT, setup, setup.watchdog_s * 3, f"{chance.choice(ON_THE_LOOP)} stall"),
        ]
    for point in list(Point) * size.points:
        made += [_at_point(chance, point, action, setup) for action in ACTIONS]
    if not size.points:
        made += [_at_point(chance, point, chance.choice(ACTIONS), setup) for point in Point]
    chance.shuffle(made)
    ended = sorted(int(size.requests * chance.uniform(0.02, 0.93)) for _ in made)
    return [replace(fault, at=at) for fault, at in zip(made, ended, strict=True)]


def _fault(chance: random.Random, kind: FaultKind, setup: Setup, seconds: float = 0.0, what: str = "") -> Fault:
    return Fault(0, kind, chance.randrange(setup.workers), round(seconds, 2), what)


def _at_point(chance: random.Random, point: Point, action: str, setup: Setup) -> Fault:
    # A stalled event loop is survived by the lease thread; a stalled lease thread makes a zombie.
    seconds = 0.0 if action == "kill" else setup.lease_ms / 1000 + chance.uniform(0.2, 1.0)
    return _fault(chance, FaultKind.POINT, setup, seconds, f"{point} {action}")
