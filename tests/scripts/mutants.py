"""A guard, the change that takes it out, and the tests that must then fail."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import pytest

from streamfleet.common import scripts
from streamfleet.common.scripts import source

HISTORY, LABELLED = "history", "labelled history"
Test = Callable[..., Coroutine[Any, Any, None]]
T = TypeVar("T", bound=Test)


@dataclass(frozen=True)
class Mutant:
    """A guard taken out, or a value changed.

    Attributes:
        guard: what is missing then.
        old: text in the source that is changed; empty if a marked statement of the scripts is taken out.
        new: what stands in its place.
        caught_by: ``history``, ``labelled history`` (the one of `seed`), or a test below tests.scripts.
        seed: history to begin with; a hint that saves time, except for labelled ones.
        argument: for a test that takes one.
        mark: name of the mark, if it is not `guard`.
        service: name of the housekeeping's service that is changed; empty if scripts are.
    """

    guard: str
    old: str = ""
    new: str = ""
    caught_by: Test | str = HISTORY
    seed: int = 0
    argument: str = ""
    mark: str = ""
    service: str = ""

    @property
    def marked_by(self) -> str:
        """Name of the mark over the statement that is taken out; empty if a value is changed."""
        return "" if self.old else self.mark or self.guard

    def applied(self, verb: str) -> str:
        """A script's text with the change; its own text if it does not hold the guard."""
        if self.marked_by:
            return scripts.without_marks(without(scripts.marked(verb), self.marked_by))
        return source(verb).replace(self.old, self.new)


_OF_TESTS: list[Mutant] = []


def fails_without(guard: str, old: str = "", new: str = "", **more: Any) -> Callable[[T], T]:
    """The decorated test fails without the guard. The arguments are those of `Mutant`."""

    def registered(test: T) -> T:
        _OF_TESTS.append(Mutant(guard, old, new, test, **more))
        return test

    return registered


def mutants_of_tests() -> list[Mutant]:
    """The mutants that tests beside this module name."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.stem != "test_mutants":
            importlib.import_module(f"tests.scripts.{path.stem}")
    return _OF_TESTS


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
    """Services, and scripts for connections opened meanwhile, without the guard."""
    with pytest.MonkeyPatch.context() as patch:
        if mutant.service:
            module = service(mutant.service)
            changed = ModuleType(module.__name__)
            text = inspect.getsource(module).replace(mutant.old, mutant.new)
            exec(compile(text, "without", "exec"), vars(changed))  # noqa: S102 - our own source
            for name, one in _functions(module).items():
                patch.setattr(one, "__code__", _functions(changed)[name].__code__)
        else:
            patch.setattr(scripts, "source", cache(mutant.applied))
        yield


def service(name: str) -> ModuleType:
    """The module of a service of the housekeeping."""
    return importlib.import_module(f"streamfleet.worker.services.{name}")


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    own = {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    methods = {
        f"{name}.{each}": method
        for name, one in own.items()
        if inspect.isclass(one)
        for each, method in vars(one).items()
        if isinstance(method, FunctionType)
    }
    return methods | {name: one for name, one in own.items() if isinstance(one, FunctionType)}
