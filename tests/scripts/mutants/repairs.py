"""Guards of what compares a queue's keys and makes them anew."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

KEPT = "repair.what_loses_no_body_is_mended_and_every_request_has_one_result"
LOST = "repair.what_lost_its_body_is_counted_and_answered"
LOOK = "repair.looking_changes_nothing_and_says_what_a_repair_would_find"
SOUND = "repair.a_sound_queue_is_left_as_it_is"
COMPARED = "reconcile.a_comparison_finds_what_contradicts_itself"
EXAMINED = "reconcile.an_examination_finds_what_has_not_its_one_place"
IN_PARTS = "reconcile.the_sets_of_a_lane_are_made_anew_in_parts_beside_pulls"
KNOWN = "reconcile.a_queue_knows_again_that_it_has_tenants_and_homes"

MUTANTS = (
    *(
        Mutant(f"compare: {guard}", caught_by=COMPARED, argument=argument)
        for guard, argument in (
            ("each delivered entry has one place", "no place"),
            ("what waits with a label is counted", "numbers"),
            ("who waits for a home has a ticket", "tickets"),
            ("a home for which nothing waits has no first", "first of nothing"),
            ("a set of another type goes", "type"),
            ("interrupted ones are counted", "interrupted"),
            ("the bytes of what is kept are counted", "kept"),
            ("counters are numbers", "counters"),
        )
    ),
    *(
        Mutant(f"reconcile: {guard}", caught_by=EXAMINED, argument=argument)
        for guard, argument in (
            ("what is nowhere waits", "ready"),
            ("who waits is in turn", "turns"),
            ("the first of a home is known", "firsts"),
            ("what waits for a home waits for one that there is", "loads"),
            ("what has a tenant and a home stands twice", "of a home and a tenant"),
            ("what has a tenant stands in its sets", "without its label"),
            ("what runs or is delayed does not wait", "what runs"),
            ("what runs, or is not delivered, is not delayed", "running and delayed"),
            ("tickets are of those that need one", "ticket"),
        )
    ),
    Mutant(
        "set aside: what is gone, or right again, is left alone",
        "  if not (kind == 'none' or right) then",
        "  if true then",
        "repair.a_key_that_is_right_again_is_not_set_aside",
    ),
    Mutant("reconcile: who has a limit is known", caught_by="reconcile.a_tenant_at_its_limit_is_not_put_in_turn"),
    Mutant("compare: it is known that tenants are there", caught_by=KNOWN),
    Mutant("compare: it is known that homes are there", caught_by=KNOWN),
    Mutant("compare: a group beyond the end", caught_by=KEPT, argument="group set beyond the end"),
    Mutant(
        "compare: looking sets no group",
        "      if mend then call('XGROUP', 'SETID'",
        "      if true then call('XGROUP', 'SETID'",
        LOOK,
        argument="group set beyond the end",
    ),
    Mutant(
        "compare: a group set back",
        "  if back then note(group",
        "  if false then note(group",
        KEPT,
        argument="group set back",
    ),
    Mutant(
        "compare: a group set back before anything was staged",
        "held and encode_id(held) > encode_id(last) or staged",
        "staged",
        "repair.a_group_set_back_while_an_entry_is_on_its_way",
    ),
    Mutant(
        "compare: not while it does not fit", caught_by="repair.counters_are_left_alone_while_the_rest_does_not_fit"
    ),
    Mutant(
        "compare: what the streams know of",
        "truth = math.max(truth, added + forgotten)",
        "truth = truth",
        LOST,
        argument="undelivered entry deleted",
    ),
    Mutant(
        "compare: not by counters that were deleted",
        "if staged >= mirror and added then",
        "if added then",
        "repair.deleted_counters_make_nothing_vanish",
    ),
    Mutant(
        "compare: not by counters of an earlier time",
        "elseif staged < mirror then",
        "elseif false then",
        "repair.counters_of_an_earlier_time_make_nothing_vanish",
    ),
    Mutant(
        "compare: what skipped the staging",
        "local truth = math.max(seen, known)",
        "local truth = seen",
        COMPARED,
        argument="staged",
    ),
    Mutant(
        "compare: a deleted lane is remembered",
        "added and truth - added - forgotten or 0",
        "0",
        LOST,
        argument="lane deleted",
    ),
    Mutant("reconcile: what stands in a set by mistake goes", caught_by=IN_PARTS),
    Mutant("reconcile: the next call goes on where this one ended", caught_by=IN_PARTS),
    Mutant("reconcile: what nobody holds waits on", caught_by="reconcile.what_nobody_holds_stays_ready"),
    Mutant(
        "reconcile: it is known that ids are ahead of the clock",
        caught_by="reconcile.times_of_staging_are_used_again_once_the_lanes_are_lost",
    ),
    Mutant("reconcile: somebody is woken", caught_by="repair.an_idle_worker_is_woken_for_what_was_made_ready"),
    Mutant("reconcile: listed, and gone since", caught_by="repair.what_changed_since_it_was_listed_is_left_alone"),
    Mutant("reconcile: what is known of one that is gone goes", caught_by=LOST, argument="running entry deleted"),
    Mutant("reconcile: names in bounded calls", caught_by="repair.one_sweep_is_bounded_in_bytes"),
    Mutant(
        "reconcile: a lane in bounded calls",
        "while looked < most and bytes < most_bytes do",
        "while looked < most do",
        "repair.one_look_is_bounded_in_entries_and_bytes",
    ),
    Mutant(
        "reconcile: what runs stays",
        "elseif delivered and not (row or due or rank) or",
        "elseif delivered and not (due or rank) or",
        SOUND,
    ),
    Mutant(
        "reconcile: what is delayed stays",
        "elseif delivered and not (row or due or rank) or",
        "elseif delivered and not (row or rank) or",
        SOUND,
    ),
    Mutant(
        "reconcile: what is not delivered stays",
        "elseif delivered and not (row or due or rank) or",
        "elseif not (row or due or rank) or",
        "reconcile.an_examination_finds_what_has_not_its_one_place",
        argument="turns",
    ),
    *(
        Mutant(f"reconcile: looking {what}", old, new, LOOK, argument=argument)
        for what, old, new, argument in (
            (
                "makes nothing ready",
                "if mend then place(lane, id, fields, rank) end",
                "place(lane, id, fields, rank)",
                "ready set deleted",
            ),
            (
                "forgets nothing",
                "if mend then forget(lane, id, field) end",
                "forget(lane, id, field)",
                "running entry deleted",
            ),
        )
    ),
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
        "info: not behind the last stream id",
        caught_by="repair.the_last_stream_id_that_there_can_be_is_looked_at_as_any",
    ),
)
