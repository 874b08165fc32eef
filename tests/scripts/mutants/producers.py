"""What producers and operators do."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant("enqueue: an id once", "  if record then\n", "  if false then\n", HISTORY, 2),
    Mutant("enqueue: another content is a conflict", "known == digest and 2 or 3", "2", HISTORY, 4),
    Mutant("enqueue: not what ended", "  if call('EXISTS', result) == 1 then return {5, ''} end\n", "", HISTORY, 0),
    Mutant(
        "enqueue: lanes are bounded",
        "  if length[lane] >= limit then return {4, ''} end\n",
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
    Mutant("cancel: workers are told", "call('XADD', CANCELS, 'MAXLEN', '~', 10000, '*', 'id', id)\n", "", HISTORY, 0),
    Mutant(
        "requeue: not what is gone",
        "if not call('XRANGE', DEAD, ARGV[2], ARGV[2])[1] then return '' end\n",
        "",
        "requeue.a_dead_letter_that_is_gone_is_not_requeued",
    ),
    Mutant("requeue: the dead letter goes", "call('XDEL', DEAD, ARGV[2])\n", "", HISTORY, 0),
    Mutant("requeue: the result is forgotten", "call('DEL', KEYS[19], KEYS[20])\n", "", HISTORY, 0),
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
