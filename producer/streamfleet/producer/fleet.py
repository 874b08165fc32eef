"""The workers of a queue: what each says of itself, held against what Redis knows of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SILENT_AFTER_S, MOST_SILENT_S = 15.0, 600.0
"""One that was silent for so long is gone, or as good as gone: at least the first, or a lease and a half where that is
longer, because signs of life come at least once a lease; never more than the second."""
MOST_MS = 8 * 10**15
"""What is beyond this is no time."""
MOST_CHARS = 200
"""Of what somebody says, so much is shown: anybody who may write there may write a book."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as it last described itself.

    Attributes:
        name: its name.
        running: requests that it holds, as Redis counts them.
        state, engine, models, endpoints, slots: its own words; empty and None for one that was never described.
        silent_s: seconds since its last sign of life; None for one that gave none.
        version: of streamfleet; empty where it does not say.
        age_s: seconds since its start, by its own clock; None where it does not say.
        unready: why it takes no requests, in its own words; empty where it says nothing of the kind.
        held: the requests that it holds by lane, as Redis counts them.
        oldest_held_s: for how long it has had the one that it has had for longest; None where it does not say.
        silent_after_s: without a sign of life for so long, it counts as silent.
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

    @property
    def alive(self) -> bool:
        """Whether it gave a sign of life lately."""
        return self.silent_s is not None and self.silent_s <= self.silent_after_s

    @property
    def takes_requests(self) -> bool:
        """Whether it is alive and ready."""
        return self.alive and self.state == "ready" and not self.unready

    @property
    def why_not(self) -> str:
        """Why it takes no requests; empty for one that does."""
        if not self.alive:
            return "silent"
        return "" if self.takes_requests else self.unready or self.state or "it does not say why"


def worker_views(
    described: Mapping[str, Mapping[str, Any]], held: Mapping[str, Mapping[str, int]], now_ms: int
) -> list[WorkerView]:
    """Workers by name: those that describe themselves, and any other that holds requests.

    Args:
        described: worker to its own words, which may be anything.
        held: worker to how many requests of each lane it holds.
        now_ms: Redis's clock, epoch ms.
    """
    return [_view(name, described.get(name, {}), held.get(name, {}), now_ms) for name in sorted({*described, *held})]


def _view(name: str, words: Mapping[str, Any], held: Mapping[str, int], now_ms: int) -> WorkerView:
    slots = words.get("slots")
    silent_s = _since_s(words.get("seen_ms"), now_ms)
    age_s = _since_s(words.get("started_ms"), now_ms)
    oldest_s = _since_s(words.get("oldest_held_ms"), now_ms)
    return WorkerView(
        name=name,
        running=sum(held.values()),
        state=_text(words.get("state")),
        engine=_text(words.get("engine")),
        models=_texts(words.get("models")),
        slots=slots if isinstance(slots, int) and not isinstance(slots, bool) and 0 <= slots < MOST_MS else None,
        silent_s=silent_s,
        endpoints=_texts(words.get("endpoints")),
        version=_text(words.get("version")),
        age_s=None if age_s is None else max(0.0, age_s),
        unready=_text(words.get("unready")),
        held=dict(held),
        oldest_held_s=max(0.0, oldest_s) if oldest_s is not None and held else None,
        silent_after_s=silent_after_s(words.get("lease_ms")),
    )


def _text(said: object) -> str:
    # str() of an object inside another, ten thousand deep, would raise: only what is text, or short, is taken.
    return said[:MOST_CHARS] if isinstance(said, str) else ""


def _texts(said: object) -> tuple[str, ...]:
    return tuple(map(_text, said[:16])) if isinstance(said, list) else ()


def silent_after_s(lease_ms: object) -> float:
    """How long a worker may say nothing before it counts as silent, by the lease that it names; seconds."""
    known = isinstance(lease_ms, int) and not isinstance(lease_ms, bool) and 0 < lease_ms < MOST_MS
    return min(MOST_SILENT_S, max(SILENT_AFTER_S, 1.5 * lease_ms / 1000)) if known else SILENT_AFTER_S  # type: ignore[operator]


def _since_s(moment_ms: object, now_ms: int) -> float | None:
    # What is no time (not a number, or one beyond all times) stands for one that nobody gave.
    known = isinstance(moment_ms, (int, float)) and not isinstance(moment_ms, bool) and 0 <= moment_ms < MOST_MS
    return (now_ms - moment_ms) / 1000 if known else None  # type: ignore[operator]
