"""Cost check of a request before the engine sees it, so that one request cannot starve the others.

A parsed body goes in. `checked_demand` returns the demand on the engine, `for_engine` the body that the engine gets; a
body that asks for too much raises InvalidRequest. A fast path recognises the bodies of nearly all requests in a few
microseconds; all others get the full check. Pure: no access to Redis or to the engine.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.numbers import (
    DENSE_BYTES_PER_TOKEN,
    MOST_BYTES_PER_TOKEN,
    OUTPUT_LIMITS,
    USUAL_OUTPUT,
    output_limit,
    sequences,
)
from streamfleet.common.protocol import CHAT, COMPLETIONS, MESSAGES
from streamfleet.worker.cost.amounts import check_amounts, cut_output, most_output_tokens
from streamfleet.worker.cost.grammars import GUIDED, check_grammars, translate_guided
from streamfleet.worker.cost.limits import CostLimits, too_expensive
from streamfleet.worker.cost.prompts import check_prompt, readable_bytes
from streamfleet.worker.cost.shape import check_forms, check_shape
from streamfleet.worker.credit import Demand, demand_of, estimate

# These fields are the worker's own: a result is one whole response, and lane and deadline set the order in the engine.
NOT_FOR_THE_ENGINE = frozenset(
    {"stream", "stream_options", "background", "priority", "request_id", "kv_transfer_params", "ec_transfer_params"}
)
# Fields that the fast path takes. Each holds one value, and no value costs more than another.
_SCALARS = frozenset(
    {*OUTPUT_LIMITS, "model", "temperature", "top_p", "top_k", "min_p", "seed", "user", "ignore_eos", "stream"}
    | {"presence_penalty", "frequency_penalty", "repetition_penalty"}
)
_SCALAR_TYPES = frozenset({int, float, str, bool, type(None)})


def check_cost(body: Mapping[str, Any], limits: CostLimits, longest: int | None = None, endpoint: str = "") -> None:
    """Raise if a body costs more than allowed. The engine checks types, where this module can leave that to it.

    Takes time linear in the body's size.

    Args:
        body: any JSON object.
        limits: the limits to check against.
        longest: most tokens of one sequence; None if the engine does not tell.
        endpoint: OpenAI path of the request.

    Raises:
        InvalidRequest: naming the field that asks for too much.
    """
    try:
        check_shape(body, limits, endpoint)
        check_forms(body, endpoint)
        check_amounts(body, limits, longest, endpoint)
        check_prompt(body, limits, longest, endpoint)
        check_grammars(body, limits)
    except RecursionError:  # the depth limit is beyond Python's recursion limit
        raise InvalidRequest("is nested too deeply", "body", "invalid_json") from None


def checked_demand(
    body: Mapping[str, Any],
    size: int,
    limits: CostLimits,
    longest: int | None = None,
    endpoint: str = "",
    prompt_ratio: float = 1.0,
    usual_output: int = USUAL_OUTPUT,
) -> Demand:
    """Check the cost of a body, as `check_cost` does, and return its demand on the engine.

    Args:
        body: any JSON object.
        size: its bytes as JSON text.
        limits, longest, endpoint: as for `check_cost`.
        prompt_ratio, usual_output: as for `credit.estimate`.

    Raises:
        InvalidRequest: naming the field that asks for too much.
    """
    if is_plain(body, size, limits, longest, endpoint):
        limit = output_limit(body, endpoint)
        return demand_of(size, 1, usual_output if limit is None else limit, longest, prompt_ratio)
    check_cost(body, limits, longest, endpoint)
    return estimate(body, readable_bytes(body, size), longest, endpoint, prompt_ratio, usual_output)


def is_plain(body: Mapping[str, Any], size: int, limits: CostLimits, longest: int | None, endpoint: str) -> bool:
    """True if a body is one conversation or prompt in text with only ordinary options, within the limits.

    Sound, not complete: a plain body passes `check_cost` and runs as one sequence.

    Args:
        body: any JSON object.
        size: its bytes as JSON text; at least the bytes of the text in it.
        limits: the limits to check against.
        longest: most tokens of one sequence; None if the engine does not tell.
        endpoint: OpenAI path of the request.
    """
    name = "messages" if endpoint == CHAT else "prompt"
    most_bytes = limits.max_prompt_bytes or (longest * MOST_BYTES_PER_TOKEN if longest else size)
    if endpoint not in (CHAT, COMPLETIONS) or size > most_bytes or len(body) > limits.max_options:
        return False
    for key, value in body.items():
        if key == name:
            if not (type(value) is str if endpoint == COMPLETIONS else _is_talk(value, limits)):
                return False
        elif key not in _SCALARS or type(value) not in _SCALAR_TYPES:
            return False
    most_tokens = most_output_tokens(limits, longest)
    for key in OUTPUT_LIMITS:
        value = body.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= most_tokens):
            return False
    return name in body


def _is_talk(messages: Any, limits: CostLimits) -> bool:
    if type(messages) is not list or len(messages) > min(limits.max_messages, limits.max_values // 3):
        return False
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return False
        if type(message.get("role")) is not str or type(message.get("content")) is not str:
            return False
    return True


def for_engine(
    body: Mapping[str, Any], endpoint: str = "", limits: CostLimits | None = None, longest: int | None = None
) -> dict[str, Any]:
    """Return the body without the fields that the engine must not get, and with one output limit.

    Raises:
        InvalidRequest: the prompt is long and several sequences are asked for, so only the caller can choose the limit
            for each.
    """
    passed = dict(body)
    if not NOT_FOR_THE_ENGINE.isdisjoint(passed):
        passed = {name: value for name, value in body.items() if name not in NOT_FOR_THE_ENGINE}
    if any(name.startswith(GUIDED) for name in passed):
        passed = translate_guided(passed, limits, endpoint)
    if "max_tokens" in body and endpoint == CHAT and body.get("max_completion_tokens") is not None:
        passed["max_tokens"] = body["max_completion_tokens"]  # servers that know the older name alone take the same
    if endpoint == MESSAGES and limits and (asked := output_limit(body, endpoint)):
        # Its field is required, so that clients send what no model of theirs exceeds.
        passed = cut_output(passed, min(asked, most_output_tokens(limits, longest)))
    cap = _output_cap(body, endpoint, limits, longest) if limits else None
    return passed if cap is None else {**passed, "max_tokens": cap}


def pack_fields(fields: Mapping[str, Sequence[str]]) -> str:
    """Returns the fields that an engine obeys, by endpoint, as a worker publishes them: a third of their JSON's bytes.

    Args:
        fields: names that it reads; those that never reach it are left out.
    """
    obeyed = {path: " ".join(sorted({*names} - NOT_FOR_THE_ENGINE)) for path, names in fields.items()}
    return b64encode(zlib.compress(json.dumps(obeyed).encode(), 9)).decode() if obeyed else ""


def _output_cap(body: Mapping[str, Any], endpoint: str, limits: CostLimits, longest: int | None) -> int | None:
    """Output limit for each sequence if the body sets none; None if no limit has to be added.

    One that is negative or no number is none: a server that does not refuse it ignores it.
    """
    if endpoint not in (CHAT, COMPLETIONS) or output_limit(body, endpoint) is not None:
        return None
    asked = sequences(body)
    most = most_output_tokens(limits, longest, asked)
    if asked * longest <= most if longest else not limits.max_output_tokens:
        return None  # it cannot exceed the limit; or there is no limit, and only the engine knows what fits
    cap = max(1, most // asked)
    prompt_tokens = sum(len(str(body.get(name, ""))) for name in ("messages", "prompt", "tools"))
    prompt_tokens //= DENSE_BYTES_PER_TOKEN  # an estimate that is too small could cut off the end of an answer
    if longest is None or cap + prompt_tokens <= longest:
        return cap
    if asked == 1:
        return None  # the prompt leaves about as much, and the engine knows the exact number
    message = f"is not set, and {asked} sequences may together have {most} output tokens: set it to at most {cap}"
    raise too_expensive("max_tokens", message)
