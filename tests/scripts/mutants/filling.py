"""Guards of the directory of who waits: who watches, who is woken, and how much is taken at once."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "filling: small steps while others have more room",
        caught_by="filling.steps_are_small_while_a_watcher_has_more_room",
    ),
    Mutant(
        "filling: one at least is taken",
        "math.max(1, math.min(arg.n, first",
        "math.max(0, math.min(arg.n, first",
        caught_by="filling.steps_are_small_while_a_watcher_has_more_room",
    ),
    Mutant(
        "filling: what waits for a worker alone is taken at once",
        "wanted = math.max(wanted, math.min(arg.n, TURNS.own()))",
        "wanted = wanted",
        caught_by="filling.what_waits_for_a_worker_alone_is_taken_at_once",
    ),
    Mutant(
        "filling: what has ended is not held any more",
        caught_by="filling.what_ended_while_its_worker_waits_is_not_held",
    ),
    Mutant(
        "filling: no worker holds less than nothing",
        "math.min(score % NO_SLOT, number)",
        "number",
        "filling.no_worker_holds_less_than_nothing",
    ),
    Mutant(
        "filling: what has ended is counted where the directory has another type",
        "tonumber(call_if_typed('ZSCORE', WAITING, worker) or nil)",
        "tonumber(call('ZSCORE', WAITING, worker) or nil)",
        "filling.what_has_ended_is_counted_where_the_directory_has_another_type",
    ),
    Mutant("pull: who asks for work waits no more", caught_by="pull_roles.who_got_all_it_asked_for_waits_no_more"),
    Mutant(
        "pull: who was woken and has no room waits no more",
        "if arg.owing or arg.n > 0 then",
        "if arg.n > 0 then",
        caught_by="filling.who_asks_again_waits_no_more",
    ),
    Mutant(
        "pull: also when the answer was lost",
        "if arg.owing or arg.n > 0 then",
        "if arg.owing then",
        "pull_roles.a_watcher_that_does_not_know_its_role_gets_it_again",
    ),
    Mutant(
        "pull: staging ends no wait",
        "if arg.owing or arg.n > 0 then",
        "if true then",
        "pull_roles.staging_alone_gives_no_role_and_takes_none",
    ),
    Mutant(
        "pull: what was dropped may have held up others",
        " or dropped > 0 and ready > 0",
        "",
        "tenants.who_drops_a_request_of_a_tenant_at_its_limit_pulls_again",
    ),
    Mutant(
        "roles: only so many watch",
        "own < bound and watching < cfg.watchers and",
        "own < bound and",
        "pull_roles.at_most_so_many_watch_and_the_others_wait",
    ),
    Mutant(
        "roles: nobody watches beside one with more room",
        "waits and own < bound and",
        "waits and",
        "pull_rooms.nobody_that_is_full_watches_where_an_idle_worker_does",
    ),
    Mutant(
        "roles: the emptiest watches",
        " and not emptier_waits(own, watching)",
        "",
        "filling.a_watcher_that_took_work_makes_way_for_an_emptier_worker",
    ),
    Mutant(
        "roles: a watch that has ended counts no more",
        "call('ZRANGEBYSCORE', WATCH, now_ms(), '+inf')",
        "call('ZRANGE', WATCH, 0, -1)",
        "pull_roles.a_watch_that_was_not_renewed_counts_no_more",
    ),
    Mutant(
        "roles: who has less room makes way at once, so that a full worker never wins against an idle one",
        caught_by="pull_rooms.full_workers_make_way_for_an_idle_one_at_once",
    ),
    Mutant(
        "tend_waiting: dead watchers are replaced",
        ", watching < cfg.watchers and bound or 0)",
        ", 0)",
        "filling.the_housekeeping_replaces_watches_that_have_ended",
    ),
    Mutant(
        "roles: each of those that make way is told",
        "'MAXLEN', cfg.watchers,",
        "'MAXLEN', 1,",
        "pull_rooms.full_workers_make_way_for_an_idle_one_at_once",
    ),
    Mutant(
        "roles: who would have to interrupt makes way",
        "(got < arg.free and 0 or NO_SLOT)",
        "0",
        "pull_rooms.who_would_have_to_interrupt_watches_only_where_nobody_has_a_free_slot",
    ),
    Mutant(
        "roles: who has room for more lanes comes first",
        "(LANE_COUNT - lanes_open) * NO_ROOM",
        "(lanes_open == LANE_COUNT and 0 or 3) * NO_ROOM",
        "pull_rooms.who_has_a_free_slot_for_more_lanes_watches",
    ),
    Mutant(
        "roles: what was said before this pull counts no more",
        caught_by="pull_roles.what_was_said_before_a_pull_counts_no_more",
    ),
    Mutant(
        "wake: a watch that has ended counts no more",
        "or 0) >= now_ms() end",
        "or 0) > 0 end",
        "pull_rooms.full_workers_do_not_wake_each_other_for_what_a_dead_watcher_could_take",
    ),
    Mutant(
        "pull: a free watch is handed on", caught_by="pull_roles.a_watcher_that_takes_work_gives_its_watch_to_another"
    ),
    Mutant("watch: one that is handed over is counted", caught_by="filling.a_watch_is_handed_over_without_a_pull"),
    Mutant(
        "watch: a dead worker does not watch for long",
        "now_ms() + 1500",
        "now_ms() + 7000",
        caught_by="filling.a_watch_that_was_handed_over_to_a_dead_worker_ends",
    ),
    Mutant(
        "watch: none is handed over while something waits",
        "hand_watch(bound, calm)",
        "hand_watch(bound, true)",
        caught_by="filling.who_is_to_watch_while_something_waits_pulls_first",
    ),
    Mutant(
        "watch: none is handed to a full worker beside an idle one",
        "hand_watch(bound, calm)",
        "hand_watch(math.huge, calm)",
        "pull_rooms.an_idle_worker_hands_no_watch_to_a_full_one",
    ),
    Mutant(
        "pull: somebody is woken for work left behind",
        "local woken = left and (moved or arg.owing) and wake(left)",
        "local woken = false",
        "pull_roles.work_left_behind_wakes_one_that_waits",
    ),
    Mutant(
        "pull: a wake-up without room is handed on",
        "left and (moved or arg.owing) and",
        "left and moved and",
        "pull_roles.a_wake_up_that_found_no_room_is_handed_on",
    ),
    Mutant(
        "wake: nobody without room",
        "(LANE_COUNT - lane + 1) * NO_ROOM",
        "math.huge",
        "pull_rooms.full_workers_do_not_wake_each_other_for_what_none_can_take",
    ),
    Mutant(
        "wake: a full worker hears of urgent requests",
        "(LANE_COUNT - lane + 1) * NO_ROOM",
        "NO_ROOM",
        "pull_rooms.a_worker_full_of_patient_requests_is_woken_for_an_urgent_one",
    ),
    Mutant(
        "wake: who was woken counts as having taken its part",
        caught_by="filling.who_was_woken_counts_as_having_taken_its_part",
    ),
    Mutant(
        "wake: who does not come is passed over",
        caught_by="pull_roles.a_worker_has_one_token_and_who_does_not_come_for_it_is_passed_over",
    ),
    Mutant(
        "wake: one token is enough",
        "redis.pcall('LLEN', list) ~= 0",
        "type(redis.pcall('LLEN', list)) ~= 'number'",
        "pull_roles.a_worker_has_one_token_and_who_does_not_come_for_it_is_passed_over",
    ),
    Mutant(
        "wake: where a worker's list is of another type, no wake-up is lost",
        "redis.pcall('LLEN', list) ~= 0",
        "redis.pcall('LLEN', list) == 1",
        caught_by="filling.a_worker_whose_list_is_of_another_type_is_passed_over",
    ),
    Mutant(
        "wake: no more wake-ups than may watch",
        "'MAXLEN', cfg.watchers, '*'",
        "'*'",
        "pull_roles.there_are_no_more_wake_ups_than_workers_that_may_watch",
    ),
    Mutant(
        "tend_waiting: dead watchers are struck off",
        caught_by="filling.the_housekeeping_replaces_watches_that_have_ended",
    ),
    Mutant(
        "tend_waiting: who is dead is not woken", caught_by="filling.the_housekeeping_replaces_watches_that_have_ended"
    ),
    Mutant(
        "tend_waiting: watches of a clock that was set back end",
        caught_by="retry_later.watches_of_a_clock_that_was_set_back_end",
    ),
    Mutant(
        "tend_waiting: those that watch are dead if nobody has heard a wake-up",
        caught_by="retry_later.those_that_watch_and_do_not_come_are_replaced_within_a_second",
    ),
    Mutant(
        "tend_waiting: others live where one has died that heard a wake-up",
        "if not heard then strike_off",
        "if true then strike_off",
        "retry_later.one_that_dies_with_a_wake_up_ends_no_other_watch",
    ),
    Mutant(
        "tend_waiting: who comes for a wake-up keeps its watch",
        "(tonumber(said[2][2]) or 0)) > UNHEARD_MS",
        "(tonumber(said[2][2]) or 0)) >= 0",
        "retry_later.those_that_watch_and_do_not_come_are_replaced_within_a_second",
    ),
    Mutant(
        "tend_waiting: work is said again to those that watch",
        caught_by="retry_later.a_tick_says_again_that_work_waits",
    ),
    Mutant(
        "tend_waiting: who asks is woken, however many have died",
        caught_by="retry_later.who_does_the_housekeeping_is_woken_behind_many_that_have_died",
    ),
    Mutant(
        "tend_waiting: nobody is told beside one with more room, who may be on its way",
        caught_by="retry_later.a_tick_tells_no_full_worker_while_an_idle_one_is_on_its_way",
    ),
    Mutant("tend_waiting: somebody else is woken", caught_by="retry_later.a_tick_says_again_that_work_waits"),
    Mutant(
        "tend_waiting: who waits and is not known says so",
        caught_by="retry_later.workers_that_are_in_no_directory_are_woken_within_ten_seconds",
    ),
)
