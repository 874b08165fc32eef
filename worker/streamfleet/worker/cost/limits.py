"""The limits, and how a wish beyond one is refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.settings import WorkerSettings


class Feature(StrEnum):
    """What a request may ask for only where the worker's settings allow it."""

    BEAM_SEARCH = "beam_search"
    CHAT_TEMPLATES = "chat_templates"
    EMBEDS = "embeds"
    GRAMMARS = "grammars"
    MEDIA_URLS = "media_urls"
    PROCESSOR_KWARGS = "processor_kwargs"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True)
class CostLimits:
    """What one request may ask for at most; the settings of the same names explain each."""

    max_sequences: int = 16
    max_output_tokens: int = 0
    max_prompt_bytes: int = 0
    max_inputs: int = 2_048
    max_messages: int = 1_024
    max_values: int = 10_000
    max_depth: int = 64
    max_options: int = 1_024
    max_logprobs: int = 20
    max_grammar_bytes: int = 16_384
    max_grammar_ms: int = 5_000
    max_pattern_size: int = 500
    max_pattern_ways: int = 8
    allow: Collection[str] = ()

    @classmethod
    def of(cls, settings: WorkerSettings) -> CostLimits:
        """The limits that a worker was set up with."""
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})

    def require(self, feature: Feature, field: str, why: str) -> None:
        """Refuse a field whose feature is not allowed.

        Raises:
            InvalidRequest: naming the field, and what an operator would have to allow.
        """
        if feature not in self.allow:
            raise InvalidRequest(f"{why}; workers allow it with STREAMFLEET_ALLOW={feature}", field, "not_allowed")


def too_expensive(field: str, message: str) -> InvalidRequest:
    """The refusal of a wish that is larger than its limit; ``message`` says by how much."""
    return InvalidRequest(message, field, "too_expensive")
