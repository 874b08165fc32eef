"""Guards of tenants: their turns, charges, and what is left of them."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

TAKEN_OUT = tuple(
    Mutant(guard, caught_by=f"tenants.{test}")
    for guard, test in {
        "tenants: a pick is charged": "a_charge_is_settled_by_what_was_used",
        "tenants: a charge is settled by what was used": "a_charge_is_settled_by_what_was_used",
        "tenants: nothing is left of a charge when its entry is removed": "an_entry_that_goes_takes_its_charge_along",
        "tenants: keys of another type are left alone": "keys_of_another_type_are_left_alone",
        "tenants: their number is bounded": "the_number_of_tenants_is_bounded",
        "tenants: who may run one more waits again": "as_many_of_a_tenant_run_as_it_may",
        "tenants: somebody is woken for who may run one more": "as_many_of_a_tenant_run_as_it_may",
        "tenants: nothing is left of turns of who has gone": "a_turn_is_forgotten_once_others_were_charged_as_much",
        "tenants: what was ready before them takes turns too": "what_was_ready_before_tenants_came_is_one_tenants",
        "tenants: who may not run one more is not in turn": "as_many_of_a_tenant_run_as_it_may",
        "tenants: what no tenant may run is not there to be taken": "as_many_of_a_tenant_run_as_it_may",
        "tenants: what has no tenant is charged by its body once that is read": (
            "what_has_no_tenant_costs_the_usual_until_its_body_is_read"
        ),
        "tenants: names without history go one behind the other": ("names_without_history_start_one_behind_the_other"),
        "tenants: what did not run is not charged": "what_does_not_run_is_not_charged",
        "tenants: a charge that nobody settled is given back": (
            "a_charge_that_nobody_settled_is_given_back_at_the_next_pick"
        ),
        "tenants: what was generated stays charged": "what_was_generated_stays_charged_and_the_rest_is_refunded",
        "tenants: who is nearly late goes before few of its tenant": (
            "who_is_nearly_late_goes_first_if_its_tenant_is_little_ahead"
        ),
        "order: what has no deadline of its own hides no deadline": "what_has_no_deadline_of_its_own_hides_no_deadline",
        "order: a look for deadlines goes on where the last stopped": (
            "a_look_for_deadlines_goes_on_where_the_last_stopped"
        ),
        "order: how many wait is known": "each_tenant_has_a_set_of_what_waits_and_nothing_is_left_of_it",
        "leave: it stands in no set any more": "a_cancelled_or_expired_request_leaves_its_tenants_set",
        "set_tenant: the newest values count": "of_what_is_set_of_a_tenant_the_newest_counts",
        "set_tenant: a clock that was set back makes nothing older": "an_operator_sets_a_tenant_whatever_the_clock_was",
        "upkeep: nothing of a tenant is ahead of a clock that was set back": (
            "times_of_tenants_are_not_ahead_of_a_clock_that_was_set_back"
        ),
        "upkeep: a run that is over is charged no more": "the_housekeeping_ends_charges_of_runs_that_are_over",
        "upkeep: a tenant that has gone is forgotten": "nothing_is_left_of_a_tenant_that_has_gone",
        "upkeep: who may run more since its limit was raised waits again": (
            "a_limit_that_is_raised_counts_within_seconds"
        ),
        "upkeep: without tenants nothing is asked": "nothing_is_left_of_a_tenant_that_has_gone",
        "lengths: a limit that runs have exceeded bounds nothing": "a_limit_that_was_exceeded_bounds_no_output",
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
        "start = math.max(tokens or 0, start)",
        "start = tokens or 0",
        "tenants.who_comes_back_starts_a_request_below_the_lowest_that_waits",
    ),
    Mutant(
        "tenants: who comes back has the credit of a request",
        "start = level - cost",
        "start = level",
        "tenants.who_comes_back_starts_a_request_below_the_lowest_that_waits",
    ),
    Mutant(
        "tenants: a name gets its credit once an hour",
        "math.abs(now_ms() - record.credited) >= HOUR_MS",
        "true",
        "tenants.a_tenant_that_sends_little_gets_its_credit_once_an_hour",
    ),
    Mutant(
        "tenants: names without history get no credit",
        "if not has_history(record) then",
        "if false then",
        "tenants.names_without_history_start_one_behind_the_other",
    ),
    Mutant(
        "tenants: what is made up gets what the known get together",
        "level + cost / with",
        "level + cost / UNKNOWN",
        "tenants.names_that_are_made_up_get_as_much_as_the_known_together",
    ),
    Mutant(
        "tenants: who comes does not lower the level for the next",
        "math.max(t.least(lane) or 0, t.number(t.level_field(lane)))",
        "(t.least(lane) or 0)",
        "tenants.many_that_come_at_once_get_the_credit_of_one_request_each",
    ),
    Mutant(
        "tenants: what goes out of turn does not raise the level",
        "t.pass_level(lane, P.reached)",
        "for _, x in ipairs(P.touched) do t.pass_level(lane, x.tokens) end",
        "tenants.what_goes_out_of_turn_does_not_raise_the_level",
    ),
    Mutant(
        "tenants: a turn is kept until its credit is whole again",
        " - MOST_CREDIT / t.record(name).weight",
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
        "x.tokens = x.tokens + cost_of(row) / record.weight",
        "x.tokens = x.tokens + cost_of(row)",
        "tenants.tenants_that_wait_share_by_tokens_for_their_weight",
    ),
    Mutant(
        "tenants: a tenant that was charged goes back to its place",
        "less(x, line[place - 1])",
        "false",
        "tenants.tenants_that_wait_share_by_tokens_for_their_weight",
    ),
    Mutant(
        "tenants: a limit counts what began since it was set",
        "if record.most < math.huge then",
        "if true then",
        "tenants.a_limit_counts_what_began_since_it_was_set",
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
        "tenants: as many of a tenant run at once as it may",
        "if x.record.running >= x.record.most then",
        "if false then",
        "tenants.a_tenant_at_its_limit_takes_nothing_of_another_lane",
    ),
    Mutant(
        "upkeep: a tenant is kept while a charge of its requests is",
        "and settled and not (waits",
        "and not (waits",
        caught_by="tenants.a_tenant_is_kept_while_a_charge_of_its_requests_is",
    ),
    Mutant(
        "tenants: what is held is found where its tenant was forgotten",
        "name ~= '' and tenants() or sharing()",
        "sharing()",
        caught_by="tenants.what_is_held_is_found_where_its_tenant_was_forgotten_meanwhile",
    ),
    Mutant(
        "tenants: one pull looks at a bounded number at their limits",
        "if P.vain > 16 * SCAN then",
        "if false then",
        caught_by="tenants.one_pull_looks_at_a_bounded_number_of_tenants_at_their_limits",
    ),
)
