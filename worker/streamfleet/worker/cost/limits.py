"""The cost limits of one request, and the error for a request beyond one.

`CostLimits.of` copies the limits from the worker's settings; the other modules of this package compare a body with
them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.settings import WorkerSettings


class Feature(StrEnum):
    """Feature that a request may use only if the worker's settings allow it."""

    BEAM_SEARCH = "beam_search"
    CHAT_TEMPLATES = "chat_templates"
    EMBEDS = "embeds"
    GRAMMARS = "grammars"
    MEDIA_URLS = "media_urls"
    PROCESSOR_KWARGS = "processor_kwargs"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True)
class CostLimits:
    """Limits for one request; the settings of the same names explain each."""

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
        """Return the limits in a worker's settings."""
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})

    def require(self, feature: Feature, field: str, why: str) -> None:
        """Raise if a field needs a feature that is not allowed.

        Raises:
            InvalidRequest: names the field and the setting that would allow it.
        """
        if feature not in self.allow:
            raise InvalidRequest(f"{why}; workers allow it with STREAMFLEET_ALLOW={feature}", field, "not_allowed")


def too_expensive(field: str, message: str) -> InvalidRequest:
    """Returns the error for a request beyond a limit; ``message`` tells by how much."""
    return InvalidRequest(message, field, "too_expensive")
