"""Guards of deadlines that are judged, and of the times that are expected."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "judge: runs of a tenant teach no other's class",
        caught_by="pull_judge.runs_of_a_tenant_teach_no_other_tenants_class",
        argument="b,c",
    ),
    Mutant(
        "lengths: a name may be written with escapes",
        caught_by="pull_judge.a_class_goes_by_the_limit_that_the_engine_takes",
        argument="0",
    ),
    Mutant(
        "lengths: of a name that is given twice, the last counts",
        caught_by="pull_judge.a_class_goes_by_the_limit_that_the_engine_takes",
        argument="0",
    ),
    Mutant(
        "lengths: a limit inside of another field is not the body's",
        caught_by="pull_judge.a_class_goes_by_the_limit_that_the_engine_takes",
        argument="0",
    ),
    Mutant(
        "lengths: a limit is known whatever follows it",
        "#body - rest < MOST_DECODED and pcall",
        "false and pcall",
        "pull_judge.the_limit_of_a_long_body_is_known_whatever_follows_it",
        argument=', "stop": ["a"]',
    ),
    Mutant(
        "lengths: what is no number to Python is none",
        "'^%s*([%d.eE+-]+)%s*$')",
        "'^%s*(.-)%s*$')",
        "pull_judge.a_limit_is_the_number_that_python_reads",
        argument='"0x10"',
    ),
    Mutant(
        "judge: what an earlier run has done is not known",
        caught_by="pull_judge.a_further_attempt_is_not_judged",
    ),
    Mutant(
        "judge: a first attempt that goes on",
        "if attempt > 1 or claimed[8] ~= '' then return class end",
        "if attempt > 1 then return class end",
        "pull_judge.a_run_that_goes_on_is_not_judged_because_it_needs_less",
    ),
    Mutant(
        "judge: what has time starts",
        "if not needed or left >= needed then return class end",
        "if not needed then return class end",
        "pull_judge.what_cannot_be_done_in_time_is_not_started_and_says_so",
    ),
    Mutant(
        "judge: lengths of tenants",
        "local shared, class = sharing(), limit",
        "local shared, class = false, limit",
        "pull_judge.a_tenants_class_is_of_the_lengths_that_it_has_had",
    ),
    Mutant(
        "refuse: what may be in time waits",
        caught_by="expected.what_will_likely_be_late_is_refused_where_it_asks_for_that",
    ),
    Mutant(
        "refuse: an id that has ended is a duplicate",
        "  if answered(entry.id) then return false end\n  local why",
        "  local why",
        "expected.an_id_that_has_a_result_is_a_duplicate_and_not_refused",
    ),
    Mutant(
        "refuse: who arrives together counts",
        "expected.of(lane, deadline, tenant, #rows, more_own)",
        "expected.of(lane, deadline, tenant, 0, 0)",
        "expected.what_arrives_together_counts_for_each_other",
    ),
    Mutant("pace: one that lacks a number is none", caught_by="expected.a_pace_without_all_its_parts_is_unknown"),
    Mutant("pace: one that lacks a lane is none", caught_by="expected.a_pace_without_all_its_parts_is_unknown"),
    Mutant(
        "pace: without workers there is none", caught_by="expected.nobody_can_tell_for_a_paused_lane_or_without_workers"
    ),
    Mutant(
        "pace: nobody knows how long a lane is paused",
        caught_by="expected.nobody_can_tell_for_a_paused_lane_or_without_workers",
    ),
    Mutant(
        "turns: who comes back starts below the others, once an hour",
        caught_by="expected_turns.who_comes_back_goes_first_once_an_hour",
    ),
    Mutant(
        "turns: names without history start one behind the other",
        caught_by="expected_turns.names_without_history_are_told_that_they_go_one_behind_the_other",
    ),
    Mutant("pace: of many homes some stand for all", caught_by="views.of_many_homes_some_stand_for_all"),
    Mutant(
        "turns: those of others come between",
        caught_by="expected_turns.tenants_with_much_alternate_by_their_weights",
    ),
    Mutant(
        "turns: a tenant has no more turns than requests",
        "turns.each * math.min(left, fits)",
        "turns.each * fits",
        "expected_turns.a_tenant_has_no_more_turns_than_requests",
    ),
    Mutant(
        "turns: what stands for several counts as several",
        "turns.each * math.min(left, fits)",
        "math.min(left, fits)",
        "expected_turns.of_many_tenants_some_stand_for_all",
    ),
    Mutant(
        "turns: what a tenant was charged since the look is not charged again",
        "math.max(row[2], math.min(reached, last))",
        "row[2]",
        "expected_turns.turns_that_were_taken_since_the_look_are_over",
    ),
    Mutant(
        "turns: of those that may run at once, one has to end first",
        caught_by="expected_turns.a_tenant_with_as_many_running_as_it_may_waits_for_them",
    ),
    Mutant(
        "turns: those of one call count for each other",
        "(behind or 0) + (stay[same] or 0)",
        "behind or 0",
        "expected_turns.those_of_one_call_wait_behind_each_other_by_turns",
    ),
    Mutant(
        "turns: a pull refuses by them",
        "expected.of(lane, deadline, tenant, #rows, more_own)",
        "expected.of(lane, deadline, nil, #rows, more_own)",
        "expected_turns.turns_decide_who_is_refused",
    ),
    Mutant(
        "pace: who comes with an earlier deadline goes first",
        caught_by="expected_turns.who_comes_with_an_earlier_deadline_goes_first",
    ),
    Mutant(
        "pace: other tenants that send meanwhile have their turns",
        "number, slope = always * ms, always",
        "number, slope = 0, 0",
        "expected_turns.tenants_that_send_meanwhile_have_their_turns",
    ),
)
