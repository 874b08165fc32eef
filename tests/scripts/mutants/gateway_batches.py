"""Files and batches of the HTTP gateway."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "gateway_file_add: a content whose time is over",
        "if not held or tonumber(held) <= clock_ms(ARGV[4]) then return 0 end\n",
        "",
        "gateway_batches.a_content_whose_time_is_over_becomes_no_file",
    ),
    Mutant(
        "gateway_file_add: asked again",
        "if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end\nlocal held",
        "local held",
        "gateway_batches.a_content_becomes_a_file",
    ),
    Mutant(
        "gateway_file_add: all files of a tenant",
        "if most > 0 and used(KEYS[6], 'file_bytes') + tonumber(ARGV[6]) > most then return 2 end\n",
        "",
        "gateway_batches.all_files_of_a_tenant_have_a_limit_together",
    ),
    Mutant(
        "gateway_file_delete: gives room back",
        "give_back(KEYS[6], 'file_bytes', tonumber(found[3]) or 0, together)\n",
        "",
        "gateway_batches.all_files_of_a_tenant_have_a_limit_together",
    ),
    Mutant(
        "gateway_file_delete: whose it is",
        "if found[1] ~= ARGV[2] then return {0, {}} end\n",
        "",
        "gateway_batches.a_deleted_file_leaves_its_contents_to_be_deleted",
    ),
    Mutant(
        "gateway_file_delete: a batch needs it",
        "if (tonumber(found[2]) or 0) > 0 then return {2, {}} end\n",
        "",
        "gateway_batches.a_file_that_a_batch_reads_is_not_deleted",
    ),
    Mutant(
        "gateway_file_delete: contents are found again",
        "for _, content in ipairs(contents) do",
        "for _, content in ipairs({}) do",
        "gateway_batches.a_deleted_file_leaves_its_contents_to_be_deleted",
    ),
    Mutant(
        "gateway_batch_add: asked again",
        "if redis.call('EXISTS', KEYS[1]) == 1 then return {1, ARGV[1]} end\nif ARGV",
        "if ARGV",
        "gateway_batches.a_batch_is_accepted_once",
    ),
    Mutant(
        "gateway_batch_add: whose the input is",
        "if input[1] ~= ARGV[2] then return {0, ''} end\n",
        "",
        "gateway_batches.a_batch_of_another_tenants_file_is_not_accepted",
    ),
    Mutant(
        "gateway_batch_add: a name is one batch's",
        "  if named[1] then return {4, named[1]} end\n",
        "",
        "gateway_batches.the_same_name_is_the_same_batch",
    ),
    Mutant(
        "gateway_batch_add: a name is for one thing",
        "  if named[1] and named[2] ~= ARGV[5] then return {3, ''} end\n",
        "",
        "gateway_batches.the_same_name_is_the_same_batch",
    ),
    Mutant(
        "gateway_batch_add: names are forgotten",
        "  redis.call('PEXPIRE', KEYS[6], ARGV[6])\n",
        "",
        "gateway_batches.the_same_name_is_the_same_batch",
    ),
    Mutant(
        "gateway_batch_add: all open batches of a tenant",
        "if most > 0 and queued + bytes > most then return {2, ''} end\n",
        "",
        "gateway_batches.open_batches_of_a_tenant_have_a_limit_together",
    ),
    Mutant(
        "gateway_batch_add: a tenant's open batches", caught_by="gateway_batches.a_tenant_has_a_number_of_open_batches"
    ),
    Mutant("gateway_batch_finish: one less is open", caught_by="gateway_batches.a_tenant_has_a_number_of_open_batches"),
    Mutant(
        "gateway_batch_add: a batch that is gone counts no more",
        caught_by="gateway_batches.open_batches_whose_records_were_deleted_count_no_more",
    ),
    Mutant(
        "gateway_batch_add: so do the bytes of one that is gone",
        "if open >= most_open or (most > 0 and queued + bytes > most) then count_anew() end\n",
        "if open >= most_open then count_anew() end\n",
        "gateway_batches.inputs_of_open_batches_whose_records_were_deleted_count_no_more",
    ),
    Mutant(
        "gateway_batch_finish: what was counted gives back, nothing else",
        "if call('HDEL', KEYS[11], mine) == 1 then",
        "if call('HDEL', KEYS[11], mine) < 2 then",
        "gateway_batches.a_batch_that_counted_for_nothing_gives_nothing_back",
    ),
    Mutant("gateway_batch_add: a tenant's batches", caught_by="gateway_batches.a_tenant_has_a_number_of_batches"),
    Mutant(
        "gateway_batch_add: the number of a tenant's files", caught_by="gateway_batches.a_tenant_has_a_number_of_files"
    ),
    Mutant(
        "gateway_file_add: the number of a tenant's files", caught_by="gateway_batches.a_tenant_has_a_number_of_files"
    ),
    Mutant(
        "gateway_batch_finish: gives room back",
        "  give_back(KEYS[11], 'queued_bytes', input_bytes, queued)\n",
        "",
        "gateway_batches.open_batches_of_a_tenant_have_a_limit_together",
    ),
    Mutant(
        "gateway_batch_finish: its files take room",
        "    call('HINCRBY', KEYS[11], 'file_bytes', bytes[i] or '0')\n",
        "",
        "gateway_batches.at_its_end_a_batch_has_its_files_once",
    ),
    Mutant(
        "gateway_batch_take: somebody has it",
        "if not until_ms or tonumber(until_ms) > now then",
        "if not until_ms then",
        "gateway_batches.a_batch_is_taken_by_one",
    ),
    Mutant(
        "gateway_batch_take: an epoch for each",
        "local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)",
        "local epoch = 1\nredis.call('HSET', KEYS[1], 'epoch', 1)",
        "gateway_batches.a_batch_of_a_silent_gateway_is_taken_in_a_new_epoch",
    ),
    Mutant(
        "gateway_batch_take: it is gone",
        "if redis.call('EXISTS', KEYS[1]) == 0 then return {0, {}} end\n",
        "",
        "gateway_batches.a_batch_that_is_gone_is_open_no_more",
    ),
    Mutant(
        "gateway_batch_lease: fenced by the epoch",
        "if theirs() or not call('ZSCORE', KEYS[2], ARGV[1]) then return '' end",
        "if not call('ZSCORE', KEYS[2], ARGV[1]) then return '' end",
        "gateway_batches.whoever_lost_a_batch_renews_nothing",
    ),
    Mutant(
        "gateway_batch_lease: only of an open batch",
        "if theirs() or not call('ZSCORE', KEYS[2], ARGV[1]) then return '' end",
        "if theirs() then return '' end",
        "gateway_batches.a_lease_is_renewed_handed_back_and_ended",
    ),
    Mutant(
        "gateway_batch_save: fenced by the epoch",
        "if theirs() then return {0, ''} end\n",
        "",
        "gateway_batches.whoever_lost_a_batch_writes_nothing_down",
    ),
    Mutant(
        "gateway_batch_save: a line is finished once",
        "  if call('GETBIT', KEYS[2], line - 1) == 1 then return {2, status} end\n",
        "",
        "gateway_batches.a_line_is_finished_once",
    ),
    Mutant(
        "gateway_batch_save: a content whose time is over",
        "  if not held or tonumber(held) <= now then return {3, status} end\n",
        "",
        "gateway_batches.a_content_whose_time_is_over_is_not_written_down",
    ),
    Mutant(
        "gateway_batch_save: a cancel stays one",
        "if step.to and status == step.from then",
        "if step.to then",
        "gateway_batches.a_cancel_is_not_passed_over_by_progress",
    ),
    Mutant(
        "gateway_batch_save: a full server takes what is finished",
        "call('ZREM', KEYS[3], '')\nfor",
        "call('HSET', KEYS[1], 'saved', 1)\nfor",
        "gateway_batches.what_is_finished_is_written_down_in_a_full_redis",
    ),
    Mutant(
        "gateway_batch_save: progress makes stumbles forgotten",
        "call('HDEL', KEYS[1], 'stumbles')\n",
        "",
        "gateway_batches.progress_makes_stumbles_forgotten",
    ),
    Mutant(
        "gateway_batch_cancel: whose it is",
        "if found[1] ~= ARGV[1] then return '' end\n",
        "",
        "gateway_batches.only_its_tenant_cancels_a_batch_and_only_before_its_end",
    ),
    Mutant(
        "gateway_batch_cancel: only before its end",
        "if found[2] ~= 'validating' and found[2] ~= 'in_progress' then return found[2] end\n",
        "",
        "gateway_batches.a_batch_that_is_nearly_through_is_not_cancelled",
    ),
    Mutant(
        "gateway_batch_finish: fenced by the epoch",
        "if theirs() then return 0 end\n",
        "",
        "gateway_batches.whoever_lost_a_batch_writes_nothing_down",
    ),
    Mutant(
        "gateway_batch_finish: asked again",
        "if status == ARGV[3] then return 1 end\n",
        "",
        "gateway_batches.at_its_end_a_batch_has_its_files_once",
    ),
    Mutant(
        "gateway_batch_finish: files in which something stands",
        "  if call('EXISTS', KEYS[2 + 2 * i]) == 1 then\n",
        "  if true then\n",
        "gateway_batches.at_its_end_a_batch_has_its_files_once",
    ),
    Mutant(
        "gateway_batch_finish: its input may be deleted again",
        "call('HINCRBY', KEYS[9], 'uses', -1)",
        "call('HINCRBY', KEYS[9], 'uses', 0)",
        "gateway_batches.a_file_that_a_batch_reads_is_not_deleted",
    ),
)
