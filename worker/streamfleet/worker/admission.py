"""What a request may cost, checked before the engine sees it: one request must not starve the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import CHAT, COMPLETIONS
from streamfleet.worker.cost.amounts import check_amounts, most_output_tokens
from streamfleet.worker.cost.forms import check_forms
from streamfleet.worker.cost.grammars import check_grammars
from streamfleet.worker.cost.limits import CostLimits, too_expensive
from streamfleet.worker.cost.plain import plain_output
from streamfleet.worker.cost.prompts import check_prompt, readable_bytes
from streamfleet.worker.cost.shape import check_shape
from streamfleet.worker.credit import OUTPUT_LIMITS, Demand, demand_of, estimate, sequences

__all__ = ["CostLimits", "admit", "check_cost", "for_engine"]

# The worker's own business: a result is one whole response, and order inside the engine follows lane and deadline.
_NOT_FOR_THE_ENGINE = frozenset(
    {"stream", "stream_options", "background", "priority", "request_id", "kv_transfer_params", "ec_transfer_params"}
)
# A prompt has hardly more tokens than this many bytes for each. Where it matters, erring costs an answer its end.
_DENSE_BYTES_PER_TOKEN = 3


def check_cost(body: Mapping[str, Any], limits: CostLimits, longest: int | None = None, endpoint: str = "") -> None:
    """Let a body pass that costs no more than allowed. Its types are the engine's to check, where that can.

    Takes time linear in the body's size, whatever is in it.

    Args:
        body: any JSON object.
        limits: what is allowed.
        longest: most tokens of one sequence; None where the engine does not tell.
        endpoint: where it goes.

    Raises:
        InvalidRequest: naming the field that asks for too much.
    """
    try:
        check_shape(body, limits, endpoint)
        check_forms(body)
        check_amounts(body, limits, longest)
        check_prompt(body, limits, longest, endpoint)
        check_grammars(body, limits)
    except RecursionError:  # where the limit of depth is set beyond what Python follows
        raise InvalidRequest("is nested too deeply", "body", "invalid_json") from None


def admit(
    body: Mapping[str, Any],
    size: int,
    limits: CostLimits,
    longest: int | None = None,
    endpoint: str = "",
    prompt_ratio: float = 1.0,
) -> Demand:
    """Let a body pass that costs no more than allowed, and say what it will ask of the engine.

    Args:
        body: any JSON object.
        size: its bytes as JSON text.
        limits, longest, endpoint: as for `check_cost`.
        prompt_ratio: as for `credit.estimate`.

    Raises:
        InvalidRequest: naming the field that asks for too much.
    """
    output = plain_output(body, size, limits, longest, endpoint)
    if output is not None:
        return demand_of(size, 1, output, longest, prompt_ratio)
    check_cost(body, limits, longest, endpoint)
    return estimate(body, readable_bytes(body, size), longest, endpoint, prompt_ratio)


def for_engine(
    body: Mapping[str, Any], endpoint: str = "", limits: CostLimits | None = None, longest: int | None = None
) -> dict[str, Any]:
    """The body without the fields that are not for the engine, and with a limit of output where it has none.

    Raises:
        InvalidRequest: several sequences of a prompt so long that only the caller can say what is to be left for each.
    """
    passed = dict(body)
    if not _NOT_FOR_THE_ENGINE.isdisjoint(passed):
        passed = {name: value for name, value in body.items() if name not in _NOT_FOR_THE_ENGINE}
    cap = _output_cap(body, endpoint, limits, longest) if limits else None
    return passed if cap is None else {**passed, "max_tokens": cap}


def _output_cap(body: Mapping[str, Any], endpoint: str, limits: CostLimits, longest: int | None) -> int | None:
    """What each sequence may be given where the body leaves it open; None where nothing has to be said."""
    for name in OUTPUT_LIMITS:
        if body.get(name) is not None:
            return None
    if endpoint != CHAT and not (endpoint == COMPLETIONS and "max_tokens" in body):  # its default is 16
        return None
    asked, most = sequences(body), most_output_tokens(limits, longest)
    if asked * longest <= most if longest else not limits.max_output_tokens:
        return None  # it cannot exceed the limit; or nobody set one, and only the engine knows what fits
    cap = max(1, most // asked)
    prompt_tokens = sum(len(str(body.get(name, ""))) for name in ("messages", "prompt", "tools"))
    prompt_tokens //= _DENSE_BYTES_PER_TOKEN
    if longest is None or cap + prompt_tokens <= longest:
        return cap
    if asked == 1:
        return None  # what the prompt leaves is about as much, and the engine knows it exactly
    message = f"is not set, and {asked} sequences may together have {most} output tokens: set it to at most {cap}"
    raise too_expensive("max_tokens", message)
