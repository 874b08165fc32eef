"""Guards of the rank of programs' turns."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant("program: a deadline that was given stays", caught_by="programs.a_deadline_that_was_given_stays"),
    Mutant("program: close deadlines of others go first", caught_by="programs.close_deadlines_of_others_go_first"),
    Mutant(
        "program: a turn that has waited long goes by its own deadline",
        caught_by="programs.a_turn_with_a_ttl_ends_in_time",
    ),
    Mutant(
        "program: the housekeeping looks for deadlines among ranks to come only",
        caught_by="programs.a_turn_that_comes_back_ends_in_time",
    ),
)
