"""Number of further requests that the engine can usefully hold: pure arithmetic on its capacity and its load.

Demands go in as requests are claimed, decoded and ended; a policy asks for the credit before each pull. Nothing here
reads a clock, Redis or the engine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.numbers import (
    BYTES_PER_TOKEN,
    MOST_BYTES_PER_TOKEN,
    MOST_TOKENS,
    USUAL_OUTPUT,
    output_limit,
    sequences,
)
from streamfleet.common.protocol import CHAT, COMPLETIONS, ENDPOINTS, MESSAGES, RESPONSES
from streamfleet.worker.engine.base import Capacity

LEAST_RATIO, MOST_RATIO = BYTES_PER_TOKEN / MOST_BYTES_PER_TOKEN, float(BYTES_PER_TOKEN)
"""Bounds of the correction of `BYTES_PER_TOKEN` by `usage`: 16 bytes for each token, and one byte."""
PREFETCH = 2
"""Requests held beyond the engine's slots, so that a freed slot is not empty for a round trip to Redis. A run takes far
longer than that, so more would only wait here, where no other worker can take them.
"""
SMOOTHING = 0.05
GUESS_TOKEN_S = 0.1
"""A slow engine's pace. A worker that took it for unknown would let no request with a deadline give way in its first
minutes, and an urgent one would wait until an answer ends."""
PACE_S = 1_000.0
"""Time of runs, of all slots together, over which the pace is measured: short runs weigh no more than their time."""
PACE_TOKENS, LEAST_OUTPUT = 50_000.0, 16
"""Output tokens over which the pace of writing is measured, and the fewest of a sequence that tell it: shorter runs are
mostly read or wait."""
POOLING = ENDPOINTS - {CHAT, COMPLETIONS, RESPONSES, MESSAGES}
"""Endpoints that generate nothing: each input is a sequence that is only read."""
_SCORED = ("query", "queries", "text_1", "text_2", "data_1", "data_2", "documents", "items")


@dataclass(slots=True)
class Demand:
    """Demand of one request on an engine. Not changed once it is made; `frozen` would take three times as long to make.

    Attributes:
        sequences: number of sequences that run together.
        tokens: most tokens of KV cache.
        prompt: prompt tokens, estimated from its size alone; compared with the engine's count later.
    """

    sequences: int = 1
    tokens: int = 512
    prompt: int = field(default=0, compare=False)


@dataclass(slots=True)
class Load:
    """Demand of several requests on an engine together.

    Kept as a running sum: to add up a thousand requests at every pull would cost as much as the pull.
    """

    requests: int = 0
    sequences: int = 0
    tokens: int = 0

    def add(self, demand: Demand, sign: int) -> None:
        """Add the demand of one request, or subtract it with a sign of -1."""
        self.requests += sign
        self.sequences += sign * demand.sequences
        self.tokens += sign * demand.tokens

    def change(self, before: Demand, after: Demand) -> None:
        """Change the demand of one of the requests."""
        self.sequences += after.sequences - before.sequences
        self.tokens += after.tokens - before.tokens


class Typical:
    """Running means: of demands, to count room in requests before they are known, and of the error of estimates.

    Attributes:
        tokens: expected KV tokens of the next request.
        prompt_ratio: prompt tokens as engines count them, divided by the estimate from the size.
        token_s: seconds of one output token of a sequence, with its part of reading and waiting; before the first run
            has ended, `GUESS_TOKEN_S`.
        output: output tokens of a choice that sets no limit.
    """

    def __init__(self) -> None:
        self.tokens = float(Demand().tokens)
        self.prompt_ratio = 1.0
        self.token_s = GUESS_TOKEN_S
        self.output = float(USUAL_OUTPUT)
        self._seen = self._unlimited = 0
        self._ran_s = self._made = 0.0
        self._written = self._speed = 0.0
        self._estimated = self._counted = 1_000.0  # a weight, so that one unusual prompt changes little

    def saw(self, demand: Demand) -> None:
        """Add a demand to the mean: the first ones replace the initial guess, later ones weigh less."""
        self._seen += 1
        self.tokens += max(SMOOTHING, 1 / self._seen) * (demand.tokens - self.tokens)

    def took(self, run_s: float, output_tokens: int, sequences: int) -> None:
        """Add the duration of a whole run, and the output tokens that it has generated in all its sequences."""
        if output_tokens <= 0:
            return
        each, stays = output_tokens / (sequences or 1), 1 / (1 + run_s / PACE_S)
        self._ran_s = self._ran_s * stays + run_s
        self._made = self._made * stays + each
        self.token_s = self._ran_s / self._made
        if each >= LEAST_OUTPUT:  # by tokens, not by time: who writes little cannot make all runs look slow
            self._written = self._written / (1 + each / PACE_TOKENS) + each
            self._speed += each / self._written * (each / max(1e-3, run_s) - self._speed)

    def made_in(self, run_s: float, most: int, sequences: int) -> float:
        """Output tokens that a run has likely generated until now, as if it wrote all the time; infinite if the pace of
        writing is not known.

        Args:
            run_s: seconds so far.
            most: output tokens that one of its sequences may have.
            sequences: number of its sequences.
        """
        if not self._speed and most:
            return math.inf
        return max(1, sequences) * min(most, run_s * self._speed)

    def generated(self, output_tokens: int | None, choices: int) -> None:
        """Add the output of a request that set no limit; the first ones replace the guess, later ones weigh less."""
        if output_tokens is not None:
            self._unlimited += 1
            each = min(output_tokens, MOST_TOKENS) / max(1, choices)
            self.output += max(SMOOTHING, 1 / self._unlimited) * (each - self.output)

    def run_s(self, demand: Demand) -> float:
        """Expected seconds of a whole run, if the request generates as much as it may."""
        return max(1.0, (demand.tokens - demand.prompt) / max(1, demand.sequences)) * self.token_s

    def counted(self, demand: Demand, prompt_tokens: int | None) -> None:
        """Add an engine's count of prompt tokens; None if it reports none."""
        if not demand.prompt or not prompt_tokens:
            return
        self._estimated += SMOOTHING * (demand.prompt - self._estimated)
        self._counted += SMOOTHING * (min(prompt_tokens, MOST_TOKENS) - self._counted)
        self.prompt_ratio = min(MOST_RATIO, max(LEAST_RATIO, self._counted / self._estimated))


