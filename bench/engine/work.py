"""Requests of known work: chat prompts of mixed length, answers of fixed length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from streamfleet.cli.demo.model import MODEL_NAME

Body = dict[str, Any]
WORDS = (
    *("river", "stone", "winter", "garden", "lamp", "market", "bridge", "paper", "engine", "silver", "morning"),
    *("harbour", "window", "copper", "village", "letter", "forest", "thunder", "blanket", "orchard", "signal"),
)
PROMPT_WORDS = (8, 16, 32, 64, 128)


def bodies(
    count: int, output_tokens: int | Sequence[int], seed: int, prompt_words: Sequence[int] = PROMPT_WORDS
) -> list[Body]:
    """Chat requests, the same for the same seed.

    Args:
        count: number of requests.
        output_tokens: length of each answer; of several, each request draws one.
        seed: seed of the draws.
        prompt_words: lengths of prompts; each request draws one.
    """
    chance = random.Random(seed)
    lengths = [output_tokens] if isinstance(output_tokens, int) else list(output_tokens)
    return [_body(_prompt(chance, chance.choice(prompt_words)), chance.choice(lengths)) for _ in range(count)]


def _prompt(chance: random.Random, words: int) -> str:
    return "Tell a story with these words: " + " ".join(chance.choice(WORDS) for _ in range(words))


def _body(prompt: str, tokens: int) -> Body:
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,  # otherwise answers end early, and contenders do different work
    }
