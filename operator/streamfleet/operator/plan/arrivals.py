"""Arrivals of requests: drawn from a rate and mean lengths, or read from a recorded trace."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.plan.checks import number, whole

Shape = Literal["log-normal", "fixed"]
SPREAD = 0.6
"""Standard deviation of the logarithm of a log-normal length: nine of ten lie between 0.3 and 2.2 times the mean."""
MOST_TOKENS = 10_000_000
MOST_MS = 10**12
_LANES: dict[Any, Lane] = {lane.value: lane for lane in LANES}
_FIELDS = ("at_ms", "lane", "prompt_tokens", "output_tokens", "deadline_ms", "tenant", "max_tokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request.

    Attributes:
        at_s: time of enqueueing, seconds from the start.
        lane: its lane.
        prompt_tokens, output_tokens: its lengths.
        deadline_s: deadline, seconds after enqueueing; None for none.
    """

    at_s: float
    lane: Lane
    prompt_tokens: int
    output_tokens: int
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one kind, at random times.

    Attributes:
        per_s: mean requests per second.
        prompt_tokens, output_tokens: mean lengths.
        deadline_s: deadline of each, seconds after enqueueing; None for none.
        lane: their lane.
        shape: distribution of lengths around their means.
        longest: largest total of tokens of a request; longer ones are cut.
    """

    per_s: float
    prompt_tokens: int
    output_tokens: int
    deadline_s: float | None = None
    lane: Lane = Lane.NORMAL
    shape: Shape = "log-normal"
    longest: int = MOST_TOKENS

    def arrivals(self, seed: int, count: int) -> list[Arrival]:
        """Draw `count` arrivals of a Poisson process; the same for the same seed."""
        chance = random.Random(f"plan:{seed}")  # noqa: S311 - not for secrets
        at_s, found = 0.0, []
        for _ in range(count):
            at_s += chance.expovariate(self.per_s)
            prompt = min(length(chance, self.prompt_tokens, self.shape), self.longest - 1)
            output = min(length(chance, self.output_tokens, self.shape), self.longest - prompt)
            found.append(Arrival(at_s, self.lane, prompt, output, self.deadline_s))
        return found


def length(chance: random.Random, mean: int, shape: Shape) -> int:
    """Draw a length of this shape."""
    if shape == "fixed":
        return mean
    return max(1, round(chance.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)))


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of fields that a line of a trace leaves out; None for a required field.

    Attributes:
        lane: its lane.
        prompt_tokens, output_tokens: its lengths.
        deadline_s: deadline, seconds after enqueueing; None for none.
        learnt: returns the output of a tenant's request with such a limit; None if it is not known.
    """

    lane: Lane = Lane.NORMAL
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    deadline_s: float | None = None
    learnt: Callable[[str, int | None], int | None] = lambda tenant, limit: None  # noqa: ARG005 - names tell


def read_trace(path: Path, defaults: Defaults, longest: int = MOST_TOKENS) -> list[Arrival]:
    """Read a recorded trace, sorted by time: a JSON object per line, with times in ms.

    Args:
        path: the file.
        defaults: values of fields that lines leave out.
        longest: largest total of prompt and output tokens of a request.

    Raises:
        InvalidRequest: it cannot be read, or a line is wrong; the error names line and field.
    """
    try:
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"cannot read {path}: {reason}", "--trace") from None
    found = sorted(_arrivals(lines, path.name, defaults, longest), key=lambda arrival: arrival.at_s)
    if not found:
        raise InvalidRequest(f"{path} has no requests", "--trace")
    first_s = found[0].at_s
    return [
        Arrival(item.at_s - first_s, item.lane, item.prompt_tokens, item.output_tokens, item.deadline_s)
        for item in found
    ]


def _arrivals(lines: list[str], source: str, defaults: Defaults, longest: int) -> Iterator[Arrival]:
    for place, line in enumerate(lines, 1):
        if line.strip():
            yield _arrival(line, f"{source} line {place}", defaults, longest)


def _arrival(line: str, where: str, defaults: Defaults, longest: int) -> Arrival:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidRequest('must be a JSON object such as {"at_ms":0,"prompt_tokens":300,"output_tokens":150}', where)
    if unknown := sorted(set(values) - set(_FIELDS)):
        raise InvalidRequest(f"unknown; a line has {', '.join(_FIELDS)}", f"{where}: {unknown[0][:40]}")
    lane = values.get("lane", defaults.lane)
    if not isinstance(lane, str) or lane not in _LANES:
        raise InvalidRequest(f"must be one of {', '.join(LANES)}, not {lane!r:.40}", f"{where}: lane")
    prompt = _tokens(values, "prompt_tokens", defaults.prompt_tokens, where)
    tenant = values.get("tenant", "")
    if not isinstance(tenant, str):
        raise InvalidRequest(f"must be a text, not {tenant!r:.40}", f"{where}: tenant")
    limit = _tokens(values, "max_tokens", None, where) if "max_tokens" in values else None
    known = None if "output_tokens" in values else defaults.learnt(tenant, limit)
    output = _tokens(values, "output_tokens", defaults.output_tokens, where) if known is None else known
    if known is not None:
        output = max(1, min(output, longest - prompt))
    if prompt + output > longest:
        text = f"{prompt + output} tokens with the prompt are more than the engine's max_model_len, {longest}"
        raise InvalidRequest(text, f"{where}: output_tokens")
    at_ms = number(values.get("at_ms"), f"{where}: at_ms", most=MOST_MS * 10)
    deadline_s = defaults.deadline_s
    if "deadline_ms" in values:
        given = values["deadline_ms"]
        deadline_s = None if given is None else number(given, f"{where}: deadline_ms", above=True, most=MOST_MS) / 1000
    return Arrival(at_ms / 1000, _LANES[lane], prompt, output, deadline_s)


def _tokens(values: dict[str, Any], name: str, default: int | None, where: str) -> int:
    if name not in values and default is not None:
        return default
    if name not in values:
        option = name.replace("_", "-")
        raise InvalidRequest(f"is missing: give it, or --{option} for all lines without", f"{where}: {name}")
    return whole(values[name], f"{where}: {name}", least=1, most=MOST_TOKENS)
