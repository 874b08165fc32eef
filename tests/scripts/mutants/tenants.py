"""Guards of tenants: their turns, charges, and what is left of them."""

from __future__ import annotations

from tests.scripts.mutants.mutant import LABELLED, Mutant

TAKEN_OUT = tuple(
    Mutant(guard, caught_by=f"tenants.{test}")
    for guard, test in {
        "tenants: a pick is charged": "a_charge_is_settled_by_what_was_used",
        "tenants: a charge is settled by what was used": "a_charge_is_settled_by_what_was_used",
        "tenants: nothing is left of a charge when its entry is removed": "an_entry_that_goes_takes_its_charge_along",
        "tenants: keys of another type are left alone": "keys_of_another_type_are_left_alone",
        "tenants: their number is bounded": "the_number_of_tenants_is_bounded",
        "tenants: as many of a tenant run at once as it may": "as_many_of_a_tenant_run_as_it_may",
        "tenants: who may run one more waits again": "as_many_of_a_tenant_run_as_it_may",
        "tenants: somebody is woken for who may run one more": "as_many_of_a_tenant_run_as_it_may",
        "tenants: nothing is left of turns of who has gone": "a_turn_is_forgotten_once_others_were_charged_as_much",
        "tenants: what was ready before them takes turns too": "what_was_ready_before_tenants_came_is_one_tenants",
        "tenants: what is ready no more waits no more": "a_cancelled_or_expired_request_leaves_the_index",
        "tenants: what stands in no index is taken too": "what_stands_in_no_index_is_taken_too",
        "tenants: what is not ready is not charged": "what_is_not_ready_is_neither_taken_nor_charged",
        "tenants: what did not run is not charged": "what_does_not_run_is_not_charged",
        "tenants: a charge that nobody settled is given back": (
            "a_charge_that_nobody_settled_is_given_back_at_the_next_pick"
        ),
        "tenants: what was generated stays charged": "what_was_generated_stays_charged_and_the_rest_is_refunded",
        "tenants: who is nearly late goes before few of its tenant": (
            "who_is_nearly_late_goes_first_if_its_tenant_is_little_ahead"
        ),
        "set_tenant: the newest values count": "of_what_is_set_of_a_tenant_the_newest_counts",
        "set_tenant: a clock that was set back makes nothing older": "an_operator_sets_a_tenant_whatever_the_clock_was",
        "upkeep: what stands in no index takes turns": "what_was_taken_out_of_the_index_takes_turns_again",
        "upkeep: what is ready no more leaves the index": ("nothing_is_left_of_an_index_whose_ready_set_was_deleted"),
        "upkeep: a run that is over is charged no more": "the_housekeeping_ends_charges_of_runs_that_are_over",
        "upkeep: a tenant that has gone is forgotten": "nothing_is_left_of_a_tenant_that_has_gone",
        "upkeep: what operators set counts within seconds": (
            "a_limit_that_is_set_while_requests_run_counts_within_seconds"
        ),
        "upkeep: who may run more since its limit was raised waits again": (
            "a_limit_that_is_raised_counts_within_seconds"
        ),
        "upkeep: without tenants nothing is asked": "nothing_is_left_of_a_tenant_that_has_gone",
    }.items()
)
MUTANTS = (
    *TAKEN_OUT,
    Mutant(
        "tenants: what nobody counted is charged for its time in the engine",
        caught_by="tenants.a_cancelled_run_that_nobody_counted_is_not_free",
    ),
    Mutant(
        "tenants: a failed attempt is charged for its time in the engine",
        caught_by="tenants.each_attempt_is_charged_and_the_one_that_is_answered_too",
    ),
    Mutant(
        "retry_later: an attempt is charged whatever becomes of its request",
        caught_by="tenants.each_attempt_is_charged_and_the_one_that_is_answered_too",
    ),
    Mutant(
        "tenants: an answer that nobody counted is charged like all else",
        "elseif run.waited_ms then",
        "elseif status ~= 'succeeded' and run.waited_ms then",
        "tenants.an_answer_that_nobody_counted_is_charged_for_its_time_in_the_engine",
    ),
    Mutant(
        "tenants: who comes back starts at the lowest level",
        "math.max(tokens or 0, t.level(lane) - credit), true)",
        "tokens or 0, true)",
        "tenants.who_comes_back_starts_at_the_level_of_the_lowest_that_waits",
    ),
    Mutant(
        "tenants: who comes back has the credit of a request",
        "t.level(lane) - credit), true)",
        "t.level(lane)), true)",
        "tenants.a_tenant_that_sends_little_goes_first_each_time",
    ),
    Mutant(
        "tenants: who comes does not lower the level for the next",
        "math.max(t.least(lane) or 0, reached(lane))",
        "(t.least(lane) or 0)",
        "tenants.many_that_come_at_once_get_the_credit_of_one_request_each",
    ),
    Mutant(
        "tenants: a turn is kept until its credit is whole again",
        " - MOST_CREDIT / record.weight",
        "",
        "tenants.a_turn_is_forgotten_once_others_were_charged_as_much",
    ),
    Mutant(
        "tenants: lengths are of a class",
        "local _, at = string.find(record.lengths, ';' .. class",
        "local _, at = string.find(record.lengths, class",
        "tenants.lengths_of_one_limit_are_not_taken_for_those_of_another",
    ),
    Mutant(
        "tenants: the weight counts",
        "return row.cost / record.weight",
        "return row.cost",
        "tenants.tenants_that_wait_share_by_tokens_for_their_weight",
    ),
    Mutant(
        "tenants: a tenant that was charged goes back to its place",
        "queue[place - 1].tokens > tenant.tokens",
        "false",
        "tenants.tenants_that_wait_share_by_tokens_for_their_weight",
    ),
    Mutant(
        "tenants: output of earlier runs is charged once",
        "cost = prompt + output - math.min(charge.kept, tonumber(run.resumed_tokens) or 0)",
        "cost = prompt + output",
        "tenants.what_was_generated_stays_charged_and_the_rest_is_refunded",
    ),
    Mutant(
        "tenants: lost work is not charged",
        "stays = stays or 0",
        "stays = stays or charge.cost",
        "tenants.work_lost_with_a_worker_is_counted_and_not_charged",
    ),
    Mutant(
        "tenants: what waits for another counts for the limit too",
        "#picked < wanted and row.record.running < row.record.most",
        "#picked < wanted",
        LABELLED,
        231,
    ),
    Mutant("tenants: who got to its limit by picks of another lane takes no more", caught_by=LABELLED, seed=22),
    Mutant(
        "upkeep: a tenant is kept while a charge of its requests is",
        "and settled and not (waits",
        "and not (waits",
        caught_by="tenants.a_tenant_is_kept_while_a_charge_of_its_requests_is",
    ),
)
