"""A guard of the scripts, the change that takes it out, and the tests that must then fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from streamfleet.common import scripts
from streamfleet.gateway import broker as gateway_broker

VERBS = (*scripts.VERBS, *gateway_broker.VERBS)
HISTORY, LABELLED = "history", "labelled history"


@dataclass(frozen=True)
class Mutant:
    """A guard taken out, or a value changed.

    Attributes:
        guard: what is missing then.
        old: text in the scripts' source that is changed; empty if a marked statement is taken out.
        new: what stands in its place.
        caught_by: ``history``, ``labelled history`` (the one of `seed`), or ``<module>.<test>`` (below tests.scripts,
            without ``test_``).
        seed: history to begin with; a hint that saves time, except for labelled ones.
        argument: for a test that takes one.
        mark: name of the mark, if it is not `guard`.
    """

    guard: str
    old: str = ""
    new: str = ""
    caught_by: str = HISTORY
    seed: int = 0
    argument: str = ""
    mark: str = ""

    @property
    def marked_by(self) -> str:
        """Name of the mark over the statement that is taken out; empty if a value is changed."""
        return "" if self.old else self.mark or self.guard

    def applied(self, verb: str) -> str:
        """A script's text with the change; its own text if it does not hold the guard."""
        if self.marked_by:
            return scripts.without_marks(without(scripts.marked(verb), self.marked_by))
        return scripts.source(verb).replace(self.old, self.new)

    @property
    def verbs(self) -> list[str]:
        """Scripts that hold the guard."""
        return [verb for verb in VERBS if self.applied(verb) != scripts.source(verb)]


MARK = re.compile(r"^ *-- @guard (.+)$", re.MULTILINE)
_NO_CODE = re.compile(r"'(?:\\.|[^'\\])*'|--.*")
_OPENS, _CLOSES = re.compile(r"\b(?:function|if|do|repeat)\b|[({\[]"), re.compile(r"\b(?:end|until)\b|[)}\]]")
_GOES_ON = re.compile(r"(?:[-,=+*/]|\.\.|\b(?:and|or|not|return))$")
_CONTINUES = re.compile(r"(?:and|or)\b|\.\.|[-+*/=]")


def without(text: str, mark: str) -> str:
    """A script's text without the statement, or the block, that follows the mark."""
    lines = text.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if MARK.findall(line) == [mark]]
    for first in reversed(found):
        del lines[first + 1 : _end(lines, first + 1)]
    return "".join(lines)


def _end(lines: list[str], first: int) -> int:
    """Number of the line behind a statement: where every block and bracket is closed, and nothing continues it."""
    depth = 0
    code = [_NO_CODE.sub("''", line).strip() for line in lines[first:]]
    for number, line in enumerate(code):
        depth += len(_OPENS.findall(line)) - len(_CLOSES.findall(line))
        following = code[number + 1] if number + 1 < len(code) else ""
        if line and depth == 0 and not _GOES_ON.search(line) and not _CONTINUES.match(following):
            return first + number + 1
    raise ValueError(f"no statement ends behind {lines[first].strip()!r}")


@contextmanager
def taken_out(mutant: Mutant) -> Iterator[None]:
    """Scripts without the guard, for connections opened meanwhile."""
    changed = {verb: mutant.applied(verb) for verb in VERBS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "source", changed.__getitem__)
        yield
