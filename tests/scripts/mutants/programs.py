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
    Mutant(
        "program: programs are bounded",
        "or kind == 'f' or before",
        "or before",
        caught_by="programs.the_number_of_programs_is_bounded",
    ),
    Mutant(
        "program: a program is known while it is used",
        "or kind == 'f' then return end",
        "then return end",
        caught_by="programs.what_nobody_uses_is_forgotten_and_then_nothing_is_asked",
    ),
)
