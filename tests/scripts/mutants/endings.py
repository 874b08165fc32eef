"""How requests end: written once, counted once, told once, removed last; and what entries mean."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant(
        "complete: the fence",
        "if not held(lane, id, worker, attempt) then return published_before",
        "if false then return published_before",
        HISTORY,
        2,
    ),
    Mutant(
        "complete: a lost answer is told from a lost lease",
        "return published_before(lane, id, attempt, entry.id) and 3 or 0 end",
        "return 0 end",
        HISTORY,
        2,
    ),
    Mutant(
        "complete: published before by this very attempt",
        "return result[1] == worker and tonumber(result[2]) == attempt and result[3] == entry_name(lane, id)",
        "return result[1] == worker",
        "complete.an_outcome_sent_again_after_a_lost_answer_says_so",
    ),
    Mutant(
        "complete: the result says who wrote it",
        "publish(entry.id, status, signed(values, lane, id, attempt), entry.reply)",
        "publish(entry.id, status, values, entry.reply)",
        HISTORY,
        0,
    ),
    Mutant(
        "complete: a cancel leaves no dead letter",
        "if fields and status ~= 'cancelled' then",
        "if fields then",
        HISTORY,
        0,
    ),
    Mutant(
        "complete: every other failure leaves one",
        "if fields and status ~= 'cancelled' then",
        "if false then",
        HISTORY,
        0,
    ),
    Mutant(
        "settle: an ended request counts once",
        "if result[2] then\n    count('duplicate')",
        "if false then\n    count('duplicate')",
        HISTORY,
        0,
    ),
    Mutant(
        "settle: a cancel is counted with its entry",
        "    call('HSET', key, unpack(describe({}, lane, id, entry)))\n",
        "",
        HISTORY,
        0,
    ),
    Mutant("settle: an entry's own reply name is told", "  notify(entry.reply, entry.id, result[1])\n", "", HISTORY, 0),
    Mutant(
        "notify: once for each name",
        " or call('HEXISTS', result_key(request_id), 'notified:' .. reply) == 1 then",
        " then",
        HISTORY,
        0,
    ),
    Mutant(
        "publish: the status is written once",
        "if first == 0 then return false end",
        "if first == 0 then call('HSET', key, 'status', status) end",
        HISTORY,
        0,
    ),
    Mutant(
        "publish: somebody is told", "  notify(reply, request_id, status)\n  return true", "  return true", HISTORY, 0
    ),
    Mutant(
        "publish: results expire",
        "  call('HSET', key, unpack(values))\n  call('PEXPIRE', key, cfg.result_ttl_ms)",
        "  call('HSET', key, unpack(values))",
        HISTORY,
        0,
    ),
    Mutant(
        "remove: the pending row goes",
        "  call('XACK', lane_key(lane), GROUP, id)\n  call('XDEL'",
        "  call('XDEL'",
        HISTORY,
        0,
    ),
    Mutant("remove: the entry goes", "  call('XDEL', lane_key(lane), id)\n", "", HISTORY, 0),
    Mutant("remove: attempts are forgotten", "  call('HDEL', TRIES, tries_field(lane, id))\n", "", HISTORY, 0),
    Mutant(
        "bury: a dead letter is written",
        "  write_dead_letter(lane, id, fields, letter)\n  count(letter.status)",
        "  count(letter.status)",
        HISTORY,
        0,
    ),
    Mutant(
        "dead letter: others' fields cannot pass as ours",
        "string.sub(name, 1, 1) == '_' and '_' .. name or name",
        "name",
        "pull_take.fields_of_others_cannot_pass_as_ours_in_a_dead_letter",
    ),
    Mutant(
        "dead letter: cut short",
        "string.sub(fields[i + 1], 1, math.max(0, room))",
        "fields[i + 1]",
        "pull_take.an_oversized_entry_fails_and_its_dead_letter_is_cut_short",
    ),
    Mutant(
        "dead letter: names cut short",
        "string.sub(fields[i], 1, 256)",
        "fields[i]",
        "pull_take.an_oversized_entry_fails_and_its_dead_letter_is_cut_short",
    ),
    Mutant(
        "dead letter: a bounded number of fields",
        "math.min(#fields, 512)",
        "#fields",
        "pull_take.an_entry_of_many_fields_is_buried_all_the_same",
    ),
    Mutant(
        "entry: deadlines are digits",
        "if text and #text <= 16 and string.find(text, '^%d+$') then return math.min(tonumber(text), NO_DEADLINE) end",
        "return tonumber(text or '')",
        HISTORY,
        0,
    ),
    Mutant(
        "entry: deadlines have 16 digits at most",
        "text and #text <= 16 and",
        "text and",
        "pull_stage.a_deadline_that_is_no_digits_is_none_and_stages_all_the_same",
        argument="1" * 17,
    ),
    Mutant(
        "entry: names are printable",
        " and not string.find(text, '[^\\33-\\126]')",
        "",
        "pull_take.an_unusable_id_or_reply_is_none",
        argument="a b",
    ),
    Mutant(
        "entry: names are short",
        "#text <= 256",
        "true",
        "pull_take.an_unusable_id_or_reply_is_none",
        argument="x" * 257,
    ),
    Mutant(
        "entry: names do not look like fallback names",
        "      and not string.find(text, '^%a+:%d+%-%d+$') then",
        " then",
        "pull_take.an_unusable_id_or_reply_is_none",
        argument="high:1-1",
    ),
    Mutant(
        "entry: ties first in, first out",
        "return string.char(64 + #ms) .. ms .. '-' .. string.char(64 + #seq) .. seq",
        "return 'A' .. ms .. '-A' .. seq",
        "pull_stage.staging_is_bounded_in_entries_and_goes_on_with_the_next_call",
    ),
)
