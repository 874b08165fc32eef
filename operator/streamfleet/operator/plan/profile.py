"""Profile files of measured engines: the simulated engine's profile, and the details of the measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.operator.plan.checks import number, whole
from streamfleet.worker.engine.simulated_profile import Profile

FORMAT = "streamfleet-engine-profile-1"
NO_LIMIT = 10**12
"""Value of an unknown KV-cache size or length."""
_FIELDS = ("name", "prefill_s_per_token", "throughput", "slots", "kv_tokens", "max_model_len", "pickup_ms")


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Profile of a worker for a plan.

    Attributes:
        engine: step and prefill times and capacity, as in the simulated engine, without jitter.
        pickup_ms: ms from enqueueing to the engine, on an idle fleet.
        measured: details of the measurement, for people.
    """

    engine: Profile
    pickup_ms: float = 0.0
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of KV cache; None if unknown."""
        return None if self.engine.kv_tokens >= NO_LIMIT else self.engine.kv_tokens

    def request_s(self, prompt_tokens: float, output_tokens: float, together: int = 1) -> float:
        """Seconds of a request in an engine that runs `together` requests the whole time."""
        return prompt_tokens * self.engine.prefill_s_per_token + output_tokens * self.engine.step_s(together)

    def work_s(self, prompt_tokens: float, output_tokens: float, together: int | None = None) -> float:
        """Seconds of a whole engine that a request takes with `together` requests running (default: all slots)."""
        sharing = together or self.engine.slots
        return self.request_s(prompt_tokens, output_tokens / sharing, sharing)

    def to_json(self) -> dict[str, Any]:
        """The profile as JSON values."""
        engine = self.engine
        return {
            "format": FORMAT,
            "name": engine.name,
            "prefill_s_per_token": engine.prefill_s_per_token,
            "throughput": [list(point) for point in engine.throughput],
            "slots": engine.slots,
            "kv_tokens": self.kv_tokens,
            "max_model_len": None if engine.max_model_len >= NO_LIMIT else engine.max_model_len,
            "pickup_ms": self.pickup_ms,
            "measured": dict(self.measured),
        }

    def save(self, path: Path) -> None:
        """Write the profile as a JSON file that people can read and change."""
        path.write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_profile(path: Path) -> EngineProfile:
    """Read a profile file.

    Raises:
        InvalidRequest: the file cannot be read, or a field is wrong; the error names the field.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        advice = "make one: streamfleet plan measure --out engine.json"
        raise InvalidRequest(f"cannot read {path} ({error.strerror}); {advice}", "--profile") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}", "--profile") from None
    return read_profile(values, path.name)


def read_profile(values: Any, source: str) -> EngineProfile:
    """Read a profile from JSON values. Errors name `source`. Raises like `load_profile`."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InvalidRequest(
            f"must be {FORMAT!r}: this is no profile that `streamfleet plan measure` made", f"{source}: format"
        )
    if missing := [name for name in _FIELDS if name not in values]:
        raise InvalidRequest("is missing: measure again, or add it", f"{source}: {missing[0]}")
    if not isinstance(values["name"], str):
        raise InvalidRequest("must be text", f"{source}: name")
    slots = whole(values["slots"], f"{source}: slots", least=1, most=100_000)
    measured = values.get("measured", {})
    engine = Profile(
        name=values["name"][:200],
        prefill_s_per_token=number(values["prefill_s_per_token"], f"{source}: prefill_s_per_token"),
        throughput=_throughput(values["throughput"], f"{source}: throughput"),
        slots=slots,
        kv_tokens=_limit(values["kv_tokens"], f"{source}: kv_tokens"),
        max_model_len=_limit(values["max_model_len"], f"{source}: max_model_len"),
        jitter=0.0,
    )
    pickup_ms = number(values["pickup_ms"], f"{source}: pickup_ms", most=3_600_000)
    return EngineProfile(engine, pickup_ms, measured if isinstance(measured, dict) else {})


def _limit(value: Any, name: str) -> int:
    return NO_LIMIT if value is None else whole(value, name, least=1, most=NO_LIMIT)


def _throughput(value: Any, name: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest("must be an array of [sequences together, output tokens per second]", name)
    points = []
    for place, point in enumerate(value):
        if not isinstance(point, list) or len(point) != 2:
            raise InvalidRequest("must be [sequences together, output tokens per second]", f"{name}[{place}]")
        points.append(
            (whole(point[0], f"{name}[{place}][0]", least=1), number(point[1], f"{name}[{place}][1]", above=True))
        )
    if any(low >= high for (low, _), (high, _) in pairwise(points)):
        raise InvalidRequest("must have its numbers of sequences in ascending order, each once", name)
    return tuple(points)
