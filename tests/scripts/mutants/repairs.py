"""Guards of the repair of damage done by hand."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

KEPT = "repair.what_loses_no_body_is_mended_and_every_request_has_one_result"
LOST = "repair.what_lost_its_body_is_counted_and_answered"
LOOK = "repair.looking_changes_nothing_and_says_what_a_repair_would_find"

LABELLED = "repair.what_waits_with_a_label_is_put_in_order"

MUTANTS = (
    *(
        Mutant(f"repair: {guard}", caught_by=LABELLED, argument=argument)
        for guard, argument in (
            ("a ticket goes with what it is for", "home deleted"),
            ("the first of a home is known", "firsts deleted"),
            ("who waits is in turn", "turns deleted"),
            ("the first deadline of a tenant is known", "late deleted"),
            ("what stood in another's set is placed anew", "of a tenant moved to ready"),
            ("those with a label are counted", "numbers wrong"),
            ("it is known that tenants are there", "lanes deleted"),
            ("it is known that homes are there", "lanes deleted"),
            ("who has no tenant is in turn", "turns deleted"),
            ("tickets of what waits for a home stay", "nothing"),
            ("tickets of what waits for no home go", "tickets of others"),
            ("interrupted ones are counted", "interrupted wrong"),
            ("the bytes of what is kept are counted", "kept wrong"),
        )
    ),
    Mutant(
        "repair: what has a tenant and a home stands twice",
        " and (not kind or call('ZSCORE', other, full))",
        "",
        LABELLED,
        argument="with a tenant of a home deleted",
    ),
    Mutant(
        "repair: what has a tenant stands in its sets",
        "if right and stands and",
        "if stands and",
        LABELLED,
        argument="of a tenant moved to ready",
    ),
    Mutant(
        "repair: what is ready stays",
        "if HOOKS.waits(lane, id, fields) or is_delayed",
        "if is_delayed",
        "repair.a_sound_queue_is_left_as_it_is",
    ),
    Mutant(
        "repair: what is delayed stays",
        "or is_delayed(lane, id) or pending_row(lane, id) then return end",
        "or pending_row(lane, id) then return end",
        "repair.a_sound_queue_is_left_as_it_is",
    ),
    Mutant(
        "repair: what runs stays",
        "or is_delayed(lane, id) or pending_row(lane, id) then return end",
        "or is_delayed(lane, id) then return end",
        "repair.a_sound_queue_is_left_as_it_is",
    ),
    Mutant(
        "repair: what is not delivered stays",
        "local function delivered_up_to(lane)\n",
        "local function delivered_up_to(lane)\n  if true then return '9999999999999-0', true end\n",
        "repair.a_sound_queue_is_left_as_it_is",
    ),
    Mutant(
        "repair: what is nowhere is made ready",
        "    local _, _, ended = come_back(lane, id, fields)\n    made",
        "    local ended = 0\n    made",
        KEPT,
        argument="ready set deleted",
    ),
    Mutant(
        "repair: looking makes nothing ready",
        "note('nowhere', entry_name(lane, id))\n  if mend then",
        "note('nowhere', entry_name(lane, id))\n  if true then",
        LOOK,
        argument="ready set deleted",
    ),
    Mutant("repair: somebody is woken", caught_by="repair.an_idle_worker_is_woken_for_what_was_made_ready"),
    Mutant(
        "repair: a lane in bounded calls",
        "while looked < most and bytes < most_bytes do",
        "while looked < most do",
        "repair.one_look_is_bounded_in_entries_and_bytes",
    ),
    Mutant("repair: members in bounded calls", caught_by="repair.one_look_is_bounded_in_entries_and_bytes"),
    Mutant("repair: running ones in bounded calls", caught_by="repair.looking_at_what_runs_is_bounded_in_bytes"),
    Mutant("repair: deleted ones that run go", caught_by=LOST, argument="running entry deleted"),
    Mutant(
        "repair: looking erases nothing that runs",
        "      if mend then erase(lane, after) end\n",
        "      erase(lane, after)\n",
        LOOK,
        argument="running entry deleted",
    ),
    Mutant("repair: deleted ones that wait go", caught_by=LOST, argument="ready entry deleted"),
    Mutant(
        "repair: looking erases nothing that waits",
        "    if not mend then return end\n    remove()\n",
        "    remove()\n",
        LOOK,
        argument="delayed entry deleted",
    ),
    Mutant("repair: what vanished is counted", caught_by=LOST, argument="ready entry deleted"),
    Mutant("repair: what nobody held was never staged", caught_by=LOST, argument="handed-out entry deleted"),
    Mutant(
        "repair: every trace of a deleted one goes", caught_by=LOST, argument="delayed entry made ready, and deleted"
    ),
    Mutant(
        "repair: ready or delayed",
        " and (key == DELAYED or not is_delayed(lane, id)) then return fields end",
        " then return fields end",
        KEPT,
        argument="delayed made ready",
    ),
    Mutant(
        "repair: ready or running",
        "if not row and delivered(lane, id) and",
        "if delivered(lane, id) and",
        KEPT,
        argument="running made ready",
    ),
    Mutant(
        "repair: ready or undelivered",
        "if not row and delivered(lane, id) and",
        "if not row and",
        KEPT,
        argument="undelivered made ready",
    ),
    Mutant(
        "repair: what nobody holds waits on",
        "  if not (row and row[2] == NOBODY) then return remove() end\n",
        "  if true then return remove() end\n",
        KEPT,
        argument="group set back",
    ),
    Mutant("repair: odd members go", caught_by=KEPT, argument="odd members"),
    Mutant("repair: listed, and gone since", caught_by="repair.what_changed_since_it_was_listed_is_left_alone"),
    Mutant("repair: attempts of what is there stay", caught_by="repair.a_sound_queue_is_left_as_it_is"),
    Mutant("repair: attempts of what is gone go", caught_by=KEPT, argument="odd members"),
    Mutant("repair: a group beyond the end", caught_by=KEPT, argument="group set beyond the end"),
    Mutant(
        "repair: looking sets no group",
        "      if mend then call('XGROUP', 'SETID'",
        "      if true then call('XGROUP', 'SETID'",
        LOOK,
        argument="group set beyond the end",
    ),
    Mutant(
        "repair: a group set back",
        "elseif comes_again(lane, last) or held_beyond(lane, last) then",
        "elseif false then",
        KEPT,
        argument="group set back",
    ),
    Mutant(
        "repair: a group set back before anything was staged",
        "comes_again(lane, last) or held_beyond(lane, last)",
        "comes_again(lane, last)",
        "repair.a_group_set_back_while_an_entry_is_on_its_way",
    ),
    Mutant(
        "repair: a group that is gone",
        "call('EXISTS', lane_key(lane)) == 1 and comes_again(lane, '0-0') then",
        "false then",
        KEPT,
        argument="group destroyed",
    ),
    Mutant("keys: of another type", caught_by=KEPT, argument="wake of another type"),
    Mutant(
        "keys: set aside, not deleted",
        "call('RENAME', key, key .. ARGV[3])",
        "call('DEL', key)",
        "repair.a_key_set_aside_keeps_what_it_held",
    ),
    Mutant(
        "keys: looking renames nothing",
        "  if mend then call('RENAME'",
        "  if true then call('RENAME'",
        LOOK,
        argument="dead of another type",
    ),
    Mutant("keys: a result without a status", caught_by=KEPT, argument="results by hand"),
    Mutant("keys: an end of life", caught_by=KEPT, argument="no end of life"),
    Mutant(
        "keys: looking ends no life",
        "    if mend then call('PEXPIRE', key, life) end\n",
        "    call('PEXPIRE', key, life)\n",
        LOOK,
        argument="no end of life",
    ),
    Mutant(
        "keys: not the end of life that there is",
        " and call('PTTL', key) == -1 then",
        " then",
        "repair.a_sound_queue_is_left_as_it_is",
    ),
    Mutant("keys: counters are numbers", caught_by=KEPT, argument="odd counters"),
    Mutant(
        "vanish: not what stands",
        "or is_tracked(lane, id, request_id) then return 0 end",
        "then return 0 end",
        "repair.a_request_is_given_up_as_vanished_only_when_it_can_never_run",
    ),
    Mutant(
        "vanish: not what runs",
        "  return not pending.err and pending[1]\n",
        "  return false\n",
        "repair.a_request_is_given_up_as_vanished_only_when_it_can_never_run",
    ),
    Mutant(
        "vanish: not what has ended",
        "or answered(request_id) or is_tracked",
        "or is_tracked",
        "repair.a_sound_queue_is_left_as_it_is",
    ),
    Mutant(
        "vanish: looking ends nothing",
        "  if ARGV[2] == '1' then\n    local message",
        "  if true then\n    local message",
        "repair.a_request_is_given_up_as_vanished_only_when_it_can_never_run",
    ),
    Mutant("vanish: in bounded calls", caught_by="repair.looking_for_who_waits_in_vain_is_bounded_in_bytes"),
    Mutant(
        "vanish: another request at its place is another",
        "return entry.id == request_id",
        "return true",
        "repair.another_request_in_the_place_of_a_deleted_one_does_not_stand_for_it",
    ),
    Mutant(
        "balance: what the streams know of",
        "truth = math.max(truth, added + counter('forgotten'))",
        "truth = truth",
        LOST,
        argument="undelivered entry deleted",
    ),
    Mutant(
        "balance: not by counters that were deleted",
        "if added and staged >= mirror then",
        "if added then",
        "repair.deleted_counters_make_nothing_vanish",
    ),
    Mutant(
        "balance: what skipped the staging",
        "local truth = math.max(seen, known)",
        "local truth = seen",
        KEPT,
        argument="counts deleted",
    ),
    Mutant(
        "balance: not while it does not fit", caught_by="repair.counters_are_left_alone_while_the_rest_does_not_fit"
    ),
    Mutant(
        "balance: a deleted lane is remembered",
        "added and truth - added - counter('forgotten') or 0",
        "0",
        LOST,
        argument="lane deleted",
    ),
    Mutant(
        "info: not behind the last stream id",
        caught_by="repair.the_last_stream_id_that_there_can_be_is_looked_at_as_any",
    ),
)