def estimate(
    body: Mapping[str, Any],
    body_bytes: int,
    longest: int | None,
    endpoint: str = CHAT,
    prompt_ratio: float = 1.0,
    usual_output: int = USUAL_OUTPUT,
) -> Demand:
    """Expected demand of a body: its prompt by its size, and for each choice its output limit or the usual output.

    Args:
        body: the OpenAI body.
        body_bytes: its size as JSON text; a medium counts as text of as many tokens.
        longest: most tokens of one sequence; None if the engine does not tell.
        endpoint: OpenAI path of the request.
        prompt_ratio: factor that corrects the estimate from the size.
        usual_output: output tokens of a choice that sets no limit.
    """
    if endpoint not in POOLING:
        limit = output_limit(body, endpoint)
        if endpoint == MESSAGES and limit and longest and limit >= longest:
            limit = None  # its field is required: so much says only that nobody limits it
        return demand_of(body_bytes, sequences(body), usual_output if limit is None else limit, longest, prompt_ratio)
    count = inputs(body, endpoint)
    shared = sum(len(value) for name in _SCORED if isinstance(value := body.get(name), str))
    return demand_of(body_bytes + (count - 1) * shared, count, 0, longest, prompt_ratio)


def demand_of(body_bytes: int, choices: int, output: int, longest: int | None, prompt_ratio: float = 1.0) -> Demand:
    """The demand by the body's size, its number of choices, and the output tokens of each."""
    prompt = body_bytes // BYTES_PER_TOKEN
    tokens = int(prompt * prompt_ratio) + choices * output
    return Demand(choices, min(tokens, choices * (longest or MOST_TOKENS)), prompt)


