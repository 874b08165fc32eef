"""Result of each part of this measurement, and the type of its progress messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bench.core.reports import Table, Target

Say: TypeAlias = Callable[[str], None]
"""Called with what is being done now, in a few words."""


@dataclass(frozen=True)
class Part:
    """Results of one part.

    Attributes:
        tables: for people.
        targets: targets of the part.
        data: series for plots, and samples.
        settings: sizes that decide the figures.
    """

    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    data: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
