"""Guards of even filling: who is woken, who watches, and how much is taken at once."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "filling: small steps while others have more room",
        caught_by="filling.steps_are_small_while_a_watcher_has_more_room",
    ),
    Mutant(
        "filling: the emptiest watches", caught_by="filling.a_watcher_that_took_work_makes_way_for_an_emptier_worker"
    ),
    Mutant(
        "filling: a watch that is handed over is counted",
        "return FILLING.watch(other, held, 1500)",
        "return",
        caught_by="filling.a_watch_is_handed_over_without_a_pull",
    ),
    Mutant(
        "filling: a dead worker does not watch for long",
        "FILLING.watch(other, held, 1500)",
        "FILLING.watch(other, held, 7000)",
        caught_by="filling.a_watch_that_was_handed_over_to_a_dead_worker_ends",
    ),
    Mutant(
        "filling: no watch is handed over while something waits",
        "FILLING.wake(arg.calm and watching",
        "FILLING.wake(watching",
        caught_by="filling.who_is_to_watch_while_something_waits_pulls_first",
    ),
    Mutant(
        "filling: no watch is handed over while another one is free",
        "arg.calm and watching + 1 == cfg.watchers",
        "arg.calm",
        caught_by="filling.who_is_to_watch_where_two_watches_are_free_pulls_first",
    ),
    Mutant(
        "filling: what has ended is not held any more",
        caught_by="filling.what_ended_while_its_worker_waits_is_not_held",
    ),
    Mutant(
        "filling: no worker holds less than nothing",
        "local held = score < 0 and score + FILLING.base",
        "local held = score < 0 and FILLING.base",
        "filling.no_worker_holds_less_than_nothing",
    ),
    Mutant(
        "filling: who was woken counts as having taken its part",
        caught_by="filling.who_does_not_come_holds_nobody_up",
    ),
    Mutant(
        "filling: one at least is taken",
        "math.max(1, math.min(arg.n, least",
        "math.max(0, math.min(arg.n, least",
        caught_by="filling.steps_are_small_while_a_watcher_has_more_room",
    ),
    Mutant(
        "filling: what waits for a worker alone is taken at once",
        "wanted = math.max(wanted, math.min(arg.n, TURNS.own()))",
        "wanted = wanted",
        caught_by="filling.what_waits_for_a_worker_alone_is_taken_at_once",
    ),
    Mutant(
        "filling: where a worker's list is of another type, no wake-up is lost",
        "if not (other and wake_alone(other, '1')) then leave_token() end",
        "if other then wake_alone(other, '1') else leave_token() end",
        caught_by="filling.a_wake_up_where_a_workers_list_is_of_another_type_is_for_anybody",
    ),
    Mutant(
        "filling: what has ended is counted where the watch has another type",
        "tonumber(call_if_typed('ZSCORE', WATCH, worker) or nil)",
        "tonumber(call('ZSCORE', WATCH, worker) or nil)",
        "filling.what_has_ended_is_counted_where_the_watch_has_another_type",
    ),
    Mutant(
        "tend_watchers: idle waiters stay known",
        "call('ZREMRANGEBYSCORE', WATCH, 0, now)",
        "call('ZREMRANGEBYSCORE', WATCH, '-inf', now)",
        caught_by="filling.the_housekeeping_leaves_idle_waiters_and_counts_watchers_alone",
    ),
    Mutant(
        "tend_watchers: idle waiters are no watchers",
        "if call('ZCOUNT', WATCH, now, '+inf') < cfg.watchers",
        "if call('ZCARD', WATCH) < cfg.watchers",
        caught_by="filling.the_housekeeping_leaves_idle_waiters_and_counts_watchers_alone",
    ),
    Mutant(
        "pull: who was woken and has no room waits no more",
        "if arg.watching or arg.owing or arg.n > 0 then",
        "if arg.watching or arg.n > 0 then",
        caught_by="filling.who_asks_again_waits_no_more",
    ),
)
