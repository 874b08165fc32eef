"""Encodes the output of an interrupted run for the next run, and finds where it can be cut.

An engine packs what it has generated into a `Partial`; the engine of the next run unpacks it, if it is of the same kind
and runs the same request. The state holds generated tokens only, and no prompt. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from streamfleet.worker.engine.base import EngineRequest, Partial

FORMAT = 1
"""Number of the encoding: an engine begins anew from any other."""
MOST_BYTES = 524_288
"""Most bytes of a state: about 75,000 tokens. A longer answer begins anew."""
_MOST_DROPPED = 32
_INCOMPLETE = "\ufffd"


def identity(kind: str, model: str, request: EngineRequest) -> dict[str, Any]:
    """Returns what two runs must have in common: kind of engine, model or adapter, endpoint and body."""
    asked = json.dumps([request.endpoint, request.body], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    return {"engine": kind, "format": FORMAT, "model": model, "request": digest}


def pack(identity: dict[str, Any], tokens: int, **generated: Any) -> Partial | None:
    """Returns the Partial of one run; None if there is nothing to keep, or too much."""
    if tokens < 1:
        return None
    state = json.dumps({**identity, **generated}, separators=(",", ":")).encode("ascii")
    return Partial(tokens, state) if len(state) <= MOST_BYTES else None


def unpack(partial: Partial | None, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what was packed under the same identity; None if there is none."""
    if partial is None or len(partial.state) > MOST_BYTES:
        return None
    try:
        state = json.loads(partial.state)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or any(state.get(name) != value for name, value in identity.items()):
        return None
    return state


def cut(ids: Sequence[int], text: str, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> int:
    """Returns how many of the generated ids another run can go on from.

    The cut is where a character ends: vLLM answers with the whole prompt, system prompt included, if it goes on inside
    of one. It is not where a stop string may have begun, because a run finds only stop strings within its own text.
    And what is kept is a beginning of the answer's text.

    Args:
        ids: all that was generated.
        text: text of the answer so far.
        decode: returns the text of ids, as it stands in the answer.
        stops: texts that end the answer.
    """
    for kept in range(len(ids), max(0, len(ids) - _MOST_DROPPED), -1):
        said = decode(ids[:kept])
        if complete(said) and text.startswith(said) and not _may_begin(said, stops):
            return kept
    return 0


def complete(said: str) -> bool:
    """True if a text does not end inside of a character."""
    return not said.endswith(_INCOMPLETE)


def _may_begin(said: str, stops: Sequence[str]) -> bool:
    """True if the text ends with the beginning of a stop string."""
    return any(said.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))
