"""Everything that each role's work consists of, done as its user. Any missing permission ends a job with an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from streamfleet.common.broker.reconciling import PARTS
from streamfleet.common.broker.types import Completion, Home, Lease, Pulled, Retry, Rooms, TenantRule, TokenGroup
from streamfleet.common.broker.types import Role as Waiting
from streamfleet.common.connection import Connection
from streamfleet.common.errors import QueueFull, openai_error
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.common.settings import QueueSettings, load
from streamfleet.gateway.api_keys import GatewayNames, digest_of, make_record, new_secret
from streamfleet.gateway.broker.api_keys import GatewayBroker, Held, ReserveCode, Verdict
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.webhook_messages import (
    Ending,
    Message,
    Reason,
    Settlement,
    WebhookLimits,
    WebhookNames,
)
from streamfleet.operator.access_rules import Role
from streamfleet.operator.dead_letters import find_letter, letters, requeue
from streamfleet.operator.repair import Inspection
from streamfleet.operator.snapshot import take_snapshot
from streamfleet.producer.client import Client
from streamfleet.worker.housekeeping import CancelRequestProcessor
from streamfleet.worker.services.homes import keep_homes
from streamfleet.worker.services.pace import measure_pace
from streamfleet.worker.services.tenants import keep_tenants
from tests.broker import Broker
from tests.security.batch_job import run_batches
from tests.security.guarded import NOW, QUEUE, Guarded, allowed
from tests.security.response_job import erase_responses, store_responses
from tests.waiting import eventually

BODY = {"prompt": "hi"}
LARGE = {"prompt": "x" * 16_384}
"""Large enough for the client to ask how many bytes its lane has."""
ERROR = openai_error("it did not work", "server_error", None, "broken")
CLUSTER = (("CLUSTER", "SLOTS"), ("CLUSTER", "SHARDS"), ("CLUSTER", "NODES"), ("READONLY",))


async def claim(broker: Broker, lane: Lane | None = None) -> Lease:
    """The best entry, now w1's, and of the lane that it should be of."""
    (found,) = (await broker.pull("w1", 1)).claims
    assert lane in (None, found.lease.lane)
    return found.lease


def succeeded(lease: Lease, reply: str = "") -> Completion:
    return Completion(lease, Status.SUCCEEDED, {"response": "{}", "http_status": "200"}, reply, "")


async def add(broker: Broker, lane: Lane, stream_id: str = "*", **fields: str) -> str:
    """A plain XADD by somebody who may."""
    values = {"body": json.dumps(BODY), **fields}
    flat = [part for pair in values.items() for part in pair]
    return str((await broker.connection.command("XADD", broker.keys.lane(lane), stream_id, *flat)).decode())


# -- producer ----------------------------------------------------------------------------------------------


async def produce(guarded: Guarded, url: str) -> None:
    """Enqueue, ask, wait, cancel; with the client, and by hand."""
    async with guarded.broker() as fleet, Client(url, QUEUE, patience_s=0) as client:
        for lane in LANES:
            handle = await client.enqueue(LARGE, id=f"r-{lane}", lane=lane)
            assert (await handle.status()).state == "queued"
            await fleet.pull("w1", 0)
            assert (await handle.status()).place == 0
            assert (await client.broker.expected([(lane, None, None, 10)]))[0].place is not None
            lease = await claim(fleet, lane)
            assert (await handle.status()).worker == "w1"
            assert await client.broker.known([handle.id, "never-there"]) == [handle.entry, None]
            waiting = asyncio.create_task(handle.result(5))
            await fleet.complete("w1", [succeeded(lease, client.mailbox.name)])
            assert (await waiting).ok
            await client.broker.trim_replies(client.mailbox.name, "0-1")
            assert (await handle.status()).ended
        await beside_a_session(fleet, client)
        await in_turns(fleet, client)
        await reads_along(fleet, client)
        reply = client.broker.keys.reply(client.mailbox.name)
        await cancelled(fleet, client)
        await by_hand(Broker.of(client.broker))
        assert await fleet.connection.command("EXISTS", reply)
    async with guarded.broker() as fleet:
        assert not await fleet.connection.command("EXISTS", reply), "the client took its reply stream with it"


