"""Requests of producers during a rollout: every kind, in all lanes, at a steady rate. Pure."""

from __future__ import annotations

from tests.fault.plan import Item, Kind, Step, body, of_tenants

BUSY = "busy-"
BUSY_ATTEMPTS = 2
BUSY_MS = 900
"""Requests with such an id are turned away by the engine on their first attempts, to be tried again later."""

LANES = ("critical", "high", "normal", "low")
GAP_S = 0.04
LONG_TOKENS = 180
PATTERN = (
    ("good", 10),
    ("deadline", 25),
    ("good", 60),
    ("busy", 5),
    ("twice", 20),
    ("good", 30),
    ("cancelled", 80),
    ("malformed", 0),
    ("again", 15),
    ("nameless", 20),
    ("good", 40),
    ("late", 100),
    ("long", LONG_TOKENS),
)
MALFORMED: tuple[dict[str, str], ...] = ({}, {"body": "{not json"}, {"body": body(1), "deadline": "soon"})


def steps(name: str, seconds: float) -> list[Step]:
    """Returns the steps of one producer.

    Args:
        name: begins all ids, and tells its requests from those of others.
        seconds: for how long.
    """
    made: list[Step] = []
    for number in range(round(seconds / GAP_S)):
        word, tokens = PATTERN[number % len(PATTERN)]
        lane = LANES[number % len(LANES)]
        made += _steps(word, f"{name}-{number}", lane, tokens, number * GAP_S)
    return sorted(map(of_tenants, made), key=lambda step: step.at_s)


def _steps(word: str, name: str, lane: str, tokens: int, at_s: float) -> list[Step]:
    fields = {"body": body(tokens)}
    busy = f"{BUSY}{name}"
    wrong = MALFORMED[len(name) % len(MALFORMED)]
    kinds = {
        "deadline": ("many", Item(name, name, Kind.DEADLINE, lane, {**fields, "ttl": "1500"})),
        "late": ("one", Item(name, name, Kind.LATE, lane, {**fields, "ttl": "1"})),
        "busy": ("one", Item(busy, busy, Kind.GOOD, lane, fields)),
        "cancelled": ("one", Item(name, name, Kind.CANCELLED, lane, fields, 0.1)),
        "again": ("again", Item(name, name, Kind.GOOD, lane, fields)),
        "twice": ("xadd", Item(name, name, Kind.TWICE, lane, fields)),
        "nameless": ("xadd", Item(name, "", Kind.NAMELESS, lane, fields)),
        "malformed": ("xadd", Item(name, name, Kind.MALFORMED, lane, wrong)),
    }
    how, item = kinds.get(word, ("many", Item(name, name, Kind.GOOD, lane, fields)))
    made = [Step(at_s, how, (item,))]
    return [*made, Step(at_s + 0.3, how, (item,))] if word == "twice" else made
