"""webhook_announce, _take, _settle, _requeue, _secrets: each event once, each attempt somebody's, nothing lost."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.errors import BrokerOutOfMemory, InvalidRequest
from streamfleet.gateway.broker.webhooks import WebhookBroker, WebhooksFull
from streamfleet.gateway.webhook_messages import (
    Delivery,
    Ending,
    Message,
    Reason,
    Settlement,
    Taken,
    WebhookLimits,
    WebhookNames,
)
from tests.scripts.harness import NOW, Queue
from tests.scripts.keyspace import changed, pairs, text
from tests.scripts.mutants import fails_without

LIMITS = WebhookLimits(now_ms=NOW, outstanding=4, remember_ms=10_000, dead_cap=100, dead_ttl_ms=10_000)
DELIVERED = Settlement(Ending.DELIVERED, status=204)
LATER = Settlement(Ending.LATER, 5_000, status=500, error="the receiver answered 500")
DEAD = Settlement(Ending.DEAD, reason=Reason.GONE, status=410, error="the receiver answered 410")


def message(name: str = "m1") -> Message:
    return Message(name, "https://example.com/hook", "batch.completed", "t1", '{"type":"batch.completed"}', NOW)


class Hooks:
    """Webhooks on a real server, with a clock that stands still, and the whole of their keyspace."""

    def __init__(self, queue: Queue, **limits: Any) -> None:
        self.queue, self.names = queue, WebhookNames()
        self.broker = WebhookBroker(queue.connection, self.names, replace(LIMITS, **limits))

    def at(self, now_ms: int, **limits: Any) -> Hooks:
        return Hooks(self.queue, now_ms=now_ms, **limits)

    async def announced(self, *names: str) -> Hooks:
        for name in names:
            assert await self.broker.announce(message(name))
        return self

    async def take(self, deliverer: str = "d1", most: int = 10) -> Taken:
        return await self.broker.take(deliverer, most)

    async def one(self, deliverer: str = "d1") -> Delivery:
        (delivery,) = (await self.take(deliverer)).deliveries
        return delivery

    async def first(self) -> Delivery:
        """The oldest that is due; others stay."""
        return (await self.take(most=1)).deliveries[0]

    async def settle(self, delivery: Delivery, how: Settlement) -> bool:
        return await self.broker.settle(delivery, how)

    async def dump(self) -> dict[str, Any]:
        """Returns the due ids, the holders, and the other keys as they are; nothing for an empty one."""
        send, names = self.queue.command, self.names
        due = [dict(pairs(fields))["id"] for _, fields in await send("XRANGE", names.due, "-", "+")]
        held = await send("XPENDING", names.due, "deliverers", "-", "+", 100) if await send("EXISTS", names.due) else []
        dead = [dict(pairs(fields)) for _, fields in await send("XRANGE", names.dead, "-", "+")]
        found = {
            "due": due,
            "held": [text(row[1]) for row in held],
            "later": await self._scores(names.later),
            "messages": sorted(map(text, await send("HKEYS", names.messages))),
            "tries": dict(pairs(await send("HGETALL", names.tries))),
            "ended": await self._scores(names.ended),
            "dead": dead,
        }
        return {name: value for name, value in found.items() if value}

    async def _scores(self, key: str) -> dict[str, int]:
        flat = await self.queue.command("ZRANGE", key, 0, -1, "WITHSCORES")
        return {text(member): int(float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)}


async def refusal(work: Awaitable[object]) -> str:
    """Returns an operation's refusal, or "". (A mutant's test misses the exception of pytest.raises.)"""
    try:
        await work
    except (WebhooksFull, InvalidRequest) as error:
        return str(error)
    return ""


async def test_an_announced_webhook_is_due(queue: Queue) -> None:
    hooks = Hooks(queue)
    await hooks.take()
    assert await hooks.broker.announce(message())
    assert await hooks.dump() == {"due": ["m1"], "messages": ["m1"]}
    taken = await hooks.take()
    assert [(each.id, each.attempt, each.message) for each in taken.deliveries] == [("m1", 1, message())]
    assert (taken.now_ms, taken.next_ms, taken.outstanding) == (NOW, None, 1)
    assert await hooks.dump() == {"due": ["m1"], "held": ["d1"], "messages": ["m1"], "tries": {"m1": "1"}}


@fails_without("webhook_take: the group begins at the beginning", "', DUE, GROUP, '0', '", "', DUE, GROUP, '$', '")
async def test_what_was_announced_before_anybody_took_is_not_missed(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1", "m2")
    assert [each.id for each in (await hooks.take()).deliveries] == ["m1", "m2"]


@fails_without(
    "webhook_announce: once while outstanding", "HEXISTS', MESSAGES, id) == 1 or call('", "", argument="later"
)
@fails_without("webhook_announce: once when ended", "== 1 or call('ZSCORE', ENDED, id)", "== 1", argument="dead")
@pytest.mark.parametrize("stage", ["due", "held", "later", "delivered", "dead"])
async def test_an_event_is_announced_once_wherever_it_is(queue: Queue, stage: str) -> None:
    hooks = await Hooks(queue).announced("m1")
    if stage != "due":
        delivery = await hooks.one()
        how = {"later": LATER, "delivered": DELIVERED, "dead": DEAD}.get(stage)
        assert how is None or await hooks.settle(delivery, how)
    before = await hooks.dump() if stage != "due" else None
    assert not await hooks.broker.announce(message())
    assert before is None or await hooks.dump() == before


@fails_without("webhooks: ended ones are remembered")
@fails_without("webhook_take: not for ever")
async def test_an_ended_event_is_remembered_for_a_while(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    await hooks.settle(await hooks.one(), DELIVERED)
    assert await hooks.dump() == {"ended": {"m1": NOW}}
    await hooks.at(NOW + 9_999).take()
    assert not await hooks.at(NOW + 9_999).broker.announce(message())
    await hooks.at(NOW + 10_000).take()
    assert await hooks.dump() == {}
    assert await hooks.at(NOW + 10_000).broker.announce(message())


@fails_without("webhook_settle: refusals by settings are counted")
@fails_without("webhooks: refusals are forgotten at the end", ", id, 'refused:' .. id, 'refuser:' .. id", ", id")
async def test_refusals_are_counted_apart_from_attempts_until_the_end(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    refused = Settlement(Ending.BACK, reason=Reason.REFUSED)
    for how, refusals, attempt in ((refused, 0, 1), (Settlement(Ending.BACK), 1, 1), (refused, 1, 1), (LATER, 2, 1)):
        delivery = await hooks.one()
        assert (delivery.refusals, delivery.attempt) == (refusals, attempt)
        assert await hooks.settle(delivery, how)
    later = hooks.at(NOW + 6_000)
    delivery = await later.one()
    assert (delivery.refusals, delivery.attempt) == (2, 2)
    assert await later.settle(delivery, DEAD)
    assert "tries" not in await later.dump()


@fails_without("webhook_take: who forbade it lets others go first")
async def test_who_forbade_one_lets_others_go_first(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    refused = Settlement(Ending.BACK, 1_000, Reason.REFUSED)
    assert await hooks.settle(await hooks.one("d1"), refused)
    due = hooks.at(NOW + 1_000)
    assert not (await due.take("d1")).deliveries
    assert await due.settle(await due.one("d2"), refused)
    assert not (await hooks.at(NOW + 2_999).take("d2")).deliveries
    await hooks.at(NOW + 3_000).one("d2")  # nobody else came


@fails_without("webhook_announce: bounded", "call('HLEN', MESSAGES) >= cfg.outstanding", "false")
async def test_so_many_are_outstanding_and_no_more(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1", "m2", "m3", "m4")
    assert "4 webhooks are outstanding" in await refusal(hooks.broker.announce(message("m5")))
    assert not await hooks.broker.announce(message("m4")), "one that is there is no new one"
    first = (await hooks.take(most=1)).deliveries[0]
    await hooks.settle(first, LATER)
    assert await refusal(hooks.broker.announce(message("m5")))
    await hooks.settle((await hooks.take(most=1)).deliveries[0], DELIVERED)
    assert await hooks.broker.announce(message("m5"))


@fails_without("webhook_announce: bounded for each tenant")
@fails_without("webhook_announce: a tenant's count comes down", "mine >= cfg.per_tenant or call", "call")
@fails_without("webhook_announce: not all are counted at every announcement", "[2]) or 0)) >= 1000", "[2]) or 0)) >= 0")
@fails_without("webhook_announce: only the tenant's own count", "return counts[tenant] or 0", "return #all / 2")
async def test_one_tenant_does_not_take_what_all_may_have(queue: Queue) -> None:
    hooks = await Hooks(queue, per_tenant=2).announced("m1", "m2")
    assert "2 webhooks of this tenant are outstanding" in await refusal(hooks.broker.announce(message("m3")))
    assert await hooks.broker.announce(replace(message("m4"), tenant="t2")), "it is another's"
    await hooks.settle(await hooks.first(), DELIVERED)
    assert await refusal(hooks.at(NOW + 999, per_tenant=2).broker.announce(message("m3"))), "counted a moment ago"
    later = hooks.at(NOW + 1_000, per_tenant=2)
    assert await later.broker.announce(message("m3"))
    assert await refusal(later.broker.announce(message("m5")))


@fails_without("webhook_announce: what has ended is forgotten", " or call('HLEN', USE) > 2 * cfg.outstanding", "")
async def test_what_tenants_used_is_forgotten(queue: Queue) -> None:
    """Also where none of them comes to its limit: anybody may have a key of their own."""
    hooks = Hooks(queue, outstanding=5)
    for number in range(40):
        hooks = hooks.at(NOW + 1_000 * number, outstanding=5)
        assert await hooks.broker.announce(replace(message(f"m{number}"), tenant=f"t{number}"))
        await hooks.settle(await hooks.first(), DELIVERED)
    assert await queue.command("HLEN", hooks.broker.names.use) <= 2 * 5 + 3


async def test_without_keys_there_is_no_tenant_to_hold_back(queue: Queue) -> None:
    hooks = Hooks(queue, per_tenant=1)
    for name in ("m1", "m2", "m3"):
        assert await hooks.broker.announce(replace(message(name), tenant=""))


async def test_a_requeued_one_counts_again_as_its_tenants(queue: Queue) -> None:
    hooks = await Hooks(queue, per_tenant=2).announced("m1", "m2")
    await hooks.settle(await hooks.first(), DEAD)
    (letter,) = await hooks.broker.dead(1)
    assert await hooks.broker.requeue(letter.letter_id, message())
    assert await refusal(hooks.at(NOW + 1_000, per_tenant=2).broker.announce(message("m3")))


@fails_without("webhook_take: not before its time", "', LATER, '-inf', whole(now), '", "', LATER, '-inf', '+inf', '")
async def test_one_that_failed_is_due_again_when_its_time_has_come(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    assert await hooks.settle(await hooks.one(), LATER)
    assert await hooks.dump() == {"later": {"m1": NOW + 5_000}, "messages": ["m1"], "tries": {"m1": "1"}}
    early = await hooks.at(NOW + 4_999).take()
    assert (early.deliveries, early.next_ms) == ([], 1)
    again = await hooks.at(NOW + 5_000).one()
    assert (again.id, again.attempt) == ("m1", 2)
    assert await hooks.dump() == {"due": ["m1"], "held": ["d1"], "messages": ["m1"], "tries": {"m1": "2"}}


@fails_without("webhook_settle: handed back, it does not count")
async def test_one_that_was_handed_back_does_not_count_it(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    for _ in range(3):
        delivery = await hooks.one()
        assert delivery.attempt == 1
        assert await hooks.settle(delivery, Settlement(Ending.BACK))
    assert await hooks.dump() == {"due": ["m1"], "messages": ["m1"], "tries": {"m1": "0"}}, "at once"
    assert await hooks.settle(await hooks.one(), Settlement(Ending.BACK, 3_000))
    assert await hooks.dump() == {"later": {"m1": NOW + 3_000}, "messages": ["m1"], "tries": {"m1": "0"}}


async def test_a_dead_one_is_kept_with_its_reason(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    assert await hooks.settle(await hooks.one(), DEAD)
    assert await hooks.dump() == {
        "ended": {"m1": NOW},
        "dead": [
            {
                "id": "m1",
                "message": message().encoded(),
                "attempts": "1",
                "reason": "gone",
                "status": "410",
                "error": "the receiver answered 410",
            }
        ],
    }
    (letter,) = await hooks.broker.dead(10)
    assert (letter.message, letter.reason, letter.attempts, letter.status) == (message(), "gone", 1, 410)


@fails_without("webhook_take: not what somebody holds", ", GROUP, 'IDLE', whole(cfg.lease_ms),", ", GROUP, 'IDLE', 0,")
async def test_what_a_silent_deliverer_holds_goes_to_another(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    mine = await hooks.one("d1")
    assert (await hooks.take("d2")).deliveries == [], "not before its lease is over"
    theirs = await hooks.at(NOW, lease_ms=0).one("d2")
    assert (theirs.id, theirs.attempt) == ("m1", 2)
    before = await hooks.dump()
    for how in (DELIVERED, LATER, DEAD, Settlement(Ending.BACK)):
        assert not await hooks.settle(mine, how)
        assert await hooks.dump() == before, "who lost its lease writes nothing"
    assert await hooks.settle(theirs, DELIVERED)
    assert await hooks.dump() == {"ended": {"m1": NOW}}


@fails_without("webhooks: what is remembered is bounded")
async def test_what_is_remembered_of_ended_ones_is_bounded(queue: Queue) -> None:
    hooks = Hooks(queue)
    for number in range(10 * LIMITS.outstanding + 5):
        later = hooks.at(NOW + number)
        await later.announced(f"m{number}")
        assert await later.settle(await later.one(), DELIVERED)
    assert await queue.command("ZCARD", hooks.names.ended) == 10 * LIMITS.outstanding
    assert await queue.command("ZSCORE", hooks.names.ended, "m4") is None
    assert await queue.command("ZSCORE", hooks.names.ended, "m5") is not None


@fails_without("webhook_settle: only of this attempt", "held and call('HGET', TRIES, id) == attempt", "held")
async def test_an_attempt_is_not_ended_by_a_former_one_of_the_same_deliverer(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    former = await hooks.one("d1")
    latter = await hooks.at(NOW, lease_ms=0).one("d1")
    before = await hooks.dump()
    assert not await hooks.settle(former, DELIVERED)
    assert await hooks.dump() == before
    assert await hooks.settle(latter, DELIVERED)


@fails_without("webhook_settle: once", "held and call('HGET', TRIES, id) ==", "call('HGET', TRIES, id) ==")
async def test_an_ending_that_is_said_twice_counts_once(queue: Queue) -> None:
    """An answer was lost, so it is said again; meanwhile another took it, for what counts as the same attempt."""
    hooks = await Hooks(queue).announced("m1")
    delivery = await hooks.one("d1")
    assert await hooks.settle(delivery, Settlement(Ending.BACK))
    theirs = await hooks.one("d2")
    assert theirs.attempt == delivery.attempt
    before = await hooks.dump()
    assert not await hooks.settle(delivery, Settlement(Ending.BACK))
    assert await hooks.dump() == before
    assert await hooks.settle(theirs, DEAD)
    before = await hooks.dump()
    assert not await hooks.settle(theirs, DEAD)
    assert await hooks.dump() == before


@fails_without("webhook_take: no more than asked for", "'COUNT', wanted - #taken,", "'COUNT', 1000,")
@fails_without("webhook_take: none is not all", "if #taken < wanted then", "if true then")
async def test_nobody_takes_more_than_it_asks_for(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1", "m2", "m3")
    assert (await hooks.take(most=0)).deliveries == []
    assert [each.id for each in (await hooks.take(most=2)).deliveries] == ["m1", "m2"]
    brief = hooks.at(NOW, lease_ms=0)
    assert [each.id for each in (await brief.take("d2", 2)).deliveries] == ["m1", "m2"]
    assert [each.id for each in (await brief.take("d2", 3)).deliveries] == ["m1", "m2", "m3"]


@fails_without(
    "webhook_take: only what has a message", "and call('HGET', MESSAGES, id)", "and (call('HGET', MESSAGES, id) or '')"
)
async def test_what_lost_its_message_is_dropped(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1", "m2")
    await queue.command("HDEL", hooks.names.messages, "m1")
    assert [each.id for each in (await hooks.take()).deliveries] == ["m2"]
    assert (await hooks.dump())["due"] == ["m2"]


async def test_what_cannot_be_read_is_still_somebodys(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    await queue.command("HSET", hooks.names.messages, "m1", "no JSON")
    delivery = await hooks.one()
    assert (delivery.id, delivery.message) == ("m1", None)
    assert await hooks.settle(delivery, DEAD)
    (letter,) = await hooks.broker.dead(1)
    assert (letter.webhook_id, letter.message) == ("m1", None)


@fails_without("webhooks: a full server can be drained", "() call('XACK', DUE, GROUP, '0-0') end", "() end")
async def test_a_full_redis_can_be_drained_and_takes_no_more(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1", "m2", "m3")
    async with queue.full_memory():
        with pytest.raises(BrokerOutOfMemory):
            await hooks.broker.announce(message("m4"))
        first, second, third = (await hooks.take()).deliveries
        assert await hooks.settle(first, DELIVERED)
        assert await hooks.settle(second, LATER)
        assert await hooks.settle(third, DEAD)
    after = await hooks.dump()
    assert (after["messages"], [letter["id"] for letter in after["dead"]]) == (["m2"], ["m3"])


@fails_without("webhook_take: dead ones have an end of life")
async def test_dead_ones_are_let_go_of_in_time(queue: Queue) -> None:
    hooks = Hooks(queue)
    for time_ms in (NOW - 20_000, NOW - 10_001, NOW - 10_000, NOW):
        await queue.command("XADD", hooks.names.dead, f"{time_ms}-1", "id", str(time_ms))
    await hooks.take()
    assert [letter["id"] for letter in (await hooks.dump())["dead"]] == [str(NOW - 10_000), str(NOW)]


@fails_without("webhook_settle: dead ones are bounded", "'MAXLEN', '~', whole(cfg.dead_cap), ", "")
async def test_there_are_not_many_more_dead_ones_than_the_cap(queue: Queue) -> None:
    hooks = Hooks(queue, dead_cap=10)
    for number in range(400):
        await queue.command("XADD", hooks.names.dead, f"{NOW + number}-1", "id", str(number))
    await hooks.announced("m1")
    await hooks.settle(await hooks.one(), DEAD)
    assert len((await hooks.dump())["dead"]) < 250, "as near as Redis does it by the node"


@fails_without("webhook_requeue: it has not ended any more")
@pytest.mark.every_release
async def test_a_requeued_one_has_all_its_attempts_again(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    await hooks.settle(await hooks.one(), DEAD)
    (letter,) = await hooks.broker.dead(1)
    again = replace(message(), since_ms=NOW + 1)
    assert await hooks.broker.requeue(letter.letter_id, again)
    assert await hooks.dump() == {"due": ["m1"], "messages": ["m1"]}
    before = await hooks.dump()
    assert await hooks.broker.requeue(letter.letter_id, again), "asked again, it says the same"
    assert await hooks.dump() == before
    delivery = await hooks.one()
    assert (delivery.attempt, delivery.message) == (1, again)


@fails_without("webhook_requeue: not what is gone")
async def test_one_that_is_gone_is_not_requeued(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    await hooks.settle(await hooks.one(), DEAD)
    before = await hooks.dump()
    assert not await hooks.broker.requeue("1-1", message("m2"))
    assert await hooks.dump() == before


@fails_without("webhook_requeue: not twice", "if call('HEXISTS', MESSAGES, id) == 0 then\n", "if true then\n")
async def test_one_that_is_outstanding_again_is_not_made_due_twice(queue: Queue) -> None:
    """It died, was forgotten, and its event was announced anew: then somebody requeues the letter."""
    hooks = await Hooks(queue).announced("m1")
    await hooks.settle(await hooks.one(), DEAD)
    (letter,) = await hooks.broker.dead(1)
    await queue.command("DEL", hooks.names.ended)
    await hooks.announced("m1")
    before = await hooks.dump()
    assert await hooks.broker.requeue(letter.letter_id, message())
    assert await hooks.dump() == changed(before, {"dead": None})


async def test_a_requeue_needs_room(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    await hooks.settle(await hooks.one(), DEAD)
    before = await hooks.dump()
    (letter,) = await hooks.broker.dead(1)
    async with queue.full_memory():
        with pytest.raises(BrokerOutOfMemory):
            await hooks.broker.requeue(letter.letter_id, message())
    assert await hooks.dump() == before


@fails_without("gateway_change: unless somebody else was faster")
async def test_secrets_are_changed_by_one_at_a_time(queue: Queue) -> None:
    hooks = Hooks(queue)
    assert await hooks.broker.secrets("t1") == b""
    await hooks.broker.set_secrets("t1", b"", b"first")
    await hooks.broker.set_secrets("t1", b"", b"first")  # sent again after a lost answer
    assert "by somebody else" in await refusal(hooks.broker.set_secrets("t1", b"", b"other"))
    await hooks.broker.set_secrets("t1", b"first", b"second")
    assert await hooks.broker.every_secret() == {"t1": b"second"}


# -- who is gone -------------------------------------------------------------------------------------------


async def came(hooks: Hooks, *names: str) -> None:
    """Deliverers that took at some time; Redis makes them consumers then, before 7.2 when there is something."""
    for name in names:
        await hooks.queue.command("XGROUP", "CREATECONSUMER", hooks.names.due, "deliverers", name)


async def deliverers(hooks: Hooks) -> list[str]:
    """Consumers but d1, who takes."""
    rows = await hooks.queue.command("XINFO", "CONSUMERS", hooks.names.due, "deliverers")
    return sorted({text(row[row.index(b"name") + 1]) for row in rows} - {"d1"})


async def silent(hooks: Hooks) -> None:
    """Wait until everybody has been silent for longer than a lease of a millisecond, by the server's clock."""
    await hooks.queue.command("BLPOP", "nothing", 0.01)