async def beside_a_session(fleet: Broker, client: Client) -> None:
    """Of two requests, the first waits for its worker."""

    async def take() -> None:
        (row,) = (await fleet.pull("w1", 1, home=Home("1", 0))).claims
        await fleet.complete("w1", [succeeded(row.lease)])

    for _ in range(2):
        await client.enqueue(BODY, lane=Lane.LOW, session="s")
        await fleet.pull("w2", 0)
        await take()
    await client.enqueue(BODY, lane=Lane.LOW, session="s", ttl_ms=50_000)
    handle = await client.enqueue(BODY, lane=Lane.LOW)
    await fleet.pull("w2", 0)
    assert (await handle.status()).place == 1
    await take()
    await take()


async def in_turns(fleet: Broker, client: Client) -> None:
    """A small tenant's request beside those of another: its place is that of its turn."""
    await fleet.connection.command("HSET", fleet.keys.tenants, "small", "2")
    for lane in LANES:
        for _ in range(2):
            await client.enqueue(BODY, lane=lane, ttl_ms=50_000, tenant="big")
        handle = await client.enqueue(BODY, lane=lane, ttl_ms=60_000, tenant="small")
        await fleet.pull("w1", 0)
        await fleet.after_staging()
        assert (await handle.status()).place in (0, 1), "not behind both of the other tenant"
        for _ in range(3):
            await fleet.complete("w1", [succeeded(await claim(fleet), client.mailbox.name)])
    many = [word for number in range(9_000) for word in (f"1t{number}", "1-1 1 1;")]
    await fleet.connection.command("HSET", fleet.keys.arrivals, *many)
    await client.enqueue(BODY, ttl_ms=60_000, tenant="late")
    assert await fleet.connection.command("HLEN", fleet.keys.arrivals) < 9
    await fleet.complete("w1", [succeeded(await claim(fleet), client.mailbox.name)])


async def reads_along(fleet: Broker, client: Client) -> None:
    """The tokens of a request, from its first chunk to its end."""
    handle = await client.enqueue(BODY, id="r-stream", stream=True)
    lease = await claim(fleet)
    chunk = b'{"choices": [{"index": 0, "text": "hi"}]}'
    await fleet.publish_tokens([TokenGroup("r-stream", 1, "run", 0, chunk, True)], 100)
    await fleet.complete("w1", [Completion(lease, Status.SUCCEEDED, {"response": "{}", "streamed": 1}, "", "")])
    assert [chunk.text async for chunk in handle.stream()] == ["hi"]


async def cancelled(fleet: Broker, client: Client) -> None:
    """A request that waits for its next try is cancelled by asking for it."""
    handle = await client.enqueue(BODY, id="r-cancel")
    await fleet.retry_later("w1", [Retry(await claim(fleet), 600_000, ERROR)], 5)
    assert (await handle.status()).state == "queued"
    asked = eventually(lambda: CancelRequestProcessor(fleet).process(10), 10, "the cancel was asked for")
    did, _ = await asyncio.gather(handle.cancel(), asked)
    assert did
    assert await handle.cancel(), "a second time it is known already"


async def by_hand(broker: Broker) -> None:
    """Send everything that a program without the client sends."""
    keys = broker.keys
    for lane in LANES:
        assert await broker.connection.command("XADD", keys.lane(lane), "*", "id", f"h-{lane}", "body", "{}")
        assert await broker.connection.command("XLEN", keys.lane(lane)) >= 1
    result = keys.result("r-high")
    assert await broker.connection.command("HGET", result, "status") == b"succeeded"
    assert await broker.connection.command("HMGET", result, "status") == [b"succeeded"]
    assert await broker.connection.command("HEXISTS", result, "status")
    assert await broker.connection.command("EXISTS", result)
    for words in (("SELECT", 0), ("WAIT", 0, 0), *CLUSTER):
        await allowed(broker, *words)


# -- worker ------------------------------------------------------------------------------------------------


async def work(guarded: Guarded, url: str) -> None:
    """Every operation of a worker, each by every way that it can go."""
    async with guarded.broker() as admin, guarded.broker(url, now_ms=NOW) as me, guarded.broker(url) as now:
        await me.connection.ping()
        for words in (("SELECT", 0), ("INFO",), *CLUSTER):
            await allowed(me, *words)
        await me.ensure_groups()
        assert (await now.acquire_housekeeping_lock("w1", 1_000, 5_000)).mine
        agreed = await now.agree()
        assert await now.heartbeat("w1", {"engine": "simulated"}) == agreed == await now.configuration()
        assert await now.worker("w1") is not None
        await waits(admin, me)
        await gives_way(admin, me)
        for lane in LANES:
            await one_lane(admin, me, lane)
        await shares(admin, me)
        await has_sessions(admin, me, guarded, url)
        await later(admin, me, guarded, url)
        await streams(admin, me)
        await cancels(admin, me)
        await ends_many(admin, me)
        await leaves(admin, me)
        await makes_anew(admin, me)


