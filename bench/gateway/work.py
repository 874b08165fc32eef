"""Requests that both ways get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.engine.work import PROMPT_WORDS, Body, bodies
from streamfleet.cli.demo.model import MODEL_NAME

SHORT_WORDS = (8, 16)


@dataclass(frozen=True)
class Work:
    """Requests of a round.

    Attributes:
        batch, batch_tokens: number of requests sent all at once, and the length of their answers.
        singles, single_tokens: number of requests sent one after the other, whole and then streamed, and their length.
        warm_up: number of requests before the first round.
        model: model that they name.
    """

    batch: int
    batch_tokens: int
    singles: int
    single_tokens: int
    warm_up: int = 8
    model: str = MODEL_NAME

    def warming(self) -> list[Body]:
        """Requests before the first round."""
        return self._of(bodies(self.warm_up, self.single_tokens, 0, SHORT_WORDS))

    def together(self) -> list[Body]:
        """Requests sent all at once."""
        return self._of(bodies(self.batch, self.batch_tokens, 1, PROMPT_WORDS))

    def alone(self) -> list[Body]:
        """Requests sent one after the other."""
        return self._of(bodies(self.singles, self.single_tokens, 2, SHORT_WORDS))

    def _of(self, some: Sequence[Body]) -> list[Body]:
        return [{**body, "model": self.model} for body in some]
