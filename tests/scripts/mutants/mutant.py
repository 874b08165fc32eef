"""A guard of the scripts, the change that takes it out, and the tests that must then fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from streamfleet.common import scripts
from streamfleet.gateway import broker as gateway_broker

HISTORY = "history"


@dataclass(frozen=True)
class Mutant:
    """A guard taken out.

    Attributes:
        guard: what is missing then.
        old: text in the scripts' source that is the guard.
        new: what stands in its place.
        caught_by: ``history`` or ``<module>.<test>`` (below tests.scripts, without ``test_``).
        seed: history to begin with; a hint that saves time.
        argument: for a test that takes one.
    """

    guard: str
    old: str
    new: str
    caught_by: str
    seed: int = 0
    argument: str = ""

    @property
    def verbs(self) -> list[str]:
        """Scripts that hold the guard."""
        return [verb for verb in (*scripts.VERBS, *gateway_broker.VERBS) if self.old in scripts.source(verb)]


@contextmanager
def taken_out(mutant: Mutant) -> Iterator[None]:
    """Scripts without the guard, for connections opened meanwhile."""
    original = scripts.source

    def source(verb: str) -> str:
        return original(verb).replace(mutant.old, mutant.new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "source", source)
        yield
