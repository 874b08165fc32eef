"""Guards of tokens: readers are told one end, however a request ends, and nothing holds up its ending."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "tokens: an outcome ends them",
        "local tokens = #KEYS > SHARED + 2 * #outcomes and tokens_of(values, n, attempt) or nil",
        "local tokens = nil",
        "tokens.of_several_outcomes_only_the_streamed_ones_have_an_end",
    ),
    Mutant(
        "tokens: those of others are not ended",
        "    if values[i] == 'streamed' then return",
        "    if true then return",
        "tokens.of_several_outcomes_only_the_streamed_ones_have_an_end",
    ),
    Mutant(
        "tokens: what no worker ends is ended for readers too",
        "entry.reply, read and {})",
        "entry.reply)",
        "tokens.one_that_expires_in_the_queue_is_ended_by_the_pull",
    ),
    Mutant(
        "tokens: who was told is not told again",
        "if streamed(entry) and not result[3] then",
        "if streamed(entry) then",
        "tokens.a_duplicate_adds_no_second_end",
    ),
    Mutant(
        "tokens: who was not told is made up for",
        caught_by="tokens.one_whose_entry_is_not_found_is_ended_when_that_is_removed",
    ),
    Mutant(
        "tokens: made up for once", caught_by="tokens.readers_of_a_duplicate_of_one_that_was_not_streamed_are_told_too"
    ),
    Mutant(
        "tokens: a cancel ends them by the entry",
        caught_by="tokens.one_that_runs_and_is_cancelled_before_its_first_token_is_ended_at_once",
    ),
    Mutant(
        "tokens: by the entry of that request",
        "if entry and entry.id == id then return lane",
        "if entry then return lane",
        "tokens.an_entry_that_is_another_requests_says_nothing_of_this_one",
    ),
    Mutant(
        "tokens: an odd record cancels nothing less",
        "local found, rows = pcall(call, 'XRANGE', lane_key(lane), given, given)",
        "local found, rows = true, call('XRANGE', lane_key(lane), given, given)",
        "tokens.an_entry_that_is_another_requests_says_nothing_of_this_one",
    ),
    Mutant(
        "tokens: a cancel ends them by what was streamed",
        "local read = call('EXISTS', KEYS[SHARED + 3]) == 1",
        "local read = false",
        "tokens.one_whose_entry_is_not_found_and_that_streams_already_is_ended_at_once",
    ),
    Mutant(
        "tokens: a cancel that told readers says so",
        ", streamed = tokens and '0'}",
        "}",
        "tokens.one_that_is_cancelled_in_the_queue_is_ended_at_once_and_once",
    ),
    Mutant(
        "tokens: another life has its own", caught_by="tokens.another_life_begins_without_the_tokens_of_the_former_one"
    ),
    Mutant(
        "tokens: another life says that it is one",
        caught_by="tokens.another_life_begins_without_the_tokens_of_the_former_one",
    ),
    Mutant(
        "tokens: of what vanished",
        "call('EXISTS', tokens) == 1 and {} or nil",
        "nil",
        "tokens.one_whose_entry_was_deleted_is_ended_where_it_streamed",
    ),
    Mutant("tokens: they expire", caught_by="tokens.one_that_is_lost_with_its_last_worker_is_ended"),
    Mutant(
        "tokens: a refusal holds up no ending",
        "local added = redis.pcall('XADD', key",
        "local added = call('XADD', key",
        "tokens.a_key_of_another_type_holds_up_no_ending",
    ),
)