@fails_without("webhook_take: who is gone is forgotten")
@fails_without("webhook_take: not who holds something", "named(row, 'pending') == 0 and", "")
async def test_deliverers_that_are_gone_are_forgotten(queue: Queue) -> None:
    hooks = await Hooks(queue).announced("m1")
    await hooks.take("gone-1")
    await came(hooks, "gone-2", "gone-3")
    await silent(hooks)
    await Hooks(queue, lease_ms=1).take("d1", 0)
    assert await deliverers(hooks) == ["gone-1"], "it holds a webhook, which its lease returns"
    taken = await Hooks(queue, lease_ms=1).take("d1")
    assert [delivery.id for delivery in taken.deliveries] == ["m1"]
    assert await deliverers(hooks) == []


@fails_without("webhook_take: not who took just now", " and named(row, 'idle') >= cfg.lease_ms and", " and")
async def test_who_took_lately_is_not_forgotten(queue: Queue) -> None:
    hooks = Hooks(queue)
    await hooks.take()
    await came(hooks, "d2")
    await hooks.take()
    assert await deliverers(hooks) == ["d2"]


async def test_so_many_are_forgotten_at_once_and_no_more(queue: Queue) -> None:
    hooks = Hooks(queue, lease_ms=1)
    await hooks.take()
    await came(hooks, *(f"gone-{number}" for number in range(150)))
    await silent(hooks)
    await hooks.take()
    assert len(await deliverers(hooks)) == 50
    await hooks.take()
    assert await deliverers(hooks) == []