async def ends_many(admin: Broker, me: Broker) -> None:
    """Requests of an API key that end: of their results, the oldest goes."""
    small = type(me)(me.connection, me.keys, replace(me.limits, tenant_result_bytes=1))
    for i in range(2):
        await add(admin, Lane.HIGH, f"{NOW}-{90 + i}", id=f"many-{i}", tenant="a", bounded="1")
        lease = await claim(small)
        await small.complete("w1", [Completion(lease, Status.SUCCEEDED, {"tenant": "a", "bounded": "1"})])
    left = await admin.connection.command("LRANGE", me.keys.ended("a"), 0, -1)
    assert [each.split()[2] for each in left] == [b"many-1"]


async def waits(admin: Broker, me: Broker) -> None:
    """Nothing to do: watch, wait by name, be woken, put back what came."""
    assert (await me.pull("w1", 1)).role is Waiting.WATCHER
    blocked = asyncio.create_task(me.wait(60_000, "w1"))
    async with asyncio.timeout(5):
        while not blocked.done():
            await me.unblock()
            await asyncio.sleep(0)
    await blocked
    await me.wait(2, "w1")
    stream_id = await add(admin, Lane.LOW, f"{NOW}-1", id="hinted")
    hints = await me.watch(1_000)
    assert [hint.stream_id for hint in hints] == [stream_id]
    await admin.connection.command("XADD", me.keys.wake, "*", "t", "1")
    hints += await me.watch(1_000)
    (found,) = (await me.pull("w1", 1, hints)).claims
    assert found.lease.stream_id == stream_id
    await me.complete("w1", [succeeded(found.lease)])


async def gives_way(admin: Broker, me: Broker) -> None:
    """Full of patient work: wait, be woken, keep what was generated, go on with it."""
    await add(admin, Lane.LOW, f"{NOW}-2", id="patient")
    patient = await claim(me, Lane.LOW)
    for worker in ("w1", "w2", "w3"):
        await me.pull(worker, Rooms((1, 1, 0, 0), (0,) * 4, 0))
    await me.pull("w2", 0, owing=True)
    assert await me.wait(1_000, "w3") is True
    assert await admin.connection.command("LLEN", me.keys.wake_up("w3")) == 0
    for worker in ("w1", "w3"):
        await me.pull(worker, 0, owing=True)
    assert await me.keep({"run": b"1 state"})
    assert await me.release("w1", [patient], gave_way=True, kept={patient: ("run", 7)}) == 1
    (again,) = (await me.pull("w1", 1)).claims
    assert (again.interrupted, await me.kept([again.kept])) == (1, [b"1 state"])
    await me.complete("w1", [succeeded(again.lease)])


async def one_lane(admin: Broker, me: Broker, lane: Lane) -> None:
    """The ways of an entry, in one lane: done, released, taken back, expired, vanished."""
    await add(admin, lane, f"{NOW}-10", id=f"{lane}-done", reply="somebody")
    lease = await claim(me, lane)
    assert await me.renew("w1", [lease]) == [1]
    assert await me.release("w1", [lease]) == 1
    lease = await claim(me, lane)
    assert (await me.reclaim(0, 5)).ready == 1
    lease = await claim(me, lane)
    assert await me.disown("w1", [lease]) == 0
    assert await me.complete("w1", [succeeded(lease, "somebody")]) == [1]
    await add(admin, lane, f"{NOW}-11", id=f"{lane}-late", deadline=str(NOW + 5), reply="somebody")
    await me.pull("w1", 0)
    me.limits, later = me.limits, type(me)(me.connection, me.keys, _at(me, NOW + 10))
    assert (await later.after_staging())[0] == 1
    pace = json.loads(await later.connection.command("GET", later.keys.pace))
    assert pace["lanes"][lane.number - 1]["read"], "arrivals are counted"
    await add(admin, lane, f"{NOW}-12", id=f"{lane}-gone")
    lease = await claim(me, lane)
    await later.serve(measure_pace)
    pace = json.loads(await later.connection.command("GET", later.keys.pace))
    assert pace["lanes"][lane.number - 1]["who"], "it is seen who sends them"
    await admin.connection.command("XDEL", me.keys.lane(lane), f"{NOW}-12")
    await me.renew("w1", [lease])


