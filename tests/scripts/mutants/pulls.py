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
        "choose: a lane that is owed a pick gets no more than its own part",
        "taken < arg.owed[lane] then open",
        "taken < arg.owed[1] then open",
        "pull_rooms.a_lane_that_is_owed_gets_no_more_than_its_own_part",
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
        "release: an interruption is counted",
        caught_by="pull_rooms.what_gave_way_goes_back_to_its_rank_and_is_counted",
    ),
    Mutant(
        "renew: kept output counts if the lease does",
        caught_by="kept.the_output_of_a_running_request_is_found_after_its_worker_is_lost",
    ),
    Mutant(
        "order: what was interrupted is left to its worker",
        "if id and (not till or tonumber(till) <= now_ms()) then",
        "if true then",
        "kept.what_gave_way_is_left_to_the_worker_that_has_it_in_its_cache",
    ),
    Mutant(
        "order: what was interrupted waits for its worker for a while",
        caught_by="kept.it_waits_for_its_worker_for_a_bounded_time",
    ),
    Mutant(
        "order: what was interrupted goes where nothing else is",
        caught_by="kept.any_worker_takes_it_if_nothing_else_is_ready",
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
        "hooks: what becomes ready waits by its rank",
        "n = rank, member, n + 2",
        "n = '0', member, n + 2",
        HISTORY,
        0,
    ),
    Mutant("put back: only what nobody runs", "elseif handed then", "else", HISTORY, 16),
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
        "  while cut and (lanes[PAUSED + cut]",
        "  while cut and (false",
        "pause.what_rests_and_is_not_in_order_yet_holds_up_nobody",
    ),
    Mutant("pause: going on wakes somebody", caught_by="pause.a_lane_that_goes_on_wakes_somebody"),
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
        "take: two entries of one id",
        "local asked = twice or #results",
        "local asked = #results",
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
        8,
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
        4,
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
    Mutant(
        "pull: nobody woken when nothing moved",
        "local moved = #claims + dropped + staged > 0",
        "local moved = true",
        "pull_roles.nobody_is_woken_twice_for_the_same_work",
    ),
    Mutant("pull: counts are written"),
)
