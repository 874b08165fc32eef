"""Guards of pulls: what a pull stages, chooses and takes, and whom it wakes."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant(
        "choose: nothing of a lane that the worker has no room for",
        "local open = taken < arg.rooms[lane]",
        "local open = true",
        "pull_rooms.what_others_got_counts_for_the_room_of_a_lane",
    ),
    Mutant(
        "choose: nothing of the only lane either",
        "math.min(wanted, waiting[only], arg.rooms[only] - taken)",
        "math.min(wanted, waiting[only])",
        "pull_rooms.the_only_lane_that_waits_has_its_room_too",
    ),
    Mutant(
        "roles: nobody listens where somebody watches",
        "elseif watching == 0 and (listening == 0",
        "elseif (listening == 0",
        "pull_rooms.nobody_listens_where_an_idle_worker_watches",
    ),
    Mutant(
        "roles: two listeners at most",
        "arg.free > got and free < cfg.watchers) then",
        "arg.free > got) then seat = seat or 'listener:1'",
        "pull_rooms.a_full_worker_listens_while_nobody_watches",
    ),
    Mutant(
        "roles: nobody who would have to interrupt listens where others have a free slot",
        "or arg.free > got and free < cfg.watchers",
        "or listening < cfg.watchers",
        "pull_rooms.who_would_have_to_interrupt_listens_only_where_nobody_has_a_free_slot",
    ),
    Mutant(
        "roles: one that has died makes way once",
        "return taken, free, full or empty",
        "return taken, free, empty or full",
        "pull_rooms.a_listener_without_a_free_slot_that_has_died_makes_way_once",
    ),
    Mutant(
        "roles: a listener without a free slot makes way for one that has one",
        caught_by="pull_rooms.who_would_have_to_interrupt_listens_only_where_nobody_has_a_free_slot",
    ),
    Mutant(
        "roles: its seat too",
        "return taken, free, full or empty",
        "return taken, free, full and 'listener:2' or empty",
        "pull_rooms.who_has_a_free_slot_takes_the_seat_of_one_that_has_none",
    ),
    Mutant(
        "choose: a lane that is owed a pick gets a free slot",
        "if not open and top and",
        "if false and",
        "pull_rooms.a_lane_that_is_owed_gets_a_free_slot_while_others_want_more_than_there_is",
    ),
    Mutant(
        "choose: only while others want more than there is",
        "open = before > arg.rooms[top] - taken and credit",
        "open = credit",
        "pull_rooms.a_lane_that_is_owed_leaves_room_for_all_that_wait_before_it",
    ),
    Mutant(
        "roles: the seat of who is gone is free",
        " and tonumber(till) > now then",
        " then",
        "pull_rooms.a_listener_that_is_gone_loses_its_seat",
    ),
    Mutant(
        "roles: full workers do not wake each other without an end",
        "(moved or arg.owing and arg.n == 0)",
        "(moved or arg.owing)",
        "pull_rooms.full_workers_do_not_wake_each_other_for_what_none_can_take",
    ),
    Mutant(
        "roles: a seat that is given up is free",
        caught_by="pull_rooms.who_has_no_room_left_gives_its_seat_to_a_stand_by",
    ),
    Mutant(
        "roles: somebody else with room for urgent work takes over",
        caught_by="pull_rooms.what_is_left_behind_wakes_a_stand_by",
    ),
    Mutant(
        "release: an interruption is counted",
        caught_by="pull_rooms.what_gave_way_goes_back_to_its_rank_and_is_counted",
    ),
    Mutant(
        "renew: kept output counts if the lease does",
        caught_by="kept.the_output_of_a_running_request_is_found_after_its_worker_is_lost",
    ),
    Mutant(
        "pop: an entry that waits for another worker is passed over",
        "local stays = id and passed < 16 and waits_for_another(lane, id, worker)",
        "local stays = false",
        "kept.what_gave_way_is_left_to_the_worker_that_has_it_in_its_cache",
    ),
    Mutant(
        "pop: an entry that waits for another worker is taken if there is no other",
        caught_by="kept.any_worker_takes_it_if_nothing_else_is_ready",
    ),
    Mutant(
        "pop: an entry that waits for another worker stays ready",
        caught_by="kept.what_gave_way_is_left_to_the_worker_that_has_it_in_its_cache",
    ),
    Mutant(
        "pop: a bounded number of entries is passed over",
        "id and passed < 16 and",
        "id and",
        "kept.a_bounded_number_is_passed_over",
    ),
    Mutant(
        "pop: an entry waits for another worker for a bounded time",
        " and tonumber(ms) > now_ms()",
        "",
        "kept.it_waits_for_its_worker_for_a_bounded_time",
    ),
    Mutant(
        "interrupted: it waits for its worker no longer than its deadline allows",
        "deadline and (deadline - now_ms()) / 4 or HOME_MS",
        "HOME_MS",
        "kept.it_waits_for_its_worker_for_a_quarter_of_the_time_to_its_deadline",
    ),
    Mutant(
        "interrupted: forgotten with the entry",
        caught_by="pull_rooms.nothing_is_left_of_its_interruptions_when_it_has_ended",
    ),
    Mutant(
        "interrupted: the bytes of what is kept are known",
        caught_by="kept.the_next_run_finds_the_output_of_the_last_one",
    ),
    Mutant("kept: what counts no more is deleted", caught_by="kept.nothing_is_left_when_the_request_has_ended"),
    Mutant(
        "kept: the output of a worker without the lease is deleted",
        caught_by="kept.output_of_a_worker_without_the_lease_is_not_what_counts",
    ),
    Mutant(
        "kept: what counts is not deleted with a second release",
        "if run and string.match(interruptions(lane, id), '^%d+ (%S+)') ~= run then",
        "if run then",
        "kept.a_release_that_is_sent_twice_deletes_no_output",
    ),
    Mutant("vanish: interruptions are forgotten", caught_by="kept.nothing_is_left_of_a_request_that_vanished"),
    Mutant(
        "interrupted: their number is kept",
        caught_by="pull_rooms.nothing_is_left_of_its_interruptions_when_it_has_ended",
    ),
    Mutant("stage: by deadline", "      add[#add + 1] = rank\n", "      add[#add + 1] = '0'\n", HISTORY, 0),
    Mutant(
        "stage: without pending rows", "'COUNT', chunk, 'NOACK', 'STREAMS'", "'COUNT', chunk, 'STREAMS'", HISTORY, 0
    ),
    Mutant(
        "stage: bounded in entries",
        "if staged >= limits.stage_entries or bytes",
        "if bytes",
        "pull_stage.staging_is_bounded_in_entries_and_goes_on_with_the_next_call",
    ),
    Mutant(
        "stage: bounded in bytes",
        " or bytes >= cfg.copied_bytes or",
        " or",
        "pull_stage.staging_is_bounded_in_bytes",
    ),
    Mutant(
        "stage: chunks are bounded before sizes are known",
        "math.min(64, MOST_UNSEEN, ",
        "math.min(64, ",
        "pull_stage.no_more_is_read_at_once_than_is_bounded_if_all_of_it_is_as_large_as_may_be",
    ),
    Mutant(
        "take: rounds are bounded before sizes are known",
        "math.min(round * 4, 128, MOST_UNSEEN, fitting)",
        "math.min(round * 4, 128, fitting)",
        "pull_stage.no_more_is_read_at_once_than_is_bounded_if_all_of_it_is_as_large_as_may_be",
    ),
    Mutant(
        "stage: chunks shrink with large bodies",
        "math.min(64, MOST_UNSEEN, math.floor(CHUNK_BYTES / largest))",
        "math.min(64)",
        "pull_stage.staging_is_bounded_in_bytes",
    ),
    Mutant(
        "make ready: at the old rank",
        "ready_key(lane), rank, encode_id(id))",
        "ready_key(lane), '0', encode_id(id))",
        HISTORY,
        0,
    ),
    Mutant("put back: only what nobody runs", "elseif handed then", "else", HISTORY, 7),
    Mutant("put back: no longer pending", seed=3),
    Mutant("put back: counted as staged"),
    Mutant(
        "put back: deleted ones are counted as vanished",
        "+ added, ended + gone\n      else\n        count('vanished')\n      end",
        "+ added, ended + gone\n      end",
        "pull_stage.a_hint_deleted_by_hand_is_counted_as_vanished",
    ),
    Mutant("put back: counts as something moved"),
    Mutant(
        "choose: the guaranteed share",
        "return owed or top",
        "return top",
        "pull_choose.lower_lanes_get_their_share_under_sustained_critical_load",
    ),
    Mutant(
        "choose: the greatest debt first",
        "(not owed or credit[lane] > credit[owed]) then",
        "not owed then",
        "pull_choose.the_greatest_debt_is_paid_first_and_debts_are_bounded",
    ),
    Mutant(
        "choose: debts are bounded",
        "math.min(credit[lane] + shares[lane], 2000)",
        "credit[lane] + shares[lane]",
        "pull_choose.the_greatest_debt_is_paid_first_and_debts_are_bounded",
    ),
    Mutant(
        "choose: nothing saved up while empty",
        "waiting[lane] > 0 and math.min(credit[lane] + shares[lane], 2000) or 0",
        "math.min(credit[lane] + shares[lane], 2000)",
        "pull_choose.a_lane_saves_up_nothing_while_others_wait_without_it",
    ),
    Mutant(
        "choose: nothing of a paused lane", caught_by="pause.nothing_is_taken_from_a_paused_lane_and_the_others_go_on"
    ),
    Mutant(
        "pause: who finds only paused lanes waits",
        caught_by="pause.who_finds_only_paused_lanes_waits_like_one_who_finds_nothing",
        mark="choose: nothing of a paused lane",
    ),
    Mutant(
        "take: what rests and is not in order yet holds up nobody",
        "  while cut and (lanes[known.paused + cut]",
        "  while cut and (false",
        "pause.what_rests_and_is_not_in_order_yet_holds_up_nobody",
    ),
    Mutant("pause: going on wakes somebody", caught_by="pause.a_lane_that_goes_on_wakes_watchers_and_the_bench"),
    Mutant(
        "pause: since the first time",
        "if pause and not paused then",
        "if pause then",
        "pause.asked_again_nothing_changes",
    ),
    Mutant(
        "choose: one lane alone ends all debts",
        "if picked > 0 then credit[lane] = 0 end",
        "credit[lane] = credit[lane] + shares[lane] * picked",
        "pull_choose.a_lane_saves_up_nothing_while_it_is_empty",
    ),
    Mutant(
        "choose: a debt that is owed is not forgotten",
        "and credit[only] <= 1000 - shares[only] then",
        "then",
        "pull_choose.a_lane_alone_pays_its_debt_pick_by_pick",
    ),
    Mutant("choose: credit is kept", caught_by="pull_choose.lower_lanes_get_their_share_under_sustained_critical_load"),
    Mutant(
        "take: nothing in place of what is not in order yet",
        caught_by="pull_choose.a_flood_that_is_not_in_order_yet_is_not_passed_by_what_is_less_urgent",
    ),
    Mutant(
        "take: also where it may not ask for many results at once",
        "redis.pcall('EXISTS', unpack(results))",
        "call('EXISTS', unpack(results))",
        "refusals.a_pull_that_may_not_ask_for_many_results_at_once_asks_one_by_one",
    ),
    Mutant(
        "take: two entries of one id",
        "local asked = twice or there",
        "local asked = there",
        "refusals.the_second_entry_of_an_id_that_ends_in_the_same_pull_is_not_given_out",
    ),
    Mutant(
        "take: attempts go on counting",
        "{lane, id, record and attempts_in(record) + 1 or 1, request_id",
        "{lane, id, 1, request_id",
        HISTORY,
        0,
    ),
    Mutant(
        "take: fields are those of its lane",
        "arrived[lane]",
        "arrived[1]",
        "pull_take.entries_with_one_stream_id_in_two_lanes_keep_their_own_fields",
    ),
    Mutant(
        "take: what ended is not given out",
        "if asked and answered(request_id) then",
        "if false then",
        HISTORY,
        0,
    ),
    Mutant(
        "take: what is late is not given out",
        "if not unfit(size, deadline) then return true end",
        "if true then return true end",
        HISTORY,
        2,
    ),
    Mutant(
        "take: to the millisecond",
        "if deadline and deadline <= now_ms() then return 'expired'",
        "if deadline and deadline < now_ms() then return 'expired'",
        HISTORY,
        1,
    ),
    Mutant(
        "take: what is too large is not given out",
        "if bytes > cfg.max_entry_bytes then",
        "if false then",
        HISTORY,
        0,
    ),
    Mutant(
        "take: drops are bounded",
        " and dropped < arg.n + 64 and",
        " and",
        "pull_take.drops_of_one_call_are_bounded_and_the_rest_is_not_forgotten",
    ),
    Mutant(
        "take: bytes are bounded",
        " and bytes < cfg.taken_bytes do",
        " do",
        "pull_take.one_reply_carries_a_bounded_number_of_bytes",
    ),
    Mutant(
        "take: deleted entries are counted as vanished",
        "    if not row then\n      remove_entry(lane, id)\n      count('vanished')\n",
        "    if not row then\n",
        "pull_take.entries_deleted_by_hand_are_counted_as_vanished",
    ),
    Mutant("pull: who asks for work watches no more"),
    Mutant(
        "pull: also when the answer was lost",
        "if arg.watching or arg.owing or arg.n > 0 then call('ZREM'",
        "if arg.watching or arg.owing then call('ZREM'",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: housekeeping does not end a watch",
        "if arg.watching or arg.owing or arg.n > 0 then call('ZREM'",
        "if true then call('ZREM'",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: at most so many watch",
        "local watches = watching < cfg.watchers",
        "local watches = true",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: dead watchers do not count", "call('ZCOUNT', WATCH, now, '+inf')", "call('ZCARD', WATCH)", HISTORY, 4
    ),
    Mutant(
        "pull: a wake-up without room is handed on",
        "local owing = moved or arg.owing",
        "local owing = moved",
        "pull_roles.a_wake_up_that_found_no_room_is_handed_on",
    ),
    Mutant(
        "pull: a token for work left behind",
        "if (ready > 0 and owing) or watching < cfg.watchers then\n",
        "if watching < cfg.watchers then\n",
        "filling.of_the_idle_waiters_the_emptiest_is_woken_first",
    ),
    Mutant(
        "pull: a token for an empty watch",
        "if (ready > 0 and owing) or watching < cfg.watchers then\n",
        "if ready > 0 and owing then\n",
        HISTORY,
        14,
    ),
    Mutant("pull: a watcher woken for work left behind", seed=1),
    Mutant(
        "pull: nobody woken when nothing moved",
        "local moved = #claims + dropped + staged > 0",
        "local moved = true",
        "pull_roles.nobody_is_woken_twice_for_the_same_work",
    ),
    Mutant("pull: counts are written"),
    Mutant(
        "wake: one token is enough",
        "if call('LLEN', BENCH) == 0 then call('RPUSH', BENCH, '1') end",
        "call('RPUSH', BENCH, '1')",
        HISTORY,
        0,
    ),
    Mutant("wake: one wake-up is enough", "'MAXLEN', 1, '*'", "'*'", HISTORY, 0),
    Mutant(
        "wake: idle waiters too", caught_by="reclaim.work_of_a_silent_worker_is_ready_again_with_its_attempt_counted"
    ),
    Mutant("wake: watchers too", seed=1),
)
