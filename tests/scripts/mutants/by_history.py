"""Guards of tenants and homes that a labelled history notices, and those that only a test of their own does."""

from __future__ import annotations

from tests.scripts.mutants import affinity, pulls, tenants
from tests.scripts.mutants.mutant import Mutant

SEEDS = {
    "tenants: a pick is charged": 1,
    "tenants: a charge is settled by what was used": 1,
    "tenants: nothing is left of a charge when its entry is removed": 1,
    "tenants: who may run one more waits again": 1,
    "tenants: nothing is left of turns of who has gone": 1,
    "tenants: what was ready before them takes turns too": 58,
    "tenants: what is ready no more waits no more": 1,
    "tenants: what was generated stays charged": 1,
    "set_tenant: the newest values count": 1,
    "set_tenant: a clock that was set back makes nothing older": 1,
    "upkeep: a tenant that has gone is forgotten": 1,
    "upkeep: what operators set counts within seconds": 5,
    "upkeep: who may run more since its limit was raised waits again": 1,
    "upkeep: without tenants nothing is asked": 1,
    "tenants: what nobody counted is charged for its time in the engine": 1,
    "tenants: a failed attempt is charged for its time in the engine": 1,
    "retry_later: an attempt is charged whatever becomes of its request": 1,
    "tenants: an answer that nobody counted is charged like all else": 1,
    "tenants: lengths are of a class": 8,
    "tenants: the weight counts": 8,
    "tenants: output of earlier runs is charged once": 1,
    "tenants: lost work is not charged": 1,
    "tenants: what waits for another counts for the limit too": 231,
    "tenants: who got to its limit by picks of another lane takes no more": 22,
    "affinity: a home is woken for what comes to it": 0,
    "affinity: an idle worker takes what has waited long for another": 18,
    "affinity: its own and nobody's go by deadline": 2,
    "affinity: sessions that nobody uses are forgotten": 2,
    "affinity: what is ready no more has no home": 2,
    "affinity: what is taken in turn leaves the index": 0,
    "affinity: what was left over is not taken": 2,
    "affinity: who is behind with the first is behind with the next": 2,
    "affinity: without sessions nothing is asked": 2,
    "tidy_homes: homes are looked after": 2,
    "affinity: workers come to rest where no tenant may run more": 21,
    "pop: an entry that waits for another worker is taken if there is no other": 33,
    "pop: an entry waits for another worker for a bounded time": 58,
    "interrupted: it waits for its worker no longer than its deadline allows": 58,
}
"""Guard to the seed of a history that fails without it."""

UNNOTICED = {
    "hands overwrite keys, which no labelled history does": (
        "tenants: keys of another type are left alone",
        "affinity: keys of another type are left alone",
        "affinity: what is no number is no home",
    ),
    "a history has too few tenants, sessions or entries for the bound": (
        "tenants: their number is bounded",
        "affinity: sessions are bounded",
        "pop: a bounded number of entries is passed over",
    ),
    "of turns, only that the least goes first is compared until the scripts have the order of the model": (
        "tenants: as many of a tenant run at once as it may",
        "tenants: who is nearly late goes before few of its tenant",
        "tenants: who comes back starts at the lowest level",
        "tenants: who comes back has the credit of a request",
        "tenants: who comes does not lower the level for the next",
        "tenants: a turn is kept until its credit is whole again",
        "tenants: a tenant that was charged goes back to its place",
    ),
    "none of the 14 to 84 histories tried notices: they do not come to it, or the housekeeping heals it in time": (
        "tenants: somebody is woken for who may run one more",
        "affinity: a head that no tenant may run is not looked at",
        "tenants: what did not run is not charged",
        "affinity: a worker that asks for nothing loses what waits for it",
        "affinity: a wake-up reaches the watcher that it was for",
        "affinity: what waits for who is lost is anybody's",
        "affinity: what was passed over for long goes to anybody",
        "deregister: who is gone is no home",
        "affinity: what no tenant may run is not there to be taken",
        "affinity: what no tenant may run is no work left behind",
        "affinity: of tenants, the next is asked when the first waits for another",
        "affinity: what was interrupted elsewhere goes first",
        "affinity: a home that was lost in this call is none",
        "upkeep: a tenant is kept while a charge of its requests is",
        "pop: an entry that waits for another worker is passed over",
        "pop: an entry that waits for another worker stays ready",
    ),
    "it mends what stands in a wrong index or charge, and nothing in a history puts it there": (
        "tenants: what stands in no index is taken too",
        "tenants: what is not ready is not charged",
        "tenants: a charge that nobody settled is given back",
        "upkeep: what stands in no index takes turns",
        "upkeep: what is ready no more leaves the index",
        "upkeep: a run that is over is charged no more",
        "affinity: what is left over is found",
        "affinity: what stands in no index is taken too",
    ),
    "which home is chosen is not compared until the scripts have the order of the model": (
        "affinity: a beginning counts when it comes again",
        "affinity: a beginning goes where it was read before",
        "affinity: a session stays where its cache is",
        "affinity: a worker that comes back is new",
        "affinity: homes spread in an idle fleet",
        "affinity: what has ended is no load",
        "affinity: who takes it is its home",
    ),
    "no labelled history sets the clock back": ("affinity: a clock that is set back holds nothing up",),
}
"""Reasons for which no history notices, and the guards of which that is so."""


def guards() -> list[Mutant]:
    """The guards of tenants and homes, and those of pulls that concern what waits for a worker."""
    concerned = [mutant for mutant in pulls.MUTANTS if mutant.guard.startswith(("pop: ", "interrupted: it"))]
    return [*tenants.MUTANTS, *affinity.MUTANTS, *concerned]
