"""The demo's requests: all lanes and terminal statuses, enqueued in about the reverse order of their execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CAPITAL = "capital"
MALFORMED = "malformed"
CANCELLED = "cancelled"
EXPIRED = "expired"

_QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "low",
        (
            "Write a sentence about the sea.",
            "Write a sentence about mountains.",
            "Write a sentence about a library.",
            "Write a sentence about rain.",
            "Write a sentence about bread.",
            "Write a sentence about a train.",
            "Write a sentence about winter.",
        ),
    ),
    (
        "normal",
        (
            "Name a colour.",
            "Name a fruit.",
            "What does a baker do?",
            "Is the sun a star?",
            "How many legs has a spider?",
        ),
    ),
    ("high", ("Say hello in French.", "Name an ocean.", "What is ice made of?", "Name a planet.")),
    ("critical", ("Name a metal.", "What colour is the sky?", "Say hi.")),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the demo; ``ttl_ms`` is None for no time limit."""

    id: str
    lane: str
    body: dict[str, Any]
    ttl_ms: int | None = None

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][-1]["content"])


def chat(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A chat request with a deterministic answer."""
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}


def plan() -> list[Planned]:
    """Requests in the order of enqueueing: least urgent lanes first, and later deadlines first within a lane."""
    planned = []
    for lane, questions in _QUESTIONS:
        for number, question in enumerate(questions, start=1):
            deadline_ms = 600_000 - 30_000 * number if lane != "low" else None
            planned.append(Planned(f"{lane}-{number}", lane, chat(question, 24), deadline_ms))
    planned.insert(9, Planned(CANCELLED, "low", chat("Nobody wants this answer any more.", 64)))
    planned.insert(14, Planned(EXPIRED, "normal", chat("Too late for this one.", 16), 1))
    planned.append(
        Planned(CAPITAL, "critical", chat("What is the capital of France? Answer in one word.", 16), 300_000)
    )
    return planned


def lanes() -> dict[str, str]:
    """Lane of each request by its id, including the malformed one, which is not in the plan."""
    return {MALFORMED: "high", **{item.id: item.lane for item in plan()}}
