"""What a pull stages, chooses and takes, and whom it wakes."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant("stage: by deadline", "add[#add + 1] = string.format('%.0f', rank)", "add[#add + 1] = '0'", HISTORY, 0),
    Mutant(
        "stage: without pending rows", "'COUNT', chunk, 'NOACK', 'STREAMS'", "'COUNT', chunk, 'STREAMS'", HISTORY, 0
    ),
    Mutant(
        "stage: bounded in entries",
        "while more and staged < limits.stage_entries and",
        "while more and",
        "pull_stage.staging_is_bounded_in_entries_and_goes_on_with_the_next_call",
    ),
    Mutant(
        "stage: bounded in bytes", " and bytes < limits.stage_bytes do", " do", "pull_stage.staging_is_bounded_in_bytes"
    ),
    Mutant(
        "stage: chunks shrink with large bodies",
        "math.min(chunk * 2, 64, math.floor(65536 / largest))",
        "math.min(chunk * 2, 64)",
        "pull_stage.staging_is_bounded_in_bytes",
    ),
    Mutant(
        "make ready: at the old rank",
        "string.format('%.0f', rank), encode_id(id))\n  return bytes",
        "'0', encode_id(id))\n  return bytes",
        HISTORY,
        0,
    ),
    Mutant("put back: only what nobody runs", "elseif held(lane, id, NOBODY) then", "else", HISTORY, 7),
    Mutant(
        "put back: no longer pending",
        "      call('XACK', lane_key(lane), GROUP, id)\n      back = back + 1\n",
        "      back = back + 1\n",
        HISTORY,
        3,
    ),
    Mutant(
        "put back: counted as staged",
        "      count_staged(lane, id)\n      if fields then make_ready",
        "      if fields then make_ready",
        HISTORY,
        0,
    ),
    Mutant(
        "put back: deleted ones are counted as vanished",
        "make_ready(lane, id, fields) else count('vanished') end",
        "make_ready(lane, id, fields) end",
        "pull_stage.a_hint_deleted_by_hand_is_counted_as_vanished",
    ),
    Mutant("put back: counts as something moved", "staged = staged + back\n", "", HISTORY, 0),
    Mutant(
        "choose: the guaranteed share",
        "return owed or top",
        "return top",
        "pull_choose.lower_lanes_get_their_share_under_sustained_critical_load",
    ),
    Mutant(
        "choose: the greatest debt first",
        "(not owed or credit[lane] > credit[owed])",
        "not owed",
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
    Mutant(
        "choose: credit is kept",
        "  if credit then save_credit(credit) end\n",
        "",
        "pull_choose.lower_lanes_get_their_share_under_sustained_critical_load",
    ),
    Mutant(
        "take: attempts go on counting",
        "local attempt = attempts_in(tries[i] or '') + 1",
        "local attempt = 1",
        HISTORY,
        0,
    ),
    Mutant(
        "take: what ended is not given out",
        "if asked and answered(found.id) then",
        "if false then",
        HISTORY,
        0,
    ),
    Mutant(
        "take: what is late is not given out",
        "elseif found.deadline and found.deadline <= now then\n    bury",
        "elseif false then\n    bury",
        HISTORY,
        1,
    ),
    Mutant(
        "take: to the millisecond",
        "found.deadline <= now then\n    bury",
        "found.deadline < now then\n    bury",
        HISTORY,
        9,
    ),
    Mutant(
        "take: what is too large is not given out",
        "elseif found.bytes > cfg.max_entry_bytes then",
        "elseif false then",
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
        " and bytes < arg.take_bytes do",
        " do",
        "pull_take.one_reply_carries_a_bounded_number_of_bytes",
    ),
    Mutant(
        "take: deleted entries are counted as vanished",
        "      remove_entry(lane, id)\n      count('vanished')\n      dropped",
        "      dropped",
        "pull_take.entries_deleted_by_hand_are_counted_as_vanished",
    ),
    Mutant(
        "pull: who asks for work watches no more",
        "if arg.watching or arg.n > 0 then call('ZREM', WATCH, arg.worker) end",
        "",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: also when the answer was lost",
        "if arg.watching or arg.n > 0 then call('ZREM'",
        "if arg.watching then call('ZREM'",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: housekeeping does not end a watch",
        "if arg.watching or arg.n > 0 then call('ZREM'",
        "if true then call('ZREM'",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: at most so many watch",
        "  if watching < arg.watchers then\n    call('ZADD'",
        "  if true then\n    call('ZADD'",
        HISTORY,
        0,
    ),
    Mutant(
        "pull: dead watchers do not count", "call('ZCOUNT', WATCH, now, '+inf')", "call('ZCARD', WATCH)", HISTORY, 4
    ),
    Mutant(
        "pull: a wake-up without room is handed on",
        "dropped + staged > 0 or arg.owing",
        "dropped + staged > 0",
        "pull_roles.a_wake_up_that_found_no_room_is_handed_on",
    ),
    Mutant(
        "pull: a token for work left behind",
        "if (ready > 0 and moved) or watching < arg.watchers then leave_token() end",
        "if watching < arg.watchers then leave_token() end",
        HISTORY,
        27,
    ),
    Mutant(
        "pull: a token for an empty watch",
        "if (ready > 0 and moved) or watching < arg.watchers then leave_token() end",
        "if ready > 0 and moved then leave_token() end",
        HISTORY,
        5,
    ),
    Mutant(
        "pull: a watcher woken for work left behind",
        "if ready > 0 and moved and watching > 0 then wake_watcher() end\n",
        "",
        HISTORY,
        1,
    ),
    Mutant(
        "pull: nobody woken when nothing moved",
        "local moved = #claims + dropped + staged > 0",
        "local moved = true",
        "pull_roles.nobody_is_woken_twice_for_the_same_work",
    ),
    Mutant(
        "pull: counts are written",
        "if arg.n > 0 then claims, dropped = take(arg, waiting, now) end\nwrite_counts()",
        "if arg.n > 0 then claims, dropped = take(arg, waiting, now) end",
        HISTORY,
        0,
    ),
    Mutant(
        "wake: one token is enough",
        "if call('LLEN', BENCH) == 0 then call('RPUSH', BENCH, '1') end",
        "call('RPUSH', BENCH, '1')",
        HISTORY,
        0,
    ),
    Mutant("wake: one wake-up is enough", "'MAXLEN', 1, '*'", "'*'", HISTORY, 0),
    Mutant(
        "wake: benched ones too",
        "  wake_watcher()\n  leave_token()\n",
        "  wake_watcher()\n",
        "reclaim.work_of_a_silent_worker_is_ready_again_with_its_attempt_counted",
    ),
    Mutant("wake: watchers too", "  wake_watcher()\n  leave_token()\n", "  leave_token()\n", HISTORY, 1),
)
