"""What producers and operators do."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant("enqueue: an id once", "  if record then\n", "  if false then\n", HISTORY, 2),
    Mutant("enqueue: another content is a conflict", "known == digest and 2 or 3", "2", HISTORY, 4),
    Mutant("enqueue: not what ended", "count > 0 and call('EXISTS', unpack(KEYS, 5 + count)) > 0", "false", HISTORY, 0),
    Mutant(
        "enqueue: only that which ended",
        "if answered and call('EXISTS', result) == 1 then",
        "if answered then",
        "enqueue.of_many_only_those_that_have_a_result_are_not_queued",
    ),
    Mutant(
        "enqueue: lanes are bounded",
        "  if length[lane] >= limit then return 4, '' end\n",
        "",
        "enqueue.a_lane_takes_no_more_than_its_limit_by_its_length",
    ),
    Mutant(
        "enqueue: within one call too",
        "  length[lane] = length[lane] + 1\n",
        "",
        "enqueue.a_lane_takes_no_more_than_its_limit_by_its_length",
    ),
    Mutant("enqueue: records expire", ", 'PX', record_ttl)", ")", HISTORY, 0),
    Mutant("cancel: workers are told", "tell(CANCELS, 'MAXLEN', '~', 10000, '*', 'id', id)\n", "", HISTORY, 0),
    Mutant(
        "requeue: not what is gone",
        "if not call('XRANGE', DEAD, letter, letter)[1] then\n",
        "if false then\n",
        "requeue.a_dead_letter_that_is_gone_is_not_requeued",
    ),
    Mutant(
        "requeue: once, however often it is asked for",
        "return id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or ''",
        "return ''",
        "requeue.asked_twice_it_is_requeued_once_and_says_the_same",
    ),
    Mutant(
        "requeue: what was purged was not requeued",
        "entry and entry ~= former and string.match(entry",
        "entry and string.match(entry",
        "requeue.a_letter_that_was_purged_was_not_requeued_though_its_id_is_known",
    ),
    Mutant(
        "requeue: not what was enqueued before the letter was written",
        "return id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or ''",
        "return id or ''",
        "requeue.a_letter_that_was_purged_was_not_requeued_though_its_id_is_known",
    ),
    Mutant(
        "requeue: its id stays taken",
        "call('SET', KEYS[20], (digest or ARGV[6]) .. ' ' .. entry_name(lane, id) .. ' ' .. ARGV[7], 'PX', life)\n",
        "",
        "requeue.the_record_of_its_id_names_the_new_entry_so_that_nobody_enqueues_it_a_second_time",
    ),
    Mutant(
        "requeue: no lasting record without an id",
        "local life = usable_name(request_id) and cfg.record_ttl_ms or cfg.result_ttl_ms",
        "local life = cfg.record_ttl_ms",
        "requeue.a_request_without_an_id_of_its_own_leaves_a_record_for_a_while_only",
    ),
    Mutant("requeue: the dead letter goes", "call('XDEL', DEAD, letter)\n", "", HISTORY, 0),
    Mutant("requeue: the result is forgotten", "call('DEL', KEYS[19])\n", "", HISTORY, 0),
    Mutant(
        "audit: bytes are bounded", " and bytes < 4194304 do", " do", "audit.counting_copies_a_bounded_number_of_bytes"
    ),
    Mutant(
        "audit: entries are bounded",
        "while counted <= bound and",
        "while",
        "audit.too_many_undelivered_entries_are_not_counted_and_no_problem",
    ),
)
