"""Calling what may refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def attempt(refusal: type[E], call: Callable[[], T]) -> T | E:
    """Returns a call's value, or the one kind of error that it may raise; raises any other."""
    try:
        return call()
    except refusal as error:
        return error