async def shares(admin: Broker, me: Broker) -> None:
    """Tenants take turns: one may run one request at once; one is cancelled; what is left of them is looked after."""
    await admin.set_tenant("a", TenantRule(2, 1))
    for i, tenant in enumerate("aab"):
        await add(admin, Lane.HIGH, f"{NOW}-{15 + i}", tenant=tenant)
    found = (await me.pull("w1", 2)).claims
    assert len(found) == 2
    await me.complete("w1", [succeeded(row.lease) for row in found])
    await me.after_staging()
    await me.cancel(f"high:{NOW}-16")
    await me.complete("w1", [succeeded(row.lease) for row in (await me.pull("w1", 2)).claims])
    await me.serve(keep_tenants)
    assert await admin.connection.command("HEXISTS", me.keys.served, "t|b"), "without its rights, lanes go by deadline"
    assert not await admin.connection.command("EXISTS", me.keys.turns(Lane.HIGH))


async def has_sessions(admin: Broker, me: Broker, guarded: Guarded, url: str) -> None:
    """Sessions have homes: one is woken, one is asked in vain, one cancelled; nothing is left of them after an hour."""

    async def pull(worker: str, wanted: int = 1, start: str = "1", broker: Broker = me) -> Pulled:
        return await broker.pull(worker, wanted, home=Home(start, 0))

    await add(admin, Lane.HIGH, f"{NOW}-18")
    await me.pull("w1", 0)  # ready before the first session: it stands in no index of homes
    await add(admin, Lane.HIGH, f"{NOW}-19", session="s")
    for worker in ("w1", "w2", "w3"):
        for row in (await pull(worker, 2)).claims:
            await me.complete(worker, [succeeded(row.lease)])
    await add(admin, Lane.HIGH, f"{NOW}-20", session="s")
    await pull("w3", 0)
    assert await me.cancel(f"high:{NOW}-20")
    assert [(await pull(worker)).role for worker in ("w2", "w3", "w1")][-1] is Waiting.WAITER
    await add(admin, Lane.HIGH, f"{NOW}-21", session="s")
    await add(admin, Lane.HIGH, f"{NOW}-22", session="s")
    assert not (await pull("w2")).claims
    assert await admin.connection.command("PTTL", me.keys.wake_up("w1")) > 0
    await me.wait(5_000, "w1")
    assert await admin.connection.command("LLEN", me.keys.wake_up("w1")) == 0
    (first,) = (await pull("w1")).claims
    (second,) = (await pull("w1", start="2")).claims  # another start of it: anybody's
    await me.complete("w1", [succeeded(first.lease), succeeded(second.lease)])
    await add(admin, Lane.HIGH, f"{NOW}-23", session="next")  # its name decides between idle workers
    for worker in ("w1", "w2", "w3"):
        for row in (await pull(worker, start="2")).claims:
            await me.complete(worker, [succeeded(row.lease)])
    async with guarded.broker(url, now_ms=NOW + 3_700_000) as then:
        for _ in range(5):
            await then.serve(keep_homes, keep_tenants)
    keys = me.keys
    assert not await admin.connection.command("EXISTS", keys.tickets, keys.sessions, keys.loads, keys.served)


def _at(broker: Broker, now_ms: int) -> Any:
    return replace(broker.limits, now_ms=now_ms)


async def later(admin: Broker, me: Broker, guarded: Guarded, url: str) -> None:
    """A passing fault, and one too many."""
    await add(admin, Lane.NORMAL, f"{NOW}-20", id="again", reply="somebody")
    assert await me.retry_later("w1", [Retry(await claim(me), 1_000, ERROR)], 2) == [1]
    async with guarded.broker(url, now_ms=NOW + 2_000) as then:
        assert (await then.return_delayed())[0] == 1
        assert await then.retry_later("w1", [Retry(await claim(then), 0, ERROR)], 2) == [2]
    await add(admin, Lane.NORMAL, f"{NOW}-21", id="wrong")
    lease = await claim(me)
    await admin.connection.command("SET", me.keys.result("wrong"), "by hand")
    assert await me.complete("w1", [Completion(lease, Status.FAILED, {"http_status": "400"}, "", ERROR)]) == [1]


