"""Work in virtual time: sessions of one turn or several, what they send, how long they think, what a turn costs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

TURNS, PROMPTS = 8, 50
AGENTS = 0.3
"""Share of sessions that are agents: longer turns, and hardly a pause between them."""
LIMIT_SPREAD = 0.5
"""Spread of the factor by which a turn's limit exceeds its output, log-normal."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: its new prompt tokens, its output, the limit that it asks for, and the pause after."""

    new: int
    output: int
    limit: int
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """A session: seconds at which it begins, its system prompt and that one's tokens, and its slack in seconds.

    `slack_s` is infinite for requests without a deadline; `tenant` is '' for none.
    """

    name: str
    at_s: float
    turns: Sequence[Turn]
    slack_s: float = math.inf
    system: int = -1
    system_tokens: int = 0
    tenant: str = ""
    lane: str = "normal"


@dataclass(eq=False, slots=True)
class Request:
    """A turn that was sent.

    Attributes:
        session, number, history: its session, its place there, and the tokens of all turns before it.
        sent_s, deadline_s: when it was sent, and when it is worthless.
        first_s, done_s: when its first token came, and when it was answered; None before.
        read, cached: prompt tokens that its runs had, and those of them that came out of a cache.
        made: output tokens of its interrupted runs.
        interrupted: number of these.
        over: true once it has ended, in time or not.
        decoded_at, kept: the engine's own notes: the step at which it ends, and the room that it has in the cache.
    """

    session: Session
    number: int
    history: int
    sent_s: float
    deadline_s: float
    first_s: float | None = None
    done_s: float | None = None
    read: int = 0
    cached: int = 0
    made: int = 0
    interrupted: int = 0
    over: bool = False
    decoded_at: float = 0.0
    kept: int = 0

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.number]

    @property
    def prompt(self) -> int:
        """Tokens of its prompt, with the output that it has already."""
        return self.session.system_tokens + self.history + self.turn.new + self.made


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of an engine: for a prompt token, for a step, and more of a step for each sequence; and its slots."""

    prompt_s: float = 0.0001
    step_s: float = 0.008
    sequence_s: float = 0.0005
    slots: int = 32

    def step(self, sequences: int) -> float:
        return self.step_s + self.sequence_s * sequences

    @property
    def full_step(self) -> float:
        return self.step(self.slots)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens that a full engine writes in a second."""
        return self.slots / self.full_step


SPEED = Speed()


def any_turn(chance: random.Random, agent: bool) -> Turn:
    """A turn as chance makes it."""
    new = min(800, max(10, int(chance.lognormvariate(4.9 if agent else 4.55, 0.7))))
    output = min(512, max(8, int(chance.lognormvariate(4.75, 0.75))))
    limit = math.ceil(output * math.exp(abs(chance.gauss(0, LIMIT_SPREAD))))
    return Turn(new, output, limit, chance.expovariate(1.0 if agent else 1 / 6))


def sessions(seed: int, workers: int, load: float, seconds: float, *, turns: int = TURNS) -> list[Session]:
    """Sessions with deadlines that keep so many workers busy, half of them in bursts.

    Args:
        seed: seed of all chances.
        workers: number of workers.
        load: 1 for what the fleet can do if each turn's new tokens alone are read.
        seconds: length of the run.
        turns: number of turns of each.
    """
    chance, usual = random.Random(seed), random.Random(1)
    some = [any_turn(usual, usual.random() < AGENTS) for _ in range(4_000)]
    cost_s = sum(turn.new * SPEED.prompt_s + turn.output / SPEED.tokens_per_s for turn in some) / len(some)
    rate = load * workers / cost_s / turns
    lengths = [chance.randint(400, 1_600) if turns > 1 else 0 for _ in range(PROMPTS)]
    weights = [1 / (number + 1) for number in range(PROMPTS)]
    made: list[Session] = []

    def add(at_s: float) -> None:
        agent, system = chance.random() < AGENTS, chance.choices(range(PROMPTS), weights)[0]
        several = [any_turn(chance, agent) for _ in range(turns)]
        slack_s = chance.choices((2.0, 10.0, 60.0), (0.2, 0.5, 0.3))[0]
        made.append(Session(f"s{len(made)}", at_s, several, slack_s, system, lengths[system]))

    at = 0.0
    while (at := at + chance.expovariate(rate / 2)) < seconds:
        add(at)
    for start in range(0, int(seconds), 20):
        for _ in range(int(rate * 10 + chance.random())):
            add(start + chance.random())
    return made


FLOOD = "flood"


def of_tenants(
    seed: int, workers: int, load: float, seconds: float, *, tenants: int, flood: float = 0.5, turns: int = TURNS
) -> list[Session]:
    """The same, of so many small tenants and one that sends this part of all."""
    chance = random.Random(f"tenants {seed}")
    small = [
        replace(session, tenant=f"t{chance.randrange(tenants)}")
        for session in sessions(seed, workers, load * (1 - flood), seconds, turns=turns)
    ]
    more = sessions(seed + 1_000, workers, load * flood, seconds, turns=turns)
    return small + [replace(session, name=f"f{session.name}", tenant=FLOOD) for session in more]
