"""Sessions of several turns, in virtual time: what they send, how long they think, and what a turn costs an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

TURNS, PROMPTS = 8, 50
AGENTS = 0.3
"""Share of sessions that are agents: longer turns, and hardly a pause between them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: its new prompt tokens, its output tokens, and seconds until the next one."""

    new: int
    output: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """A session: seconds at which it begins, its system prompt and that one's tokens, and its slack in seconds.

    `shared`: name of a session that many requests belong to, of which none continues another. `tenant`: whose it is,
    or ''.
    """

    name: str
    at_s: float
    system: int
    system_tokens: int
    slack_s: float
    turns: Sequence[Turn]
    shared: bool = False
    tenant: str = ""


@dataclass(eq=False, slots=True)
class Request:
    """A turn that was sent.

    Attributes:
        session, number, history: its session, its place there, and the tokens of all turns before it.
        sent_s, deadline_s: when it was sent, and when it is worthless.
        first_s: when its first token came; None before.
        cached: prompt tokens that came out of a cache.
        over: true once it has ended, in time or not.
    """

    session: Session
    number: int
    history: int
    sent_s: float
    deadline_s: float
    first_s: float | None = None
    cached: int = 0
    over: bool = False
    decoded_at: float = field(default=0.0)
    kept: int = field(default=0)

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.number]

    @property
    def prompt(self) -> int:
        """Tokens of its prompt."""
        return self.session.system_tokens + self.history + self.turn.new


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


def any_turn(chance: random.Random, agent: bool) -> Turn:
    """A turn as chance makes it."""
    new = min(800, max(10, int(chance.lognormvariate(4.9 if agent else 4.55, 0.7))))
    output = min(512, max(8, int(chance.lognormvariate(4.75, 0.75))))
    return Turn(new, output, chance.expovariate(1.0 if agent else 1 / 6))


def make(seed: int, workers: int, load: float, speed: Speed, seconds: float, *, hot: bool = False) -> list[Session]:
    """Sessions that keep so many workers busy; load 1 is what they can do if each turn's new tokens alone are read.

    Args:
        seed: seed of all chances.
        workers: number of workers.
        load: 1 for what the fleet can do.
        speed: speed of each engine.
        seconds: length of the run.
        hot: half of all requests belong to one session.
    """
    chance, usual = random.Random(seed), random.Random(1)
    turns = [any_turn(usual, usual.random() < AGENTS) for _ in range(4_000)]
    cost_s = sum(turn.new * speed.prompt_s + turn.output * speed.full_step / speed.slots for turn in turns) / len(turns)
    rate = load * workers / cost_s
    lengths = [chance.randint(400, 1_600) for _ in range(PROMPTS)]
    weights = [1 / (number + 1) for number in range(PROMPTS)]
    made: list[Session] = []

    def slack() -> float:
        return chance.choices((2.0, 10.0, 60.0), (0.2, 0.5, 0.3))[0]

    def add(at_s: float) -> None:
        agent, system = chance.random() < AGENTS, chance.choices(range(PROMPTS), weights)[0]
        several = [any_turn(chance, agent) for _ in range(TURNS)]
        made.append(Session(f"s{len(made)}", at_s, system, lengths[system], slack(), several))

    sessions = rate / TURNS / (2 if hot else 1)
    at = 0.0
    while (at := at + chance.expovariate(sessions / 2)) < seconds:
        add(at)
    for start in range(0, int(seconds), 20):  # the other half comes in bursts
        for _ in range(int(sessions * 10 + chance.random())):
            add(start + chance.random())
    at = 0.0
    while hot and (at := at + chance.expovariate(rate / 2)) < seconds:
        made.append(Session("hot", at, PROMPTS, 3_000, slack(), [any_turn(chance, False)], shared=True))
    return made


FLOOD = "flood"


def make_of_tenants(
    seed: int, workers: int, load: float, speed: Speed, seconds: float, tenants: int, *, flood: bool
) -> list[Session]:
    """Sessions of so many tenants, all alike; with `flood`, one of them sends half of all."""
    chance = random.Random(f"tenants {seed}")
    made = [
        replace(session, tenant=f"t{chance.randrange(tenants - flood)}")
        for session in make(seed, workers, load * (0.5 if flood else 1), speed, seconds)
    ]
    more = make(seed + 1_000, workers, load * 0.5, speed, seconds) if flood else []
    return made + [replace(session, name=f"f{session.name}", tenant=FLOOD) for session in more]