async def streams(admin: Broker, me: Broker) -> None:
    """A request whose tokens are read while they come."""
    await add(admin, Lane.HIGH, f"{NOW}-25", id="streamed", stream="1")
    lease = await claim(me)
    await me.publish_tokens([TokenGroup("streamed", 1, "run", 0, b"{}", True)], 100)
    await me.complete("w1", [Completion(lease, Status.SUCCEEDED, {"response": "{}", "streamed": 1}, "", "")])
    assert await admin.connection.command("XLEN", me.keys.tokens("streamed")) == 2
    assert await admin.connection.command("PTTL", me.keys.tokens("streamed")) > 0


async def cancels(admin: Broker, me: Broker) -> None:
    """A request is cancelled while it runs, because somebody asked for it."""
    await add(admin, Lane.HIGH, f"{NOW}-30", id="stop")
    lease, last = await claim(me), await me.last_notice()
    for request_id in ("stop", "stop", "nobody's"):
        await admin.ask_to_cancel(request_id)
    assert await CancelRequestProcessor(me).process(10) == 3
    assert (await me.read_notices(last, 1_000)).cancelled == ["stop"]
    assert not await admin.connection.command("XLEN", me.keys.cancel_requests)
    assert await me.renew("w1", [lease]) == [2]
    await me.complete("w1", [Completion(lease, Status.CANCELLED, {}, "", ERROR)])


async def leaves(admin: Broker, me: Broker) -> None:
    """A worker that leaves is forgotten in every lane."""
    assert await me.deregister() == 0
    assert await me.retain() == 0
    assert await me.deregister("w1") == 1
    for lane in LANES:
        rows = await admin.connection.command("XINFO", "CONSUMERS", me.keys.lane(lane), "workers")
        assert b"w1" not in [row[1] for row in rows]
    assert await admin.workers() == {}


async def makes_anew(admin: Broker, me: Broker) -> None:
    """What hands have broken: groups beyond the end, leftovers, keys of another type, and sets that are gone."""
    send, keys = admin.connection.command, me.keys
    await add(admin, Lane.LOW, f"{NOW}-90", id="lost", tenant="a")
    await me.pull("w1", 0)
    for lane in LANES:
        await send("XGROUP", "SETID", keys.lane(lane), GROUP, "9999999999999-0")
    for key in (keys.tries, keys.tickets, keys.entries):
        await send("HSET", key, "interrupted:1|1-1" if key == keys.entries else "1|1-1", "1")
    await send("ZADD", keys.delayed, 1, "1|1-1")
    for lane in LANES:
        found = await me.compare(lane, True, counters="all")
        assert {"odd", "interrupted_off", "group_ahead"} & {damage.kind for damage in found}
    for part in PARTS:
        await me.sweep(part, "", True)
    assert not await send("EXISTS", keys.tries, keys.tickets, keys.delayed)
    wrong = keys.typed(derived=True) | {f"{keys.ready('low')}:t:a": "zset"}
    for key, kind in wrong.items():
        await send("DEL", key)
        await send("RPUSH" if kind == "string" else "SET", key, "by hand")
    await me.mend_types()
    await me.ensure_groups()
    await send("HSET", keys.workers, "w1", "{}")
    await send("ZADD", keys.turns(Lane.LOW), -1, "a")
    assert [damage.kind for damage in await me.compare(Lane.LOW, True)] == ["wrong_type", "differs"]
    await me.begin(Lane.LOW)
    assert (await me.go_on(Lane.LOW))[0] == ""
    for key, kind in wrong.items():
        assert await send("TYPE", key) in (b"none", kind.encode())
    assert (await me.pull("w1", 1)).claims[0].lease.request_id == "lost"


# -- operator ----------------------------------------------------------------------------------------------


async def operate(guarded: Guarded, url: str) -> None:
    """Look at everything; requeue, purge, cancel."""
    async with guarded.broker() as fleet:
        async with guarded.broker(url) as me, Client(url, QUEUE, patience_s=0) as client:
            await sees_to(fleet, me, client)
            await awaits(guarded, fleet, client)
            await mends(fleet, me)
            await keys_of_the_gateway(url)
            await erase_responses(guarded.server.url, url)
            await webhooks_given_up(guarded, url)
            reply = me.keys.reply(client.mailbox.name)
            await fleet.connection.command("XADD", reply, "*", "id", "anything")
        assert not await fleet.connection.command("EXISTS", reply), "the client took its reply stream with it"


