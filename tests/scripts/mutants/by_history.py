"""Guards of tenants and homes that a labelled history notices, and those that only a test of their own does."""

from __future__ import annotations

from tests.scripts.mutants import affinity, pulls, tenants
from tests.scripts.mutants.mutant import Mutant

SEEDS = {
    "tenants: a pick is charged": 1,
    "tenants: a charge is settled by what was used": 1,
    "tenants: nothing is left of a charge when its entry is removed": 1,
    "tenants: who may run one more waits again": 1,
    "tenants: somebody is woken for who may run one more": 28,
    "tenants: nothing is left of turns of who has gone": 1,
    "tenants: what was ready before them takes turns too": 58,
    "tenants: who may not run one more is not in turn": 1,
    "tenants: what has no tenant is charged by its body once that is read": 0,
    "tenants: names without history go one behind the other": 1,
    "tenants: what did not run is not charged": 12,
    "tenants: what was generated stays charged": 1,
    "tenants: who is nearly late goes before few of its tenant": 1,
    "order: how many wait is known": 1,
    "order: what is freed can be taken at once": 258,
    "leave: it stands in no set any more": 1,
    "set_tenant: the newest values count": 1,
    "set_tenant: a clock that was set back makes nothing older": 1,
    "upkeep: a tenant that has gone is forgotten": 1,
    "upkeep: who may run more since its limit was raised waits again": 1,
    "upkeep: without tenants nothing is asked": 1,
    "lengths: a limit that runs have exceeded bounds nothing": 1,
    "tenants: what nobody counted is charged for its time in the engine": 1,
    "tenants: a failed attempt is charged for its time in the engine": 1,
    "retry_later: an attempt is charged whatever becomes of its request": 1,
    "tenants: an answer that nobody counted is charged like all else": 1,
    "tenants: who comes back starts at the lowest level": 1,
    "tenants: who comes back has the credit of a request": 1,
    "tenants: a name gets its credit once an hour": 1,
    "tenants: names without history get no credit": 1,
    "tenants: what is made up gets what the known get together": 8,
    "tenants: who comes does not lower the level for the next": 1,
    "tenants: what goes out of turn does not raise the level": 1,
    "tenants: lengths are of a class": 8,
    "tenants: the weight counts": 8,
    "tenants: a tenant that was charged goes back to its place": 4,
    "tenants: a limit counts what began since it was set": 1,
    "tenants: output of earlier runs is charged once": 1,
    "tenants: lost work is not charged": 1,
    "tenants: as many of a tenant run at once as it may": 1,
    "affinity: a home is woken for what comes to it": 16,
    "affinity: in its turn another home's is taken after a while": 1,
    "affinity: its own goes first only if its tenant has nothing that has to run soon": 1,
    "affinity: what another home is late with goes first if it is near, or has waited for long": 2,
    "affinity: what waits for another is left to it for a second": 2,
    "leave: its ticket goes": 9,
    "order: its ticket goes": 1,
    "affinity: it is left to its home for a whole second": 0,
    "affinity: what has to run soon goes before its own": 5,
    "order: a pick beside those of another lane is not charged to its tenants": 5,
    "order: every pick leaves its set": 1,
    "order: what was interrupted is left to its worker": 1,
    "order: what was interrupted waits for its worker for a while": 1,
    "order: what was interrupted goes where nothing else is": 1,
    "interrupted: it waits for its worker no longer than its deadline allows": 58,
}
"""Guard to the seed of a history that fails without it."""

UNNOTICED = {
    "hands overwrite keys, which no labelled history does": (
        "tenants: keys of another type are left alone",
        "affinity: a key of another type is left alone",
        "order: a key of another type is left alone",
    ),
    "a history has too few tenants, sessions or entries for the bound": (
        "tenants: their number is bounded",
        "affinity: what waited for lost homes is freed in bounded calls",
        "tenants: one pull looks at a bounded number at their limits",
        "order: a tenant at its limit hides nobody's interrupted request",
        "order: what has no deadline of its own hides no deadline",
        "order: a look for deadlines goes on where the last stopped",
    ),
    "no history is an hour long before its end": ("tenants: what is held is found where its tenant was forgotten",),
    "none of the 22 to 40 histories tried notices: they do not come to it, or the housekeeping heals it in time": (
        "tenants: what no tenant may run is not there to be taken",
        "tenants: a turn is kept until its credit is whole again",
        "upkeep: a tenant is kept while a charge of its requests is",
        "affinity: what waits for who is lost is anybody's",
        "affinity: who has asked meanwhile stays a home",
        "affinity: a session that has come meanwhile stays",
        "affinity: a wake-up reaches the watcher that it was for",
        "deregister: who is gone is no home",
        "order: what waits for a home wakes nobody else",
        "affinity: what another home is late with goes first after a while, too",
        "affinity: a home that was lost in this call is none",
    ),
    "it mends what a wrong charge says, and nothing in a history puts one there": (
        "tenants: a charge that nobody settled is given back",
        "upkeep: a run that is over is charged no more",
    ),
    "which home is chosen is not compared": (
        "affinity: a beginning counts when it comes again",
        "affinity: a beginning goes where it was read before",
        "affinity: a session stays where its cache is",
        "affinity: a worker that comes back is new",
        "affinity: homes spread in an idle fleet",
        "affinity: what has ended is no load",
        "affinity: who takes it is its home",
    ),
    "no labelled history sets the clock back": (
        "upkeep: nothing of a tenant is ahead of a clock that was set back",
        "order: a clock that is set back holds nothing up",
    ),
}
"""Reasons for which no history notices, and the guards of which that is so."""


def guards() -> list[Mutant]:
    """The guards of tenants and homes, and those of pulls that concern what waits for a worker."""
    concerned = [mutant for mutant in pulls.MUTANTS if mutant.guard.startswith(("order: ", "interrupted: it"))]
    return [*tenants.MUTANTS, *affinity.MUTANTS, *concerned]
