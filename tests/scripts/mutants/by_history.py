"""Which guards of tenants and homes a labelled history notices, and which only a test of their own."""

from __future__ import annotations

from tests.scripts.mutants import affinity, pulls, tenants
from tests.scripts.mutants.mutant import Mutant

SEEDS: dict[str, int] = {}
"""Guard to the seed of a history that fails without it."""

UNNOTICED: dict[str, str] = {}
"""Guard to the reason for which no history is known that does."""


def guards() -> list[Mutant]:
    """The guards of tenants and homes, and those of pulls that concern what waits for a worker."""
    concerned = [mutant for mutant in pulls.MUTANTS if mutant.guard.startswith(("pop: ", "interrupted: it"))]
    return [*tenants.MUTANTS, *affinity.MUTANTS, *concerned]