async def keys_of_the_gateway(url: str) -> None:
    """Made, listed, changed, revoked."""
    me = GatewayBroker(Connection(url, patience_s=0), GatewayNames())
    try:
        digest = digest_of(new_secret())
        record = make_record(digest, "name", "tenant", created_ms=await me.now_ms())
        await me.add(digest, record)
        assert await me.records() == [record]
        changed = await me.set_rule(record.id, 2.0, 5)
        assert changed is not None
        assert await me.records() == [changed]
        assert await me.revoke(record.id)
    finally:
        await me.close()


async def webhooks_given_up(guarded: Guarded, url: str) -> None:
    """Looked at, and delivered after all."""
    gateway, me = (WebhookBroker(Connection(each, patience_s=0), WebhookNames()) for each in (guarded.server.url, url))
    try:
        message = Message("m1", "https://example.com", "a.b", "t1", "{}", 1)
        await gateway.announce(message)
        (delivery,) = (await gateway.take("g1", 1)).deliveries
        await gateway.settle(delivery, Settlement(Ending.DEAD, reason=Reason.GONE))
        (letter,) = await me.dead(10)
        assert [each async for each in me.every_dead()] == [letter]
        assert await me.requeue(letter.letter_id, message)
        assert [each.id for each in (await gateway.take("g1", 1)).deliveries] == ["m1"]
    finally:
        await gateway.close()
        await me.close()


async def awaits(guarded: Guarded, fleet: Broker, client: Client) -> None:
    """Cancel what somebody waits for, who is told; and wait for a result."""
    async with Client(guarded.server.url, QUEUE) as somebody:
        await somebody.enqueue(BODY, id="theirs")
        assert await client.cancel("theirs")
        theirs = somebody.broker.keys.reply(somebody.mailbox.name)
        assert await fleet.connection.command("PTTL", theirs) > 0
        await somebody.enqueue(BODY, id="mine")
        waiting = asyncio.create_task(client.result("mine", 5))

        async def reads() -> bool:
            info: bytes = await fleet.connection.command("INFO", "clients")
            return waiting.done() or b"blocked_clients:0" not in info

        await eventually(reads, 5, "the client reads its notifications")
        await fleet.cancel("mine")
        assert (await waiting).status is Status.CANCELLED


async def mends(fleet: Broker, me: Broker) -> None:
    """Find and repair what somebody's hands broke."""
    send, keys = fleet.connection.command, fleet.keys
    for lane in LANES:
        await send("XGROUP", "SETID", keys.lane(lane), GROUP, "9999999999999-0")
    await send("SET", keys.maintain, "w1")
    for key in (keys.result("odd"), keys.tokens("odd"), keys.wake):
        await send("SET", key, "of another type")
    await send("HSET", keys.result("endless"), "status", "failed")
    await send("HSET", keys.tries, "odd", "1")
    assert (await Inspection(me, mend=False).run()).problems
    report = await Inspection(me, mend=True).run()
    kinds = {found.kind for found in report.found}
    assert {"group_ahead", "wrong_type", "no_ttl", "odd"} <= kinds
    assert (await Inspection(me, mend=True).run()).problems == []


async def sees_to(fleet: Broker, me: Broker, client: Client) -> None:
    """See to failed requests, and look at the queue."""
    await fleet.ensure_groups()
    await fleet.heartbeat("w1", {"engine": "simulated"})
    for lane in LANES:
        await add(fleet, lane, id=f"bad-{lane}", reply="somebody")
        lease = await claim(fleet, lane)
        await fleet.complete("w1", [Completion(lease, Status.FAILED, {"http_status": "400"}, "", ERROR)])
    assert len((await take_snapshot(me)).workers) == 1
    async for letter in letters(me):
        assert await requeue(me, letter, await me.now_ms()) is not None
        assert await requeue(me, letter, await me.now_ms()) is not None, "said again, not done again"
    await fleet.pull("w1", 1)
    assert await client.cancel("bad-low")
    result = await client.result("bad-low", 5)
    assert result.status is Status.CANCELLED
    assert await fleet.connection.command("XLEN", me.keys.cancels) == 1, "cancelled by itself, not by asking"
    assert await me.entry_state("low:1-1") is None
    for lane in LANES:
        assert (await me.entry_details(lane, "1-1")).fields is None
    waits = await add(fleet, Lane.LOW)
    await fleet.pull("w1", 0)
    assert (await me.expected([(Lane.LOW, waits)]))[0].place == 0
    await fleet.cancel(f"low:{waits}")
    await add(fleet, Lane.CRITICAL, id="worse")
    await fleet.complete("w1", [Completion(await claim(fleet), Status.FAILED, {"http_status": "400"}, "", ERROR)])
    assert (await me.audit()).problems() == []
    newest = await me.dead_letters(1)
    found = await find_letter(me, newest[0][0])
    assert await me.purge([found.letter_id]) == 1
    assert await me.set_configuration({"max_deliveries": "5"}) == await me.configuration()
    assert await me.set_tenant("a", TenantRule(2, 1))
    assert (await me.tenant_rules())["a"].max_running == 1
    await me.set_tenant("a", TenantRule())
    assert await me.tenants_waiting(["a"]) == {"a": await me.waiting_in_turns()}
    await looks(me)


