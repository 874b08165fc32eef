"""How many more requests the engine can usefully hold: pure arithmetic on what it has and what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamfleet.worker.cost.numbers import whole
from streamfleet.worker.engine.base import Capacity

BYTES_PER_TOKEN = 4
"""Rough English text per token; only the order of magnitude matters here."""
SMOOTHING = 0.05
MOST_TOKENS = 10_000_000
"""No sequence holds more where the engine does not tell; a body may claim any number."""
TYPICAL_OUTPUT = 256
"""Output tokens of a choice that sets no limit, as a guess."""
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""How bodies call their limit of output tokens; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks of an engine: sequences that run together, and KV-cache tokens at most."""

    sequences: int = 1
    tokens: int = 512


@dataclass(frozen=True, slots=True)
class Load:
    """What all requests in the engine ask of it together."""

    requests: int = 0
    sequences: int = 0
    tokens: int = 0


class Typical:
    """A running mean of demands, so that room can be counted in requests before they are seen."""

    def __init__(self) -> None:
        self.tokens = float(Demand().tokens)
        self._seen = 0

    def saw(self, demand: Demand) -> None:
        """Take a demand into account: the first ones replace the guess that nothing was known for, later ones less."""
        self._seen += 1
        self.tokens += max(SMOOTHING, 1 / self._seen) * (demand.tokens - self.tokens)


def estimate(
    body: Mapping[str, Any], body_bytes: int, longest: int | None, typical_output: int = TYPICAL_OUTPUT
) -> Demand:
    """What a body will ask for: prompt by its size, output by its own limit or a typical one, each once per choice.

    Args:
        body: the OpenAI body.
        body_bytes: its size as JSON text.
        longest: most tokens of one sequence; None where the engine does not tell.
        typical_output: output tokens of a choice that sets no limit.
    """
    return demand_of(body_bytes, sequences(body), output_tokens(body, typical_output), longest)


def demand_of(body_bytes: int, choices: int, output: int, longest: int | None) -> Demand:
    """The same from what is known of a body: its size, its choices, and the output tokens of each."""
    tokens = body_bytes // BYTES_PER_TOKEN + choices * output
    return Demand(choices, min(tokens, choices * (longest or MOST_TOKENS)))


def sequences(body: Mapping[str, Any]) -> int:
    """Sequences that run together for a body: its choices, for each of its prompts."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)  # integers: one prompt in tokens
    return (whole(body.get("n")) or 1) * (len(prompt) if isinstance(prompt, list) and several else 1)


def output_tokens(body: Mapping[str, Any], otherwise: int) -> int:
    """Most output tokens of one choice, as the body limits them."""
    given = (whole(body.get(name)) for name in OUTPUT_LIMITS)
    return next((tokens for tokens in given if tokens is not None), otherwise)


def credit(capacity: Capacity, load: Load, *, typical_tokens: float, prefetch: int, most: int = 0) -> int:
    """Requests to pull now.

    Args:
        capacity: what the engine holds.
        load: what was given to it and is not done.
        typical_tokens: KV tokens that the next request will likely ask for.
        prefetch: requests to hold beyond the slots, so that a freed slot is never empty for a round trip.
        most: cap on requests at once; 0 for none.
    """
    room = capacity.slots + prefetch - load.sequences
    if most:
        room = min(room, most - load.requests)  # whatever is pulled runs, so the prefetch is within the cap
    if capacity.kv_tokens is not None:
        # An idle engine takes at least one, however large: it is the only way to find out.
        fitting = int((capacity.kv_tokens - load.tokens) / max(1.0, typical_tokens))
        room = min(room, max(fitting, 1 if load.requests == 0 else 0))
    return max(0, room)
