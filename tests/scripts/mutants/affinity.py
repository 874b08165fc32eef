"""Guards of homes: who gets what, and what is left of homes and sessions."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

_OWN_TESTS = tuple(
    Mutant(guard, caught_by=f"affinity.{test}")
    for guard, test in {
        "affinity: a beginning counts when it comes again": "a_beginning_that_comes_once_is_anybodys",
        "affinity: a beginning goes where it was read before": "a_beginning_that_comes_again_has_a_home",
        "affinity: a home is woken for what comes to it": "an_idle_home_is_woken_for_what_comes_to_it",
        "affinity: a key of another type is left alone": "keys_of_another_type_are_left_alone",
        "affinity: a session stays where its cache is": "turns_of_a_session_go_to_the_worker_of_the_first",
        "affinity: a wake-up reaches the watcher that it was for": "a_wake_up_of_another_watcher_is_passed_on",
        "affinity: a worker that comes back is new": "a_worker_that_comes_back_is_new",
        "affinity: a session that has come meanwhile stays": "what_has_come_since_the_look_stays",
        "affinity: homes spread in an idle fleet": "homes_spread_in_an_idle_fleet",
        "affinity: in its turn another home's is taken after a while": (
            "in_its_tenants_turn_it_goes_to_anybody_after_a_while"
        ),
        "affinity: its own goes first only if its tenant has nothing that has to run soon": (
            "its_own_goes_first_unless_its_tenant_has_something_that_has_to_run_soon"
        ),
        "affinity: what another home is late with goes first if it is near, or has waited for long": (
            "what_will_be_late_soon_goes_to_anybody"
        ),
        "affinity: what has ended is no load": "what_has_ended_is_no_load",
        "affinity: what waits for another is left to it for a second": "an_idle_worker_takes_what_has_waited_long",
        "affinity: what waits for who is lost is anybody's": "who_asks_for_nothing_loses_what_waits",
        "affinity: who has asked meanwhile stays a home": "what_has_come_since_the_look_stays",
        "affinity: who takes it is its home": "an_idle_worker_takes_what_has_waited_long",
        "deregister: who is gone is no home": "what_waits_for_who_leaves_goes_to_anybody",
        "leave: its ticket goes": "a_cancelled_request_leaves_its_sets",
        "order: a clock that is set back holds nothing up": "a_clock_that_is_set_back_holds_nothing_up",
        "order: a key of another type is left alone": "keys_of_another_type_are_left_alone",
        "order: what is freed can be taken at once": "a_worker_that_comes_back_takes_at_once_what_waited_for_it",
        "order: a tenant at its limit hides nobody's interrupted request": (
            "a_tenant_at_its_limit_hides_nobodys_interrupted_request"
        ),
        "order: its ticket goes": "tenants_take_turns_among_what_is_there",
        "order: what waits for a home wakes nobody else": "what_waits_for_a_home_that_is_busy_wakes_nobody",
    }.items()
)
MUTANTS = (
    *_OWN_TESTS,
    Mutant(
        "affinity: it is left to its home for a whole second",
        "local D, W, NEAR, LONG, LATE, URGENT, AHEAD = 1000,",
        "local D, W, NEAR, LONG, LATE, URGENT, AHEAD = 500,",
        caught_by="affinity.an_idle_worker_takes_what_has_waited_long",
    ),
    Mutant(
        "affinity: what another home is late with goes first after a while, too",
        " or young(late, LONG) == 0 then",
        " then",
        caught_by="affinity.what_has_waited_long_goes_to_anybody",
    ),
    Mutant(
        "affinity: what has to run soon goes before its own",
        "if not (first <= now_ms() + URGENT and row.rank > first + W) then",
        "if true then",
        caught_by="affinity.its_own_goes_first_unless_its_tenant_has_something_that_has_to_run_soon",
    ),
    Mutant(
        "affinity: a home that was lost in this call is none",
        "load < LOST and load, nil",
        "load, nil",
        caught_by="affinity.what_comes_as_its_home_starts_again_goes_to_another",
    ),
    Mutant(
        "order: a pick beside those of another lane is not charged to its tenants",
        "if in_turn then made_pick.taken(",
        "if made_pick then made_pick.taken(",
        seed=15,
    ),
    Mutant(
        "order: every pick leaves its set",
        "for i = P.out + 1, #P.picked do",
        "for i = #P.picked, #P.picked do",
        seed=6,
    ),
    Mutant(
        "affinity: what waited for lost homes is freed in bounded calls",
        "room, left = room - freed, left or more",
        "left = left or more",
        caught_by="affinity.what_waited_for_many_lost_homes_is_freed_in_bounded_calls",
    ),
)
