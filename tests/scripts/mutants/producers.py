"""Guards of producers' and operators' actions."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant("enqueue: an id once", seed=2),
    Mutant("enqueue: another content is a conflict", "return same and 2 or 3", "return 2", HISTORY, 4),
    Mutant(
        "enqueue: not what ended",
        "count > 0 and call('EXISTS', unpack(KEYS, before + 1 + count)) > 0",
        "false",
        "enqueue.an_id_that_has_a_result_already_is_not_queued",
    ),
    Mutant(
        "enqueue: only that which ended",
        "if answered and call('EXISTS', result) == 1 then",
        "if answered then",
        "enqueue.of_many_only_those_that_have_a_result_are_not_queued",
    ),
    Mutant("enqueue: lanes are bounded", caught_by="enqueue.a_lane_takes_no_more_than_its_limit_by_its_length"),
    Mutant(
        "enqueue: lanes are bounded in bytes",
        caught_by="enqueue.a_lane_takes_no_more_large_requests_than_its_limit_of_bytes",
    ),
    Mutant("enqueue: bytes of one call too", caught_by="enqueue.the_bytes_of_one_call_count_together"),
    Mutant("enqueue: within one call too", caught_by="enqueue.a_lane_takes_no_more_than_its_limit_by_its_length"),
    Mutant(
        "enqueue: a tenant has a share of a lane",
        caught_by="lane_shares.without_any_worker_one_tenant_fills_half_of_a_lane",
        argument="1",
    ),
    Mutant(
        "enqueue: a tenant has a share of a lane's bytes",
        caught_by="lane_shares.half_of_a_lanes_bytes",
        argument="True",
    ),
    Mutant(
        "enqueue: alone, a tenant has the whole lane",
        caught_by="lane_shares.alone_a_tenant_has_the_whole_lane",
    ),
    Mutant(
        "enqueue: what is staged counts once",
        caught_by="lane_shares.half_counts_what_is_ready_and_what_is_not_staged",
    ),
    Mutant(
        "enqueue: what is ready with a label is staged",
        "+ number_labelled(lane)",
        "",
        "lane_shares.what_is_known_of_tenants_is_bounded",
    ),
    Mutant(
        "enqueue: what waits for a home counts",
        "for i, kind in ipairs({':t:', ':th:'}) do",
        "for i, kind in ipairs({':t:'}) do",
        "views.a_tenants_share_counts_what_waits_for_homes",
    ),
    Mutant(
        "enqueue: what is known of tenants is bounded",
        caught_by="lane_shares.what_is_known_of_tenants_is_bounded",
    ),
    Mutant(
        "enqueue: what waits for its next try is staged",
        "local left = -number(redis.pcall('ZCARD', DELAYED))",
        "local left = 0",
        "lane_shares.what_is_known_of_tenants_is_forgotten_while_requests_wait_for_their_next_try",
    ),
    Mutant(
        "enqueue: no more is unstaged than the lane has left",
        "  if fresh > left then",
        "  if false then",
        "lane_shares.what_was_cancelled_before_it_was_staged_waits_no_more",
    ),
    Mutant("enqueue: records expire", ", 'PX', record_ttl)", ")", HISTORY, 0),
    Mutant("cancel: workers are told"),
    Mutant(
        "cancel: an id that the queue has never seen blocks nothing",
        caught_by="cancel.what_comes_after_its_cancel_runs",
    ),
    Mutant(
        "cancel: a long queue is looked through in bounded calls",
        caught_by="cancel.a_long_queue_is_looked_through_in_bounded_calls",
    ),
    Mutant(
        "cancel: the first entry of a lane is read alone",
        "local looked, bytes, chunk = 0, 0, 1",
        "local looked, bytes, chunk = 0, 0, 64",
        "cancel.a_long_queue_is_looked_through_in_bounded_calls",
    ),
    Mutant(
        "cancel: what came by a plain XADD is looked for to the end",
        "if further then return further end",
        "",
        "cancel.a_long_queue_is_looked_through_in_bounded_calls",
    ),
    Mutant(
        "cancel: not what a worker has",
        "if row and row[2] ~= NOBODY or not pcall(require_types)",
        "if not pcall(require_types)",
        "cancel.a_running_one_that_is_known_stays_with_its_worker",
    ),
    Mutant(
        "cancel: not another request's entry",
        "if entry and entry.id == id then return lane",
        "if entry then return lane",
        "cancel.a_record_that_names_another_entry_removes_nothing",
    ),
    Mutant(
        "cancel: the stream id as the lane has it",
        "return lane, row[1], entry end",
        "return lane, given, entry end",
        "cancel.a_record_that_writes_its_entry_otherwise_leaves_no_trace_of_it",
    ),
    Mutant(
        "cancel: also beside a key of another type",
        " or not pcall(require_types) then",
        " then",
        "cancel.a_key_of_another_type_leaves_the_entry_where_it_is",
    ),
    Mutant("cancel: counted as staged where no pull staged it", seed=4),
    Mutant(
        "cancel: counted as staged once",
        "\n      or staged and encode_id(entry_id) <= encode_id(staged)) then",
        ") then",
        "cancel.one_that_comes_again_from_a_group_made_anew_is_counted_once",
    ),
    Mutant(
        "cancel: what a watcher has was not staged yet",
        caught_by="cancel.one_that_a_watcher_was_just_given_leaves_its_lane_and_the_watcher_goes_on",
    ),
    Mutant("leave: no longer ready", caught_by="cancel.one_that_waits_staged_leaves_its_lane_at_once"),
    Mutant("cancel: no longer delayed", caught_by="cancel.one_that_waits_for_its_next_try_leaves_its_lane_at_once"),
    Mutant(
        "cancel: its result outlives what it may still meet",
        "and cfg.record_ttl_ms or ARGV[7]",
        "and cfg.result_ttl_ms or ARGV[7]",
        "cancel.a_running_one_that_goes_back_to_its_lane_stays_cancelled",
    ),
    Mutant(
        "discard duplicate: then the result lives as any",
        "unpack(values))\n    call('PEXPIRE', result_key(request_id), cfg.result_ttl_ms)\n",
        "unpack(values))\n",
        "cancel.the_result_of_what_is_not_found_outlives_a_request_that_waits_and_then_lives_as_any",
    ),
    Mutant("ask: also on a full server", caught_by="cancel.a_full_redis_takes_what_workers_are_asked_for"),
    Mutant("requeue: not what is gone", caught_by="requeue.a_dead_letter_that_is_gone_is_not_requeued"),
    Mutant(
        "requeue: once, however often it is asked for",
        "return {id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or '', ''}",
        "return {'', ''}",
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
        "return {id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or '', ''}",
        "return {id or '', ''}",
        "requeue.a_letter_that_was_purged_was_not_requeued_though_its_id_is_known",
    ),
    Mutant(
        "requeue: its id stays taken",
        caught_by="requeue.the_record_of_its_id_names_the_new_entry_so_that_nobody_enqueues_it_a_second_time",
    ),
    Mutant(
        "requeue: no lasting record without an id",
        "local life = usable_name(request_id) and cfg.record_ttl_ms or cfg.result_ttl_ms",
        "local life = cfg.record_ttl_ms",
        "requeue.a_request_without_an_id_of_its_own_leaves_a_record_for_a_while_only",
    ),
    Mutant("requeue: not over a newer result", caught_by="requeue.a_newer_success_is_not_deleted"),
    Mutant(
        "requeue: not beside a newer request",
        caught_by="requeue.a_newer_request_that_has_not_ended_keeps_its_id",
        argument="d2",
    ),
    Mutant(
        "requeue: the letter's own result is no hindrance",
        "if result[1] and result[2] ~= former then",
        "if result[1] then",
        "requeue.a_dead_letter_gets_another_life",
    ),
    Mutant("requeue: the dead letter goes"),
    Mutant("requeue: the result is forgotten"),
    Mutant(
        "audit: bytes are bounded",
        "most + 1, 4194304,",
        "most + 1, 1e9,",
        "audit.counting_copies_a_bounded_number_of_bytes",
    ),
    Mutant(
        "audit: entries are bounded",
        "most + 1, 4194304,",
        "1e9, 4194304,",
        "audit.too_many_undelivered_entries_are_not_counted_and_no_problem",
    ),
)
