"""Webhooks: each event once, each attempt somebody's. And the tokens of API keys."""

from __future__ import annotations

from tests.scripts.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "webhook_announce: once while outstanding",
        "call('HEXISTS', MESSAGES, id) == 1 or call('ZSCORE', ENDED, id)",
        "call('ZSCORE', ENDED, id)",
        "webhooks.an_event_is_announced_once_wherever_it_is",
        argument="later",
    ),
    Mutant(
        "webhook_announce: once when ended",
        "call('HEXISTS', MESSAGES, id) == 1 or call('ZSCORE', ENDED, id)",
        "call('HEXISTS', MESSAGES, id) == 1",
        "webhooks.an_event_is_announced_once_wherever_it_is",
        argument="dead",
    ),
    Mutant(
        "webhook_announce: bounded",
        "call('HLEN', MESSAGES) >= cfg.outstanding",
        "false",
        "webhooks.so_many_are_outstanding_and_no_more",
    ),
    Mutant(
        "webhook_announce: bounded for each tenant",
        "if mine >= cfg.per_tenant then return -2 end",
        "",
        "webhooks.one_tenant_does_not_take_what_all_may_have",
    ),
    Mutant(
        "webhook_announce: a tenant's count comes down",
        "mine >= cfg.per_tenant or call('HLEN', USE)",
        "call('HLEN', USE)",
        "webhooks.one_tenant_does_not_take_what_all_may_have",
    ),
    Mutant(
        "webhook_announce: not all are counted at every announcement",
        "(tonumber(known[2]) or 0)) >= 1000",
        "(tonumber(known[2]) or 0)) >= 0",
        "webhooks.one_tenant_does_not_take_what_all_may_have",
    ),
    Mutant(
        "webhook_announce: only the tenant's own count",
        "return counts[tenant] or 0",
        "return #all / 2",
        "webhooks.one_tenant_does_not_take_what_all_may_have",
    ),
    Mutant(
        "webhook_announce: what has ended is forgotten",
        " or call('HLEN', USE) > 2 * cfg.outstanding",
        "",
        "webhooks.what_tenants_used_is_forgotten",
    ),
    Mutant(
        "webhooks: ended ones are remembered",
        "  call('ZADD', ENDED, whole(now), id)\n",
        "",
        "webhooks.an_ended_event_is_remembered_for_a_while",
    ),
    Mutant(
        "webhook_take: not for ever",
        "call('ZREMRANGEBYSCORE', ENDED, '-inf', whole(now - cfg.remember_ms))\n",
        "",
        "webhooks.an_ended_event_is_remembered_for_a_while",
    ),
    Mutant(
        "webhook_take: who is gone is forgotten",
        "      call('XGROUP', 'DELCONSUMER', DUE, GROUP, name)\n",
        "",
        "webhooks.deliverers_that_are_gone_are_forgotten",
    ),
    Mutant(
        "webhook_take: not who holds something",
        "named(row, 'pending') == 0 and",
        "",
        "webhooks.deliverers_that_are_gone_are_forgotten",
    ),
    Mutant(
        "webhook_take: not who took just now",
        " and named(row, 'idle') >= cfg.lease_ms and",
        " and",
        "webhooks.who_took_lately_is_not_forgotten",
    ),
    Mutant(
        "webhook_take: the group begins at the beginning",
        "call('XGROUP', 'CREATE', DUE, GROUP, '0', 'MKSTREAM')",
        "call('XGROUP', 'CREATE', DUE, GROUP, '$', 'MKSTREAM')",
        "webhooks.what_was_announced_before_anybody_took_is_not_missed",
    ),
    Mutant(
        "webhook_take: not before its time",
        "call('ZRANGEBYSCORE', LATER, '-inf', whole(now), 'WITHSCORES', 'LIMIT'",
        "call('ZRANGEBYSCORE', LATER, '-inf', '+inf', 'WITHSCORES', 'LIMIT'",
        "webhooks.one_that_failed_is_due_again_when_its_time_has_come",
    ),
    Mutant(
        "webhook_take: who forbade it lets others go first",
        caught_by="webhooks.who_forbade_one_lets_others_go_first",
    ),
    Mutant(
        "webhook_take: not what somebody holds",
        "call('XPENDING', DUE, GROUP, 'IDLE', whole(cfg.lease_ms), ",
        "call('XPENDING', DUE, GROUP, 'IDLE', 0, ",
        "webhooks.what_a_silent_deliverer_holds_goes_to_another",
    ),
    Mutant(
        "webhook_take: no more than asked for",
        "'COUNT', wanted - #taken,",
        "'COUNT', 1000,",
        "webhooks.nobody_takes_more_than_it_asks_for",
    ),
    Mutant(
        "webhook_take: none is not all",
        "if #taken < wanted then",
        "if true then",
        "webhooks.nobody_takes_more_than_it_asks_for",
    ),
    Mutant(
        "webhook_take: only what has a message",
        "local message = id and call('HGET', MESSAGES, id)",
        "local message = id and (call('HGET', MESSAGES, id) or '')",
        "webhooks.what_lost_its_message_is_dropped",
    ),
    Mutant(
        "webhook_take: dead ones have an end of life",
        "if call('XTRIM', DEAD, 'MINID', '~', oldest, 'LIMIT', 1000) == 0 "
        "then call('XTRIM', DEAD, 'MINID', '=', oldest) end",
        "",
        "webhooks.dead_ones_are_let_go_of_in_time",
    ),
    Mutant(
        "webhook_settle: only of this attempt",
        "held and call('HGET', TRIES, id) == attempt",
        "held",
        "webhooks.an_attempt_is_not_ended_by_a_former_one_of_the_same_deliverer",
    ),
    Mutant(
        "webhook_settle: once",
        "held and call('HGET', TRIES, id) == attempt",
        "call('HGET', TRIES, id) == attempt",
        "webhooks.an_ending_that_is_said_twice_counts_once",
    ),
    Mutant(
        "webhook_settle: handed back, it does not count",
        "  if ending == 'back' then call('HINCRBY', TRIES, id, -1) end\n",
        "",
        "webhooks.one_that_was_handed_back_does_not_count_it",
    ),
    Mutant(
        "webhook_settle: refusals by settings are counted",
        caught_by="webhooks.refusals_are_counted_apart_from_attempts_until_the_end",
    ),
    Mutant(
        "webhooks: refusals are forgotten at the end",
        "call('HDEL', TRIES, id, 'refused:' .. id, 'refuser:' .. id)",
        "call('HDEL', TRIES, id)",
        "webhooks.refusals_are_counted_apart_from_attempts_until_the_end",
    ),
    Mutant(
        "webhook_settle: dead ones are bounded",
        "'MAXLEN', '~', whole(cfg.dead_cap), ",
        "",
        "webhooks.there_are_not_many_more_dead_ones_than_the_cap",
    ),
    Mutant(
        "webhooks: a full server can be drained",
        "local function open_for_writes() call('XACK', DUE, GROUP, '0-0') end",
        "local function open_for_writes() end",
        "webhooks.a_full_redis_can_be_drained_and_takes_no_more",
    ),
    Mutant(
        "webhook_requeue: not what is gone",
        "if not call('XRANGE', DEAD, letter, letter)[1] then return call('HEXISTS', MESSAGES, id) end\n",
        "",
        "webhooks.one_that_is_gone_is_not_requeued",
    ),
    Mutant(
        "webhook_requeue: not twice",
        "if call('HEXISTS', MESSAGES, id) == 0 then\n",
        "if true then\n",
        "webhooks.one_that_is_outstanding_again_is_not_made_due_twice",
    ),
    Mutant(
        "webhook_requeue: it has not ended any more",
        "call('ZREM', ENDED, id)\n",
        "",
        "webhooks.a_requeued_one_has_all_its_attempts_again",
    ),
    Mutant(
        "webhooks: what is remembered is bounded",
        caught_by="webhooks.what_is_remembered_of_ended_ones_is_bounded",
    ),
    Mutant(
        "gateway_change: unless somebody else was faster",
        caught_by="webhooks.secrets_are_changed_by_one_at_a_time",
    ),
    Mutant(
        "gateway_reserve: of a request without a limit, no more than is left",
        "taken = math.min(taken, math.floor(left))\n",
        "",
        "gateway_keys.what_may_use_more_than_is_left_takes_all_of_it",
    ),
    Mutant(
        "bucket: a debt is not forgotten before it has filled up",
        "math.max(KEPT_MS, until_ms(left, capacity, capacity))",
        "KEPT_MS",
        "gateway_keys.a_debt_is_kept_until_it_has_filled_up",
    ),
)
