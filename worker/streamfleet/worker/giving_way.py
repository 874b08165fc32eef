"""Choice of the running requests that give way to an urgent one that finds no room in the engine. Pure.

`choose` gets what runs and what is missing, and returns those that cost least to interrupt; `can_give` tells if there
are enough. What is interrupted goes back to the queue at its old rank, and its attempt does not count. docs/order.md
tells operators the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from streamfleet.common.protocol import LANES, Lane
from streamfleet.worker.credit import Demand, Load

URGENT: frozenset[Lane] = frozenset(LANES[:2])
"""Lanes that others give way to, unless they are patient themselves."""
MOST_INTERRUPTIONS = 3
RUNS_BEFORE_DEADLINE = 2.0
"""A request is interrupted only if its whole run would fit so often before its deadline: it may have to wait again."""
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Running:
    """A running request of a patient lane.

    Attributes:
        lane: its lane.
        demand: its demand on the engine, which is free once it has given way.
        interrupted: how often it gave way before.
        run_s: expected seconds of its whole run.
        lost_s: seconds of its run that would be lost with it.
        slack_s: seconds until its deadline; infinite for none.
    """

    lane: Lane
    demand: Demand
    interrupted: int
    run_s: float
    lost_s: float
    slack_s: float


def choose(running: Mapping[K, Running], missing: Load) -> Sequence[K]:
    """Returns the requests that give way, cheapest first; none if even all that may give way would not be enough.

    The least urgent lane comes first, then what was interrupted least often, then most slack, then least work that
    would be lost.

    Args:
        running: patient requests that run, without those that came by the share of their lane.
        missing: what the urgent request needs beyond what is free; 0 or less of a kind is enough of it.
    """
    chosen: list[K] = []
    left = Load(missing.requests, missing.sequences, missing.tokens)
    for key, each in sorted(running.items(), key=lambda item: _cost(item[1])):
        if _enough(left):
            break
        if _protected(each) or not _helps(each.demand, left):
            continue
        left.add(each.demand, -1)
        chosen.append(key)
    return chosen if _enough(left) else ()


def can_give(missing: Load, running: Iterable[Running]) -> bool:
    """True if `choose` would return some. Looks at few of many requests, because a full engine asks at each pull."""
    left = Load(missing.requests, missing.sequences, missing.tokens)
    if _enough(left):
        return False
    for each in running:
        if not _protected(each):
            left.add(each.demand, -1)
            if _enough(left):
                return True
    return False


def _protected(each: Running) -> bool:
    if each.interrupted >= MOST_INTERRUPTIONS:
        return True
    return each.slack_s < math.inf and each.slack_s < RUNS_BEFORE_DEADLINE * each.run_s


def _cost(each: Running) -> tuple[int, int, float, float]:
    # Slack in octaves: among requests that have about the same, the work that would be lost decides.
    slack = math.log2(max(each.slack_s, 1.0)) if each.slack_s < math.inf else math.inf
    octave = slack if slack == math.inf else float(math.floor(slack))
    return -each.lane.rank, each.interrupted, -octave, each.lost_s


def _helps(demand: Demand, left: Load) -> bool:
    return left.requests > 0 or (left.sequences > 0 < demand.sequences) or (left.tokens > 0 < demand.tokens)


def _enough(left: Load) -> bool:
    return left.requests <= 0 and left.sequences <= 0 and left.tokens <= 0