def inputs(body: Mapping[str, Any], endpoint: str) -> int:
    """Number of sequences of a body that generates nothing: texts, prompts in tokens, conversations or pairs."""
    names = ("input", "messages") if endpoint not in ("/v1/score", "/v1/rerank") else _SCORED
    return max(map(_items, (body.get(name) for name in names), names), default=1)


def _items(value: Any, name: str) -> int:
    if not isinstance(value, list) or not value or isinstance(value[0], int):  # integers: one prompt in tokens
        return 1
    one_conversation = name in ("input", "messages") and isinstance(value[0], dict)
    return 1 if one_conversation else len(value)


def without_reserve(most: int, reserve_percent: int, divisor: int = 1) -> int:
    """The part of a number of slots or tokens that is left to a patient lane; at least 1.

    The reserve is so many percent of the part that the least urgent lane may use: of 40 slots, 25 percent leave 32.

    Args:
        most: number of all slots or tokens.
        reserve_percent: the reserve.
        divisor: the lane leaves the reserve divided by this number, rounded down. That is at least 1, but never the
            whole reserve, because the lane uses the rest of it before less urgent ones.
    """
    reserve = most - max(1, -(-most * 100 // (100 + reserve_percent)))
    return most - (reserve if divisor == 1 else max(0, min(reserve - 1, max(1, reserve // divisor))))


@functools.lru_cache(64)  # asked for each request, of a capacity that hardly changes
def unreserved(capacity: Capacity, reserve_percent: int, divisor: int = 1) -> Capacity:
    """The part of a capacity that a patient lane may fill; see `without_reserve`."""
    tokens = capacity.kv_tokens
    return Capacity(
        without_reserve(capacity.slots, reserve_percent, divisor),
        None if tokens is None else without_reserve(tokens, reserve_percent, divisor),
        capacity.max_model_len,
    )


def missing_for(capacity: Capacity, load: Load, demand: Demand, *, most: int = 0) -> Load:
    """Returns the part of a demand beyond the room that a load leaves; 0 or less of each kind of which there is enough.

    Args:
        capacity: most that the engine holds.
        load: work given to it that is not done.
        demand: the demand.
        most: cap on requests at once; 0 for none.
    """
    return Load(
        load.requests + 1 - most if most else 0,
        load.sequences + demand.sequences - capacity.slots,
        load.tokens + demand.tokens - capacity.kv_tokens if capacity.kv_tokens is not None else 0,
    )


def within(demand: Demand, slots: int) -> Demand:
    """A demand, reduced to the sequences that the engine runs together."""
    if demand.sequences <= slots:
        return demand
    return Demand(slots, demand.tokens * slots // demand.sequences, demand.prompt)


def credit(capacity: Capacity, load: Load, *, typical_tokens: float, prefetch: int, most: int = 0) -> int:
    """Number of requests to pull now.

    Args:
        capacity: most that the engine holds.
        load: work given to it that is not done.
        typical_tokens: expected KV tokens of the next request.
        prefetch: requests to hold beyond the slots, so that a freed slot is never empty for a round trip.
        most: cap on requests at once; 0 for none.
    """
    room = capacity.slots + prefetch - load.sequences
    if most:
        room = min(room, most - load.requests)  # all pulled requests run, so the prefetch is within the cap
    if capacity.kv_tokens is not None:
        # An idle engine takes at least one request, however large: only a run shows if it fits.
        fitting = int((capacity.kv_tokens - load.tokens) / max(1.0, typical_tokens))
        room = min(room, max(fitting, 1 if load.requests == 0 else 0))
    return max(0, room)
