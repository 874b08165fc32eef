"""Guards of forgetting in time: workers that are gone, dead letters, ids."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant("dead letters: bounded in bytes", caught_by="retain.dead_letters_are_bounded_in_bytes"),
    Mutant(
        "dead letters: only what is a whole cap ago goes",
        "part - math.ceil(cfg.dead_bytes / DEAD_PART)",
        "part",
        "retain.dead_letters_are_bounded_in_bytes",
    ),
    Mutant(
        "dead letters: what is past is forgotten",
        "for number = from, past do",
        "for number = past, past do",
        "retain.a_smaller_bound_holds_from_the_next_part_on_and_a_larger_one_drops_nothing",
    ),
    Mutant(
        "dead letters: their count holds up no ending",
        "redis.pcall('HINCRBY', DEAD_PARTS, 'bytes', bytes)",
        "call('HINCRBY', DEAD_PARTS, 'bytes', bytes)",
        "retain.a_count_that_somebody_wrote_by_hand_holds_up_no_ending",
    ),
    Mutant(
        "interrupted: records of another type lose nothing",
        "call_if_typed('HSET', ENTRIES, interrupted_field",
        "call('HSET', ENTRIES, interrupted_field",
        "pull_rooms.what_is_known_of_entries_is_left_alone_where_it_has_another_type",
    ),
    *(
        Mutant(
            f"types: {key} of another type is noticed before a write{where}",
            old,
            new,
            "repair.a_key_of_another_type_is_noticed_before_anything_is_written",
            argument=key,
        )
        for key, old, new, where in (
            ("ready:low", "do waiting[each] = call('ZCARD', ready_key(each)) end", "do waiting[each] = 0 end", ""),
            ("tries", "  some_attempts()\n  call", "  call", ""),
            ("counts", "  call('HLEN', COUNTS)\n", "", ""),
            ("lanes", "labelled = call('HGET'", "labelled = call_if_typed('HGET'", ""),
            ("dead", "  call('XLEN', DEAD)\n", "", ""),
            ("waiting", "  call('ZCARD', WAITING)\n", "", ""),
            ("delayed", "  call('ZCARD', DELAYED)\n", "", ""),
            ("watch", "  call('ZCARD', WATCH)\n", "", ""),
            ("wake", "  call('XLEN', WAKE)\n  return", "  return", ""),
            ("wake", "  if hints[1] then call('XLEN', WAKE) end\n", "", " by its hints"),
            (
                "tries",
                "some_attempts()\ncall('HLEN', COUNTS)\ncall('HLEN', LANES)",
                "call('HLEN', COUNTS)\ncall('HLEN', LANES)",
                " of renew",
            ),
            (
                "counts",
                "some_attempts()\ncall('HLEN', COUNTS)\ncall('HLEN', LANES)",
                "some_attempts()\ncall('HLEN', LANES)",
                " of renew",
            ),
            ("lanes", "call('HLEN', COUNTS)\ncall('HLEN', LANES)\n", "call('HLEN', COUNTS)\n", " of renew"),
            (
                "tries",
                "some_attempts()\ncall('HLEN', COUNTS)\ncall('XLEN'",
                "call('HLEN', COUNTS)\ncall('XLEN'",
                " of complete",
            ),
            (
                "counts",
                "some_attempts()\ncall('HLEN', COUNTS)\ncall('XLEN'",
                "some_attempts()\ncall('XLEN'",
                " of complete",
            ),
            ("dead", "\ncall('XLEN', DEAD)\n", "\n", " of complete"),
        )
    ),
    Mutant(
        "reclaim: a missing wake stream is noticed before a write",
        caught_by="reclaim.a_missing_wake_stream_is_made_again_before_anything_is_taken_back",
    ),
    Mutant(
        "deregister: not the living",
        "    if seen < now - silent_ms then forget(flat[i]) end",
        "    forget(flat[i])",
        "check.silent_workers_are_forgotten_and_living_ones_are_not",
    ),
    Mutant("deregister: no watch of the gone", caught_by="check.a_worker_that_leaves_is_forgotten"),
    Mutant("deregister: no wake-up for the gone", caught_by="filling.a_worker_that_leaves_is_not_woken"),
    Mutant(
        "deregister: not the living, however idle their consumers",
        "not looked_at[name] and ",
        "",
        "deregister.neither_the_living_nor_nobody_go_however_long_they_were_idle",
    ),
    Mutant(
        "deregister: consumers that nobody describes",
        "        looked_at[name] = true\n        forget(name)\n",
        "",
        "deregister.a_consumer_that_nobody_describes_goes_by_its_own_silence",
    ),
    Mutant(
        "deregister: not before they were silent",
        " and named(row, 'idle') >= silent_ms then",
        " then",
        "deregister.a_consumer_that_nobody_describes_goes_by_its_own_silence",
    ),
    Mutant(
        "deregister: bounded",
        "if forgotten >= most or not holds_nothing(worker) then return end",
        "if not holds_nothing(worker) then return end",
        "deregister.one_call_forgets_a_bounded_number",
    ),
    Mutant("deregister: looking forgets nobody", caught_by="deregister.counting_forgets_nobody"),
    Mutant(
        "retain: not before their time",
        "now_ms() - cfg.dead_ttl_ms",
        "now_ms()",
        "retain.nothing_is_deleted_before_its_time_nor_where_there_is_nothing",
    ),
    Mutant("retain: to the last one", caught_by="retain.dead_letters_beyond_their_life_are_deleted_to_the_millisecond"),
    Mutant(
        "retain: bounded",
        "call('XTRIM', DEAD, 'MINID', '~', oldest, 'LIMIT', ARGV[2])",
        "call('XTRIM', DEAD, 'MINID', '~', oldest)",
        "retain.one_call_deletes_a_bounded_number",
    ),
    Mutant("bounded: by its tenant", caught_by="ended.the_oldest_go_first_and_those_of_others_stay"),
    Mutant("bounded: what ended first goes", caught_by="ended.the_oldest_go_first_and_those_of_others_stay"),
    Mutant(
        "bounded: only what asks for it",
        "values[i] == 'bounded' and values[i + 1] == '1' and make",
        "values[i] == 'tenant' and make",
        "ended.who_does_not_ask_for_it_is_not_bounded",
    ),
    Mutant("bounded: cancelled ones too", caught_by="ended.every_ending_counts_once"),
    Mutant(
        "bounded: a list that was overwritten by hand is begun anew",
        caught_by="ended.a_list_of_another_type_stops_nobody_and_is_begun_anew",
    ),
    Mutant("bounded: the list goes with its results", caught_by="ended.the_oldest_go_first_and_those_of_others_stay"),
    Mutant(
        "bounded: the list stays while its results do",
        "if before == 0 or math.floor(before / 32768) ~= math.floor(total / 32768) then",
        "if before == 0 then",
        "ended.the_list_stays_while_requests_end",
    ),
    Mutant("bounded: an id goes with its result", caught_by="ended.a_result_that_goes_takes_its_id_and_tokens_along"),
    Mutant("bounded: tokens go with their result", caught_by="ended.a_result_that_goes_takes_its_id_and_tokens_along"),
    *(
        Mutant(
            f"bounded: {what} counts",
            "{result, record_key(request_id), tokens_key(request_id)}",
            counted,
            "ended.no_less_is_counted_than_redis_takes",
        )
        for what, counted in (
            ("a result", "{record_key(request_id), tokens_key(request_id)}"),
            ("an id", "{result, tokens_key(request_id)}"),
            ("what was streamed", "{result, record_key(request_id)}"),
        )
    ),
    Mutant(
        "bounded: large ones go sooner",
        "id and tonumber(own) > 65536 and 10000 or 60000",
        "60000",
        "ended.a_large_answer_takes_the_place_of_many_small_ones_and_stays",
    ),
    Mutant(
        "bounded: the newest stays",
        " or total <= tonumber(upto)) then return end",
        ") then return end",
        "ended.a_large_answer_takes_the_place_of_many_small_ones_and_stays",
    ),
    Mutant(
        "bounded: a request that was sent again keeps its id",
        "if id and redis.pcall('PEXPIRE', result_key(id), grace_ms) == 1 then",
        "if id and redis.pcall('PEXPIRE', result_key(id), grace_ms) then",
        "ended.a_request_that_is_sent_again_and_waits_keeps_its_id",
    ),
    Mutant(
        "settle: what is settled is bounded by key",
        caught_by="gateway_keys.what_is_remembered_as_settled_is_bounded_by_key",
    ),
    Mutant(
        "settle: what was sent again is no settled one",
        "if key and redis.call('HMGET', key, 'used')[1] then",
        "if key then",
        "gateway_keys.what_is_remembered_as_settled_is_bounded_by_key",
    ),
    Mutant(
        "finish: an id goes with its result",
        "redis.pcall('GETEX', key, 'PX', life)",
        "redis.pcall('GET', key)",
        "retain.every_ending_gives_the_id_the_life_of_its_result",
    ),
    Mutant("vanish: an id goes with its result", caught_by="retain.every_ending_gives_the_id_the_life_of_its_result"),
    Mutant(
        "stage: what comes again is not counted again",
        "local again = seen and member <= seen",
        "local again = false",
        "repair.what_loses_no_body_is_mended_and_every_request_has_one_result",
        argument="group destroyed",
    ),
    Mutant(
        "stage: what comes again stays where it is",
        "if again and is_tracked(lane, item[1], item[2]) then",
        "if false then",
        "pull_stage.what_is_delivered_again_stays_where_it_is",
    ),
    Mutant(
        "stage: what a group made anew brings is not counted again",
        "if again and encode_id(id) <= encode_id(again) or HOOKS",
        "if HOOKS",
        "pull_stage.what_a_group_made_anew_brings_to_a_watcher_is_counted_once",
    ),
    Mutant(
        "stage: counted once where nobody held it",
        " or HOOKS.waits(lane, id, fields) then return end",
        " then return end",
        "pull_stage.what_is_delivered_again_stays_where_it_is",
    ),
)
