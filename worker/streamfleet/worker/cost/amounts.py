"""Checks the numbers in a body: sequences, output tokens, inputs, log probabilities, lists of options.

A parsed body and the limits go in; a number that is too large raises InvalidRequest. Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from streamfleet.common.numbers import LIMIT_FIELDS, OUTPUT_LIMITS, number, sequences, shown
from streamfleet.common.protocol import MESSAGES
from streamfleet.worker.cost.limits import CostLimits, Feature, too_expensive, too_long
from streamfleet.worker.cost.shape import is_tokens

UNKNOWN_CONTEXT = 32_768
"""Most output tokens of a request where neither a setting nor the engine says how many."""
_CHOICES = ("n", "best_of")
# To the engine, each of their items is a sequence of its own, one after the other.
INPUTS = ("input", "documents", "text_1", "text_2", "queries", "data_1", "data_2", "items")
_LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
# These fields have limits of their own, or are part of the prompt. All others are options.
_NO_OPTIONS = frozenset(
    {*INPUTS, "messages", "prompt", "tokens", "response_format", "structured_outputs", "text", "guided_json"}
    | {"guided_choice", "previous_input_messages"}
)

# vLLM's V2 model runner has a row of fixed width for each of these. It raises where it writes beyond one, and that ends
# the engine with all that runs in it. No setting allows more.
MOST_ITEMS = {
    "stop_token_ids": 128,
    "logprob_token_ids": 128,
    "logit_bias": 1_024,
    "allowed_token_ids": 1_024,
    "bad_words": 64,  # each may become two of 128: at the beginning of a text, and behind a space
}
_OWN_STOPS = 16
"""Places among the stop tokens for the model's own, which the engine adds where `min_tokens` holds all of them back."""
MOST_BAD_WORD_BYTES = 512
"""Two forms of each word have at most 1,024 tokens: a token has at least one byte of a word, or begins it."""
_LEAST_BUDGET = 1_024
"""Fewest tokens of thinking that vLLM takes, as does Anthropic."""


def most_output_tokens(limits: CostLimits, longest: int | None, asked: int = 1) -> int:
    """Output tokens of a request's ``asked`` sequences together: the configured limit, or what each can hold."""
    return limits.max_output_tokens or asked * (longest or UNKNOWN_CONTEXT)


def check_amounts(body: Mapping[str, Any], limits: CostLimits, longest: int | None, endpoint: str = "") -> None:
    """Raise if a number or a list is beyond its limit; the engine checks types.

    Raises:
        InvalidRequest: names the field that asks for too much, or for something that is not allowed.
    """
    _check_sequences(body, limits)
    _check_output(body, limits, longest, endpoint)
    for name in INPUTS:
        value = body.get(name)
        if isinstance(value, list) and len(value) > limits.max_inputs and not is_tokens(value):
            message = f"has {len(value)} items; at most {limits.max_inputs} are allowed: send several requests"
            raise too_expensive(name, message)
    _check_logprobs(body, limits)
    for name, value in body.items():
        if isinstance(value, (list, dict)) and name not in _NO_OPTIONS:
            most = min(limits.max_options, MOST_ITEMS.get(name, limits.max_options))
            if len(value) > most:
                raise too_expensive(name[:80], f"has {len(value)} items; at most {most} are allowed")
    _check_rows(body)


def _check_rows(body: Mapping[str, Any]) -> None:
    """Raise if what the engine makes of a list does not fit into the row that it has for it; see `MOST_ITEMS`."""
    stops, most_stops = body.get("stop_token_ids"), MOST_ITEMS["stop_token_ids"] - _OWN_STOPS
    if isinstance(stops, list) and len(stops) > most_stops and body.get("min_tokens"):
        message = f"has {len(stops)} items; at most {most_stops} are allowed with min_tokens"
        raise too_expensive("stop_token_ids", message)
    words = body.get("bad_words")
    if isinstance(words, list) and sum(map(_token_bytes, words)) > MOST_BAD_WORD_BYTES:
        message = f"is too long: at most {MOST_BAD_WORD_BYTES} bytes are allowed, with one more for each word"
        raise too_expensive("bad_words", message)


