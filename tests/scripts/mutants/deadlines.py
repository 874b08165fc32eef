"""Guards of deadlines that are judged, and of the times that are expected."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant("judge: what an earlier run has done is not known", caught_by=HISTORY),
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
        "  local shared = sharing()\n  if shared then\n    local cost, prompt",
        "  local shared = false\n  if shared then\n    local cost, prompt",
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
        "local first = before + call(",
        "local first = call(",
        "expected.what_arrives_together_counts_for_each_other",
    ),
    Mutant(
        "pace: without workers there is none", caught_by="expected.nobody_can_tell_for_a_paused_lane_or_without_workers"
    ),
    Mutant(
        "pace: nobody knows how long a lane is paused",
        caught_by="expected.nobody_can_tell_for_a_paused_lane_or_without_workers",
    ),
    Mutant(
        "pace: no step of a clock counts, and no time in which nobody looked",
        caught_by="expected.a_clock_that_was_set_back_or_forward_is_not_measured_by",
    ),
    Mutant(
        "pace: an idle fleet does not show how fast it is",
        "if now.busy and before.busy then",
        "if true then",
        "expected.the_time_of_an_idle_fleet_is_that_of_when_it_was_busy",
    ),
)
