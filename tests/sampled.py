"""Parameters of a test that are too many for `make test`: some of them run there, the others in `make test-long`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], one_in: int) -> list[Any]:
    """The values as parameters: all but one in so many are marked `long`. A tuple is one value."""
    return [pytest.param(value, marks=[pytest.mark.long] if at % one_in else []) for at, value in enumerate(values)]


def chosen(names: Iterable[str], now: Container[str]) -> list[Any]:
    """The names as parameters: those that are not among `now` are marked `long`."""
    return [pytest.param(name, marks=[] if name in now else [pytest.mark.long]) for name in names]
