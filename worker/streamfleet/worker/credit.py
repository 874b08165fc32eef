"""How many more requests the engine can usefully hold: pure arithmetic on what it has and what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.protocol import CHAT, COMPLETIONS, ENDPOINTS, RESPONSES
from streamfleet.worker.cost.numbers import whole
from streamfleet.worker.engine.base import Capacity

BYTES_PER_TOKEN = 4
"""Rough English text per token, until `usage` tells how far it is off."""
LEAST_RATIO, MOST_RATIO = 1 / 4, 4.0
"""Bounds of that correction: 16 bytes for each token, and one byte."""
SMOOTHING = 0.05
MOST_TOKENS = 10_000_000
"""No sequence holds more where the engine does not tell; a body may claim any number."""
TYPICAL_OUTPUT = 256
"""Output tokens of a choice that sets no limit, as a guess."""
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""How bodies call their limit of output tokens; the first that is there counts."""
POOLING = ENDPOINTS - {CHAT, COMPLETIONS, RESPONSES}
"""Endpoints that generate nothing: each input is a sequence that is only read."""
_SCORED = ("query", "queries", "text_1", "text_2", "data_1", "data_2", "documents", "items")


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks of an engine.

    Attributes:
        sequences: that run together.
        tokens: of KV cache, at most.
        prompt: its prompt in tokens by its size alone, to be compared with what the engine counts.
    """

    sequences: int = 1
    tokens: int = 512
    prompt: int = field(default=0, compare=False)


@dataclass(slots=True)
class Load:
    """What several requests ask of an engine together.

    Added up as they come and go: to count a thousand of them at every pull would cost as much as the pull.
    """

    requests: int = 0
    sequences: int = 0
    tokens: int = 0

    def add(self, demand: Demand, sign: int) -> None:
        """Take one more request into account, or with a sign of -1 one less."""
        self.requests += sign
        self.sequences += sign * demand.sequences
        self.tokens += sign * demand.tokens


class Typical:
    """Running means: of demands, to count room in requests before they are seen, and of how far estimates are off.

    Attributes:
        tokens: KV tokens that the next request will likely ask for.
        prompt_ratio: prompt tokens as engines count them, to those by size.
    """

    def __init__(self) -> None:
        self.tokens = float(Demand().tokens)
        self.prompt_ratio = 1.0
        self._seen = 0
        self._estimated = self._counted = 1_000.0  # a weight, so that one odd prompt does not decide

    def saw(self, demand: Demand) -> None:
        """Take a demand into account: the first ones replace the guess that nothing was known for, later ones less."""
        self._seen += 1
        self.tokens += max(SMOOTHING, 1 / self._seen) * (demand.tokens - self.tokens)

    def counted(self, demand: Demand, prompt_tokens: int | None) -> None:
        """Take into account how many prompt tokens an engine counted; None where it does not say."""
        if not demand.prompt or not prompt_tokens:
            return
        self._estimated += SMOOTHING * (demand.prompt - self._estimated)
        self._counted += SMOOTHING * (min(prompt_tokens, MOST_TOKENS) - self._counted)
        self.prompt_ratio = min(MOST_RATIO, max(LEAST_RATIO, self._counted / self._estimated))


def estimate(
    body: Mapping[str, Any], body_bytes: int, longest: int | None, endpoint: str = CHAT, prompt_ratio: float = 1.0
) -> Demand:
    """What a body will ask for: its prompt by its size, and for each choice its own limit of output or a typical one.

    Args:
        body: the OpenAI body.
        body_bytes: its size as JSON text; of media, as much text as an engine reads them as.
        longest: most tokens of one sequence; None where the engine does not tell.
        endpoint: where it goes.
        prompt_ratio: correction of what the size says.
    """
    if endpoint not in POOLING:
        output = output_tokens(body, TYPICAL_OUTPUT)
        return demand_of(body_bytes, sequences(body), output, longest, prompt_ratio)
    count = inputs(body, endpoint)
    shared = sum(len(value) for name in _SCORED if isinstance(value := body.get(name), str))
    return demand_of(body_bytes + (count - 1) * shared, count, 0, longest, prompt_ratio)


def demand_of(body_bytes: int, choices: int, output: int, longest: int | None, prompt_ratio: float = 1.0) -> Demand:
    """The same from what is known of a body: its size, its choices, and the output tokens of each."""
    prompt = body_bytes // BYTES_PER_TOKEN
    tokens = int(prompt * prompt_ratio) + choices * output
    return Demand(choices, min(tokens, choices * (longest or MOST_TOKENS)), prompt)


def sequences(body: Mapping[str, Any]) -> int:
    """Sequences that run together for a body: its choices, for each of its prompts."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)  # integers: one prompt in tokens
    return (whole(body.get("n")) or 1) * (len(prompt) if isinstance(prompt, list) and several else 1)


def inputs(body: Mapping[str, Any], endpoint: str) -> int:
    """Sequences of a body that generates nothing: texts, prompts in tokens or conversations, or pairs to score."""
    names = ("input", "messages") if endpoint not in ("/v1/score", "/v1/rerank") else _SCORED
    return max(map(_items, (body.get(name) for name in names), names), default=1)


def _items(value: Any, name: str) -> int:
    if not isinstance(value, list) or not value or isinstance(value[0], int):  # integers: one prompt in tokens
        return 1
    one_conversation = name in ("input", "messages") and isinstance(value[0], dict)
    return 1 if one_conversation else len(value)


def output_tokens(body: Mapping[str, Any], otherwise: int) -> int:
    """Most output tokens of one choice, as the body limits them."""
    given = (whole(body.get(name)) for name in OUTPUT_LIMITS)
    return next((tokens for tokens in given if tokens is not None), otherwise)


def within(demand: Demand, slots: int) -> Demand:
    """A demand of more sequences than the engine runs together, as what runs of it together."""
    if demand.sequences <= slots:
        return demand
    return Demand(slots, demand.tokens * slots // demand.sequences, demand.prompt)


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
