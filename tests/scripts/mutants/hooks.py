"""The hooks: each is left out where a verb calls it."""

from __future__ import annotations

from tests.scripts.mutants.mutant import LABELLED, Mutant

MUTANTS = (
    Mutant("hooks: what is staged becomes ready"),
    Mutant("hooks: a cancelled request waits no more"),
    Mutant("hooks: an expired request waits no more", seed=10),
    Mutant("hooks: policies are told of what is taken", caught_by=LABELLED, seed=1),
    Mutant("hooks: a request that is handed back is charged for what it generated", caught_by=LABELLED, seed=1),
    Mutant("hooks: the work of a lost worker is charged to nobody", caught_by=LABELLED),
    Mutant("hooks: a run that has ended is settled", caught_by=LABELLED, seed=1),
    Mutant("hooks: what policies have changed is written", caught_by=LABELLED, seed=1),
)
