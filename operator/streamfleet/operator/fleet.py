"""Views of a queue's workers, from their own descriptions and from Redis's counts. Pure."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from streamfleet.common.queue_configuration import NAMES

SILENT_AFTER_S, MOST_SILENT_S = 15.0, 600.0
"""Bounds of the time after which a silent worker counts as gone, in seconds. In between it is a lease and a half,
because signs of life come at least once per lease."""
MOST_MS = 8 * 10**15
"""Largest valid time, epoch ms."""
MOST_BYTES = 65_536
"""Most bytes of the fields in a description, packed or not."""
MOST_CHARS = 200
"""Longest text shown from a description, which any producer or worker could have written."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as it last described itself.

    Attributes:
        name: its name.
        running: number of requests that it holds, as Redis counts them.
        state, engine, models, endpoints, slots: its own description; empty and None if there is none.
        silent_s: seconds since its last sign of life; None if there was none.
        version: version of streamfleet; empty if unknown.
        age_s: seconds since its start, by its own clock; None if unknown.
        unready: its own reason for taking no requests; empty for none.
        held: number of requests that it holds by lane, as Redis counts them.
        oldest_held_s: it has held none of its requests for longer, seconds; None if unknown.
        silent_after_s: time without a sign of life after which it counts as silent, seconds.
        environment: values of its environment that are not the queue's.
        max_model_len: tokens of prompt and output together that its engine takes; None if unknown.
        kv_use: part of its engine's KV cache in use, 0 to 1; None if the engine does not know.
        mean_batch: mean number of its sequences that ran together in the last minute, while any ran; None if none ran.
        limited: true if the server behind its engine takes fewer requests than it is set to send.
        fields: names of the fields of a body that it obeys, by endpoint; empty if its engine does not tell.
    """

    name: str
    running: int
    state: str
    engine: str
    models: Sequence[str]
    slots: int | None
    silent_s: float | None
    endpoints: Sequence[str] = ()
    version: str = ""
    age_s: float | None = None
    unready: str = ""
    held: Mapping[str, int] = field(default_factory=dict)
    oldest_held_s: float | None = None
    silent_after_s: float = SILENT_AFTER_S
    environment: Mapping[str, str] = field(default_factory=dict)
    max_model_len: int | None = None
    kv_use: float | None = None
    mean_batch: float | None = None
    limited: bool = False
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """True if it gave a sign of life lately."""
        return self.silent_s is not None and self.silent_s <= self.silent_after_s

    @property
    def takes_requests(self) -> bool:
        """True if it is alive and ready."""
        return self.alive and self.state == "ready" and not self.unready

    @property
    def why_not(self) -> str:
        """Reason for taking no requests; empty if it takes them."""
        if not self.alive:
            return "silent"
        return "" if self.takes_requests else self.unready or self.state or "it does not say why"


def worker_views(
    described: Mapping[str, Mapping[str, Any]], held: Mapping[str, Mapping[str, int]], now_ms: int
) -> list[WorkerView]:
    """Workers sorted by name: those with a description, and any other that holds requests.

    Args:
        described: description by worker; it may contain anything.
        held: number of held requests by worker and lane.
        now_ms: Redis's clock, epoch ms.
    """
    return [_view(name, described.get(name, {}), held.get(name, {}), now_ms) for name in sorted({*described, *held})]


def _view(name: str, words: Mapping[str, Any], held: Mapping[str, int], now_ms: int) -> WorkerView:
    silent_s = _since_s(words.get("seen_ms"), now_ms)
    age_s = _since_s(words.get("started_ms"), now_ms)
    oldest_s = _since_s(words.get("oldest_held_ms"), now_ms)
    return WorkerView(
        name=name,
        running=sum(held.values()),
        state=_text(words.get("state")),
        engine=_text(words.get("engine")),
        models=_texts(words.get("models")),
        slots=_count(words.get("slots")),
        silent_s=silent_s,
        endpoints=_texts(words.get("endpoints")),
        version=_text(words.get("version")),
        age_s=None if age_s is None else max(0.0, age_s),
        unready=_text(words.get("unready")),
        held=dict(held),
        oldest_held_s=max(0.0, oldest_s) if oldest_s is not None and held else None,
        silent_after_s=silent_after_s(words.get("lease_ms")),
        environment=_environment(words.get("environment")),
        max_model_len=_count(words.get("max_model_len")) or None,
        kv_use=_number(words.get("kv_use"), 1),
        mean_batch=_number(words.get("mean_batch"), MOST_MS),
        limited=words.get("limited") is True,
        fields=_fields(_packed) if isinstance(_packed := words.get("fields"), str) else {},
    )


@lru_cache(64)  # workers of one release say the same
def _fields(packed: str) -> Mapping[str, frozenset[str]]:
    try:
        said = json.loads(zlib.decompressobj().decompress(b64decode(packed[:MOST_BYTES]), MOST_BYTES))
        return {endpoint: frozenset(names.split()) for endpoint, names in said.items()}
    except (ValueError, AttributeError, RecursionError, zlib.error):
        return {}


def _count(said: object) -> int | None:
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < MOST_MS else None


def _number(said: object, most: float) -> float | None:
    known = isinstance(said, (int, float)) and not isinstance(said, bool) and 0 <= said <= most
    return float(said) if known else None  # type: ignore[arg-type]


def _text(said: object) -> str:
    # Only text is taken: str() of a deeply nested object would raise.
    return said[:MOST_CHARS] if isinstance(said, str) else ""


def _texts(said: object) -> tuple[str, ...]:
    return tuple(map(_text, said[:16])) if isinstance(said, list) else ()


def _environment(said: object) -> dict[str, str]:
    return {name: _text(said[name]) for name in NAMES if name in said} if isinstance(said, dict) else {}


def silent_after_s(lease_ms: object) -> float:
    """Time without a sign of life after which a worker with this lease counts as silent; seconds."""
    known = isinstance(lease_ms, int) and not isinstance(lease_ms, bool) and 0 < lease_ms < MOST_MS
    return min(MOST_SILENT_S, max(SILENT_AFTER_S, 1.5 * lease_ms / 1000)) if known else SILENT_AFTER_S  # type: ignore[operator]


def _since_s(moment_ms: object, now_ms: int) -> float | None:
    # An invalid time counts as missing.
    known = isinstance(moment_ms, (int, float)) and not isinstance(moment_ms, bool) and 0 <= moment_ms < MOST_MS
    return (now_ms - moment_ms) / 1000 if known else None  # type: ignore[operator]
