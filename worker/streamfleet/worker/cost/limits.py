"""The cost limits of one request, and the error for a request beyond one.

`CostLimits.of` copies the limits that an operator may set from the worker's settings; all others are constants here,
because what they keep away holds up everybody at any setting. The other modules of this package compare a body with
them. Figures are of vLLM 0.32's request models and xgrammar 0.2 on one busy core.
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
    """Limits for one request.

    Attributes:
        max_sequences, max_output_tokens, max_prompt_bytes, allow: the settings of the same names explain them.
        max_inputs: texts to embed, score or rank; each is a sequence of the engine. OpenAI's limit for embeddings.
        max_messages: messages, parts of them, and half as many items of a conversation's ``input``. An empty message
            takes vLLM 17 microseconds, an item 0.1 ms.
        max_odd_items: of these items, those that vLLM would try as each of thirty forms in vain, for 2 to 5 ms.
        max_values: values of a body. It has room for 128 tools of 256 values; checking them takes a worker 90 ms.
        max_depth: levels of lists and objects. Schemas nested 200 deep took a compiler 3 s.
        max_options: items of any other list or object. 300,000 tools took 3 s.
        max_logprobs: log probabilities of each token: vLLM's own default.
        max_echoed_tokens: tokens of prompts whose log probabilities a completion tells (`echo`): each takes the engine
            the whole vocabulary, 0.5 MB. lm-eval sends up to 2,048.
        max_grammar_bytes: schema, regular expression, list of choices or tool. An enum takes 6 microseconds a byte.
        max_tools_bytes: all tools, where an answer must call one: they are compiled into one grammar. 128 tools of
            1.5 KB took 0.3 s, an enum of such a size 1.3 s.
        max_grammar_ms: CPU time of compiling, estimated: vLLM compiles one at a time on a small machine.
        max_pattern_size: characters of a pattern, repeats written out. `(.?){5000}x` stopped the front end for 124 s.
        max_pattern_ways: ways to read the same text. With 300, a step of the whole engine took 12 s.
    """

    max_sequences: int = 32
    max_output_tokens: int = 0
    max_prompt_bytes: int = 0
    max_inputs: int = 2_048
    max_messages: int = 2_048
    max_odd_items: int = 128
    max_values: int = 32_768
    max_depth: int = 64
    max_options: int = 1_024
    max_logprobs: int = 20
    max_echoed_tokens: int = 4_096
    max_grammar_bytes: int = 16_384
    max_tools_bytes: int = 262_144
    max_grammar_ms: int = 5_000
    max_pattern_size: int = 500
    max_pattern_ways: int = 8
    allow: Collection[str] = ()

    @classmethod
    def of(cls, settings: WorkerSettings) -> CostLimits:
        """Return the limits of a worker with these settings."""
        given = (name for name in cls.__dataclass_fields__ if name in WorkerSettings.model_fields)
        return cls(**{name: getattr(settings, name) for name in given})

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


def too_long(field: str, message: str, longest: int | None) -> InvalidRequest:
    """Returns the error for a request that the model's context cannot hold, with OpenAI's code for it."""
    text = f"{message}: the model's context is {longest} tokens, prompt and output together"
    return InvalidRequest(text, field, "context_length_exceeded")


def prompt_too_long(tokens: int, longest: int) -> InvalidRequest:
    """Returns that error for a message, in the words of Anthropic's API: clients read them to shorten the prompt."""
    return InvalidRequest(f"prompt is too long: {tokens} tokens > {longest} maximum", None, "context_length_exceeded")