def _token_bytes(word: Any) -> int:
    """Most tokens of a word: its bytes, also where a tokenizer takes its characters apart, and one before it."""
    if not isinstance(word, str):
        return 0  # the engine refuses it
    if len(word) > MOST_BAD_WORD_BYTES:
        return len(word)
    apart = unicodedata.normalize("NFKD", word)
    return max(len(text.encode("utf-8", "replace")) for text in (word, apart)) + 1


def _check_sequences(body: Mapping[str, Any], limits: CostLimits) -> None:
    for name in _CHOICES:
        value = number(body.get(name))
        if value is not None and value > limits.max_sequences:
            raise too_expensive(name, f"is {shown(body[name])}; at most {limits.max_sequences} are allowed")
    if (asked := sequences(body)) > limits.max_sequences:
        message = f"asks for {asked} sequences; at most {limits.max_sequences} are allowed: send several requests"
        raise too_expensive("prompt", message)
    if body.get("use_beam_search"):
        limits.require(Feature.BEAM_SEARCH, "use_beam_search", "starts every beam anew at each token")


def _check_output(body: Mapping[str, Any], limits: CostLimits, longest: int | None, endpoint: str) -> None:
    if endpoint == MESSAGES:
        return  # `for_engine` cuts it
    asked = sequences(body)
    most = most_output_tokens(limits, longest, asked)
    obeyed = [name for name in LIMIT_FIELDS.get(endpoint, ()) if body.get(name) is not None][:1]
    for name in (*(obeyed or OUTPUT_LIMITS), "min_tokens"):
        value = number(body.get(name))
        if (
            value is not None and longest and value > longest
        ):  # vLLM refuses it, and cuts what the prompt leaves no room for
            raise too_long(name, f"is {shown(body[name])}; at most {longest} are allowed", longest)
        if value is not None and value * asked > most:
            total = f"{shown(body[name])} for each of {asked} sequences" if asked > 1 else shown(body[name])
            raise too_expensive(name, f"is {total}; at most {most} output tokens are allowed in one request")


def _check_logprobs(body: Mapping[str, Any], limits: CostLimits) -> None:
    for name in _LOGPROBS:
        value = number(body.get(name))
        if value is not None and (value > limits.max_logprobs or value < 0):
            whole = "the whole vocabulary for each token" if value == -1 else shown(body[name])
            raise too_expensive(name, f"is {whole}; at most {limits.max_logprobs} are allowed")
    why = "asks for log probabilities of the prompt, which take the whole vocabulary for each of its tokens"
    if body.get("prompt_logprobs") is not None:
        limits.require(Feature.PROMPT_LOGPROBS, "prompt_logprobs", why)
        return
    echoed = body.get("echo") and (body.get("logprobs") is not None or body.get("top_logprobs"))
    size = _echoed_tokens(body.get("prompt")) if echoed else 0
    if size > limits.max_echoed_tokens:
        why = f"{why}; at most about {limits.max_echoed_tokens} are allowed, and the prompt has {size}"
        limits.require(Feature.PROMPT_LOGPROBS, "echo", why)


def _echoed_tokens(prompt: Any) -> int:
    """Tokens of all prompts; of a text, as many as it has where it is dense."""
    if isinstance(prompt, str):
        return len(prompt.encode("utf-8", "replace")) // 2 + 1
    if not isinstance(prompt, list):
        return 0  # the engine refuses it
    return len(prompt) if is_tokens(prompt) else sum(map(_echoed_tokens, prompt))


def without_budget(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body with thinking as long as the model likes: an engine refuses a budget that it cannot keep."""
    thinking = body.get("thinking")
    limited = isinstance(thinking, dict) and thinking.get("type") == "enabled"
    return {**body, "thinking": {"type": "adaptive"}} if limited else dict(body)


def cut_output(body: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Returns the body of a message with so many `max_tokens`, and a budget of thinking that is less than they are."""
    fitted = {**body, "max_tokens": most}
    thinking = body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(thinking, dict) and isinstance(budget, int) and budget >= most:
        if most <= _LEAST_BUDGET:
            return without_budget(fitted)
        fitted["thinking"] = {**thinking, "budget_tokens": most - 1}
    return fitted
