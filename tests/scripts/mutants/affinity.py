"""Guards of homes: who gets what, and what is left of homes and sessions."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

_OWN_TESTS = tuple(
    Mutant(guard, caught_by=f"affinity.{test}")
    for guard, test in {
        "affinity: a beginning counts when it comes again": "a_beginning_that_comes_once_is_anybodys",
        "affinity: a beginning goes where it was read before": "a_beginning_that_comes_again_has_a_home",
        "affinity: a clock that is set back holds nothing up": "a_clock_that_is_set_back_holds_nothing_up",
        "affinity: a home is woken for what comes to it": "an_idle_home_is_woken_for_what_comes_to_it",
        "affinity: a session stays where its cache is": "turns_of_a_session_go_to_the_worker_of_the_first",
        "affinity: a worker that asks for nothing loses what waits for it": ("who_asks_for_nothing_loses_what_waits"),
        "affinity: a worker that comes back is new": "a_worker_that_comes_back_is_new",
        "affinity: an idle worker takes what has waited long for another": "an_idle_worker_takes_what_has_waited_long",
        "affinity: a wake-up reaches the watcher that it was for": "a_wake_up_of_another_watcher_is_passed_on",
        "affinity: homes spread in an idle fleet": "homes_spread_in_an_idle_fleet",
        "affinity: its own and nobody's go by deadline": "a_request_without_session_goes_to_anybody_in_order",
        "affinity: keys of another type are left alone": "keys_of_another_type_are_left_alone",
        "affinity: sessions are bounded": "the_number_of_sessions_is_bounded",
        "affinity: sessions that nobody uses are forgotten": "nothing_is_left_of_sessions_that_nobody_uses",
        "affinity: what has ended is no load": "what_has_ended_is_no_load",
        "affinity: what is left over is found": "the_housekeeping_finds_what_was_left_over",
        "affinity: what is ready no more has no home": "a_cancelled_request_leaves_the_index",
        "affinity: what is taken in turn leaves the index": "what_is_taken_in_turn_leaves_the_index",
        "affinity: what stands in no index is taken too": "what_stands_in_no_index_is_taken_too",
        "affinity: what waits for who is lost is anybody's": "who_asks_for_nothing_loses_what_waits",
        "affinity: what was interrupted elsewhere goes first": "what_was_interrupted_elsewhere_goes_first",
        "affinity: what was left over is not taken": "what_somebody_took_out_by_hand_is_left_over_and_dropped",
        "affinity: what was passed over for long goes to anybody": "what_was_passed_over_for_long_goes_to_anybody",
        "affinity: who is behind with the first is behind with the next": (
            "a_home_that_takes_little_holds_nothing_up_beside_busy_workers"
        ),
        "affinity: who takes it is its home": "an_idle_worker_takes_what_has_waited_long",
        "affinity: without sessions nothing is asked": "nothing_is_left_of_sessions_that_nobody_uses",
        "tidy_homes: homes are looked after": "who_asks_for_nothing_loses_what_waits",
        "deregister: who is gone is no home": "what_waits_for_who_leaves_goes_to_anybody",
    }.items()
)
MUTANTS = (
    *_OWN_TESTS,
    Mutant(
        "affinity: a home that was lost in this call is none",
        "load < LOST and load, nil",
        "load, nil",
        caught_by="affinity.what_comes_as_its_home_starts_again_goes_to_another",
    ),
    Mutant(
        "affinity: what is no number is no home",
        "if not number then   -- added by hand",
        "if false then   -- added by hand",
        caught_by="affinity.what_hands_add_to_the_homes_is_taken_out",
    ),
    Mutant(
        "affinity: what no tenant may run is not there to be taken",
        caught_by="affinity.what_no_tenant_may_run_holds_up_no_other_lane",
    ),
    Mutant(
        "affinity: workers come to rest where no tenant may run more",
        "and not shared.least(lane)",
        "and false",
        seed=19,
    ),
    Mutant(
        "affinity: a head that no tenant may run is not looked at",
        "now.open and not now.barred and waiting",
        "now.open and waiting",
        seed=19,
    ),
    Mutant(
        "affinity: what no tenant may run is no work left behind",
        "if waiting[lane] > 0 and at_limits(lane) then waiting[lane] = 0 end",
        "",
        caught_by="affinity.what_no_tenant_may_run_wakes_nobody",
    ),
    Mutant(
        "affinity: of tenants, the next is asked when the first waits for another",
        "(some_interrupted or homing()) and 16 or 0",
        "some_interrupted and 16 or 0",
        caught_by="affinity.a_tenant_that_waits_for_another_holds_up_no_other",
    ),
)