async def looks(me: Broker) -> None:
    """Type every command of the operations page."""
    keys = me.keys
    for words in (
        ("SELECT", 0),
        ("INFO",),
        ("XINFO", "CONSUMERS", keys.lane("high"), "workers"),
        ("XINFO", "STREAM", keys.lane("high")),
        ("ZSCORE", keys.ready("high"), "x"),
        ("HGET", keys.workers, "w1"),
        ("HMGET", keys.workers, "w1"),
        ("ZCARD", keys.waiting),
        ("TYPE", keys.watch),
        ("PTTL", keys.result("r-1")),
        ("EXISTS", keys.result("r-1")),
        ("MEMORY", "USAGE", keys.lane("low")),
        ("HGETALL", keys.lane_states),
        *CLUSTER,
    ):
        await allowed(me, *words)


# -- autoscaler --------------------------------------------------------------------------------------------


async def scale(guarded: Guarded, url: str) -> None:
    """Ask what KEDA's scaler for Redis streams asks, and the sum of the lanes."""
    async with guarded.broker() as fleet, guarded.broker(url) as me:
        await fleet.ensure_groups()
        await me.connection.ping()
        for lane in LANES:
            assert await me.connection.command("XLEN", me.keys.lane(lane)) == 0
            assert (await me.connection.command("XPENDING", me.keys.lane(lane), "workers"))[0] == 0
            assert await me.connection.command("XINFO", "GROUPS", me.keys.lane(lane))
        for words in (("SELECT", 0), *CLUSTER):
            await allowed(me, *words)


# -- gateway -----------------------------------------------------------------------------------------------


async def serve(guarded: Guarded, url: str) -> None:
    """Let callers in, see which models there are, enqueue and wait; keys are an operator's to make."""
    operator = GatewayBroker(Connection(guarded.enlist(Role.OPERATOR), patience_s=0), GatewayNames())
    me = GatewayBroker(Connection(url, patience_s=0), GatewayNames())
    secret = new_secret()
    record = make_record(digest_of(secret), "name", "tenant", limits=(5, 50), created_ms=await operator.now_ms())
    try:
        await operator.add(digest_of(secret), record)
        assert await me.changes("0-0", 1) == ("0-0", False)
        admission = await me.admit(secret)
        assert admission.record == record
        assert await me.read([digest_of(secret)]) == [record]
        held = Held("default", "r", named=True)
        reserved = await me.reserve(record.id, 50, 5, held, 1)
        assert reserved.code is ReserveCode.TAKEN
        await me.look_in(held.name, 0)
        assert [due.held for due in await me.due(9, 9)] == [held]
        async with guarded.broker() as admin:
            known = (f"default/{number}" for number in range(100_000))
            await admin.connection.command("RPUSH", me.names.settled(record.id), *known)
        assert await me.settle(record.id, held, reserved.serial, 4, 1_000)
        await in_debt(me, secret, record.id)
        await me.leave_try("equal", "r", 60_000)
        assert await me.take_try("equal") == "r"
        await me.leave_try("equal", "r", 60_000)
        assert await me.withdraw_try("equal", "r")
        assert await operator.records() == [record]
        async with guarded.broker() as fleet, Client(url, QUEUE, patience_s=0) as client:
            await fleet.heartbeat("w1", {"models": ["m"]})
            assert await client.broker.workers()
            assert await client.broker.now_ms()
            assert await client.broker.set_tenant("tenant", TenantRule(2, None, record.id, 1))
            handle = await client.enqueue(BODY, id="r-1", lane="critical")
            await fleet.ensure_groups()
            waiting = asyncio.create_task(handle.result(5))
            await fleet.complete("w1", [succeeded(await claim(fleet), client.mailbox.name)])
            assert (await waiting).ok
            await allowed(
                Broker.of(client.broker), "CLIENT", "UNBLOCK", 0
            )  # as a second stream does to the reading of the first
        await has_a_share(guarded, url)
        assert await operator.revoke(record.id)
        assert (await me.changes("0-0", 1))[1], "it was told"
        await webhooks(url)
        await run_batches(url)
        await store_responses(url)
    finally:
        await operator.close()
        await me.close()


