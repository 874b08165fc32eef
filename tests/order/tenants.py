"""The order, part 2: what a request is charged, what is settled, and the lengths that tenants' requests have had.

order/charges.lua and order/tenant_lengths.lua do the same, number by number. How much output the time in an engine is
worth (`held`) says the worker, which learns how long runs of so many tokens take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

USUAL_OUTPUT, USUAL_RATE = 256, 0.25
MOST_SAMPLES = 32
NO_LIMIT = 10**9


def half_octave(tokens: float) -> int:
    return math.floor(2 * math.log(tokens + 1) / math.log(2))


def limit_class(limit: int | None) -> str:
    """Class of the asked limit of output, of which lengths are learnt."""
    return "none" if limit is None else str(half_octave(limit))


@dataclass
class Charge:
    """Tokens that a request is charged: for its run, and for what earlier runs have generated."""

    prompt: int = 0
    output: int = 0
    weight: float = 1
    kept: int = 0
    runs: bool = False
    counted: bool = False
    """It counts against its tenant's limit."""

    @property
    def run(self) -> int:
        return self.prompt + self.output


@dataclass
class Tenant:
    """A tenant's record in all lanes.

    Attributes:
        requests: number of its charged runs that have ended their requests.
        charged: tokens of its runs that have ended.
        tokens: of its requests that have ended.
        lost: of its runs that were lost.
        credited: epoch ms at which it last started below the level of a lane.
        usual: cost of its last requests without a tenant, which are charged before their bodies are read.
        lengths: class of limit to number of samples, mean output, tokens of a prompt for each byte of body, and True if
            one had more output than its limit.
    """

    weight: float = 1
    limit: int = NO_LIMIT
    running: int = 0
    requests: int = 0
    charged: float = 0
    tokens: float = 0
    lost: float = 0
    credited: int = 0
    usual: float = USUAL_OUTPUT
    lengths: dict[str, tuple[int, float, float, bool]] = field(default_factory=dict)

    @property
    def may_run(self) -> bool:
        return self.running < self.limit  # rule: limit_of_a_tenant

    @property
    def has_history(self) -> bool:
        return self.requests > 0 or self.charged > 0  # rule: history_is_a_run_that_ended

    def estimate(self, size: int, limit: int | None) -> tuple[int, int]:
        """Returns the tokens of a prompt and of an output that a request is likely to use, at least 1 together."""
        unknown = (0, USUAL_OUTPUT, USUAL_RATE, False)  # rule: lengths_before_any_is_known
        _, mean, rate, exceeded = self.lengths.get(limit_class(limit), unknown)  # rule: lengths_by_class_of_limit
        prompt = math.floor(size * rate + 0.5)  # rule: charged_at_the_pick
        bound = mean if limit is None or exceeded else limit  # rule: limit_that_was_exceeded
        output = math.floor(min(bound, mean) + 0.5)
        return prompt, max(1, prompt + output) - prompt

    def learn(self, size: int, limit: int | None, prompt: int, output: int) -> None:
        """A request has succeeded, and its answer tells its tokens."""
        n, mean, rate, exceeded = self.lengths.get(limit_class(limit), (0, 0.0, 0.0, False))
        n = min(n + 1, MOST_SAMPLES)
        mean += (output - mean) / n
        rate += (prompt / max(1, size) - rate) / n
        exceeded = exceeded or (limit is not None and output > limit)
        learnt = n, float(f"{mean:.6g}"), float(f"{rate:.6g}"), exceeded
        self.lengths[limit_class(limit)] = learnt  # rule: lengths_are_learnt


@dataclass(frozen=True)
class Use:
    """A run's use, as far as it is known when the run ends."""

    prompt: int | None = None  # tokens, if they were counted
    output: int = 0  # tokens that were counted, or else seen
    counted: bool = False  # the engine has counted all of its time
    resumed: int = 0  # tokens of earlier runs in its output
    succeeded: bool = False  # it has an answer
    reached: bool = True  # it reached the engine
    held: int | None = None  # output tokens that its time in the engine is worth; None: as many as expected


def cost_of(charge: Charge, use: Use) -> int:
    """Tokens that a run which has ended is charged, in place of what it was charged at the pick."""
    if use.counted and use.prompt is not None:
        return use.prompt + use.output - min(charge.kept, use.resumed)  # rule: settled_by_what_was_used
    if not use.reached:
        return charge.run if use.succeeded else 0  # rule: nothing_if_it_did_not_reach_the_engine
    held = charge.output if use.held is None else use.held
    prompt = charge.prompt if use.prompt is None else use.prompt
    return prompt + max(use.output, held)  # rule: uncounted_is_charged_by_time


def stays_of(charge: Charge, *, generated: int | None = None, failed: bool = False, held: int | None = None) -> int:
    """Tokens that stay charged when a run ends before its request does."""
    if failed:
        return charge.prompt + (charge.output if held is None else held)  # rule: failed_attempt_is_charged
    return generated or 0  # rule: generated_stays_charged
