"""Steps of a history, and their frequencies.

A history is a list of steps, each a verb and three numbers whose meaning depends on what there is to act on; so any
step may be left out of a failing history, and what remains is still a history.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

VERBS = {
    "add": 20,
    "enqueue": 6,
    "act": 30,
    "settle": 8,
    "complete": 12,
    "retry": 10,
    "release": 3,
    "renew": 4,
    "late": 8,
    "silence": 5,
    "crash": 3,
    "lose_answer": 3,
    "lose_read": 2,
    "time_out": 6,
    "fill": 3,
    "stage": 3,
    "reclaim": 6,
    "promote": 5,
    "expire": 4,
    "cancel": 3,
    "clock": 6,
    "requeue": 1,
    "delete": 1,
    "forget": 1,
}

# Every other history is of a fleet with little to do, where what matters is who is woken.
IDLE = {
    "add": 12,
    "enqueue": 2,
    "act": 16,
    "settle": 18,
    "complete": 6,
    "release": 5,
    "late": 2,
    "crash": 8,
    "lose_read": 3,
    "time_out": 6,
    "fill": 4,
    "stage": 2,
    "reclaim": 5,
    "promote": 12,
    "expire": 1,
    "clock": 3,
    "cancel": 1,
}
ON_A_FULL_SERVER = {"act", "complete", "retry", "release", "renew", "reclaim", "promote", "expire", "cancel", "stage"}


@dataclass(frozen=True)
class Step:
    verb: str
    x: int
    y: int
    z: int


def make_history(seed: int, length: int) -> list[Step]:
    """A history from a seed."""
    numbers = random.Random(seed)
    weights = VERBS | IDLE if seed % 2 else VERBS
    verbs = numbers.choices(list(weights), list(weights.values()), k=length)
    steps = [Step(verb, *(numbers.randrange(2**16) for _ in range(3))) for verb in verbs]
    return _with_limits(steps, numbers) if seed % 4 == 3 else steps


def _with_limits(steps: list[Step], numbers: random.Random) -> list[Step]:
    """The history of a fleet whose tenants have limits, and which rests now and then; half of them know homes."""
    workers, homes = steps[0].x % 6, numbers.randrange(2)
    steps = [replace(steps[0], x=workers + 6 * (7 if homes else 1)), *steps[1:]]
    for verb in numbers.choices(["limit", "rest"], k=len(steps) // 5):
        steps.insert(numbers.randrange(1, len(steps) + 1), Step(verb, *(numbers.randrange(2**16) for _ in range(3))))
    return steps