async def in_debt(me: GatewayBroker, secret: str, key_id: str) -> None:
    """A key's requests that take all that is left, are refused, and use more than there was."""
    first, second = Held("default", "r-2"), Held("default", "r-3")
    taken = await me.reserve(key_id, 50, 8_000, first, 1, least=1)
    assert taken.code is ReserveCode.TAKEN
    assert (await me.reserve(key_id, 50, 8_000, second, 1, least=40)).code is ReserveCode.TOO_FEW
    assert await me.settle(key_id, first, taken.serial, None, 1_000), "it was refused: all is given back"
    taken = await me.reserve(key_id, 50, 5, second, 1)
    assert await me.settle(key_id, second, taken.serial, 200, 1_000)
    assert (await me.admit(secret)).verdict is Verdict.NO_TOKEN_LEFT


async def has_a_share(guarded: Guarded, url: str) -> None:
    """A tenant's large requests that are ready take its part of a lane's bytes."""
    settings = load(QueueSettings, redis_url=url, queue=QUEUE, lane_bytes=1_048_576, max_body_bytes=262_144)
    async with guarded.broker() as fleet, Client(settings=settings, patience_s=0) as client:
        await client.enqueue(BODY, tenant="other")
        with contextlib.suppress(QueueFull):
            for _ in range(4):
                await client.enqueue({"prompt": "x" * 200_000}, tenant="large")
                await fleet.pull("w1", 0)
        assert await fleet.connection.command("XLEN", fleet.keys.lane("normal")) == 3


async def webhooks(url: str) -> None:
    """Announced, taken, ended in every way, taken from who is silent; and signed."""
    me = WebhookBroker(Connection(url, patience_s=0), WebhookNames(), WebhookLimits(lease_ms=0))
    endings = (
        Settlement(Ending.BACK),
        Settlement(Ending.LATER, 1),
        Settlement(Ending.DEAD, reason=Reason.GONE),
        Settlement(Ending.DELIVERED),
    )
    try:
        await me.set_secrets("t1", b"", b"[]")
        assert await me.secrets("t1") == b"[]"
        assert await me.every_secret() == {"t1": b"[]"}
        assert await me.announce(Message("m1", "https://example.com", "a.b", "t1", "{}", 1))
        last = (await me.take("g1", 0)).last
        for name, ending in (("m1", endings[0]), ("m1", endings[1]), ("m1", endings[2]), ("m2", endings[3])):
            await me.announce(Message(name, "https://example.com", "a.b", "t1", "{}", 1))
            await eventually(lambda: _takes(me, "g1"), 10, "it is due")
            (delivery,) = (await me.take("g2", 1)).deliveries
            assert await me.settle(delivery, ending)
        await me.take("g3", 1)
        left = await me.connection.command("XINFO", "CONSUMERS", me.names.due, "deliverers")
        assert len(left) <= 1, "others are gone"
        await me.wait(last, 2)
        # One tenant's share is full, so that what it has is counted.
        narrow = WebhookBroker(me.connection, me.names, WebhookLimits(lease_ms=0, per_tenant=1))
        assert await narrow.announce(Message("m3", "https://example.com", "a.b", "t1", "{}", 1))
    finally:
        await me.close()


async def _takes(me: WebhookBroker, deliverer: str) -> bool:
    return bool((await me.take(deliverer, 1)).deliveries)


JOBS: dict[Role, Callable[[Guarded, str], Awaitable[None]]] = {
    Role.PRODUCER: produce,
    Role.WORKER: work,
    Role.OPERATOR: operate,
    Role.GATEWAY: serve,
    Role.AUTOSCALER: scale,
}
