"""Short directed runs: each aims one kind of fault at one guard, and is judged like any other run.

A scenario fails when the judge finds a violation, or when it waits for something in vain.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from streamfleet.worker.failpoints import Point
from streamfleet.worker.worker import LAST_WRITES_S
from tests.fault import mutations
from tests.fault import scenarios_waiting as waiting
from tests.fault.fleet import Member
from tests.fault.plan import Fault, FaultKind, Kind, Setup, Step, body
from tests.fault.stage import REPLY, Stage, item
from tests.passwords import USERS
from tests.waiting import eventually

BASE = Setup(workers=2, lease_ms=1_000, max_deliveries=3, watchdog_s=30.0, drain_ms=500)
LONG_LEASE = replace(BASE, lease_ms=20_000)
ONE_AT_A_TIME = replace(BASE, batch_size=1)
OUTAGE = replace(BASE, workers=4, lease_ms=2_000)
CLOCK = replace(BASE, workers=4, lease_ms=4_000)
LONG_OUTAGE_S = 3.0  # a lease and a half


@dataclass(frozen=True)
class Scenario:
    """A directed run.

    Attributes:
        play: what happens; then everything has `settle_s` to end.
        setup: the fleet.
        most_innocent_dead: harmless requests that may be given up.
        shifts_clock: Redis's clock, which not every machine can do.
    """

    play: Callable[[Stage], Awaitable[None]]
    setup: Setup = BASE
    settle_s: float = 10.0
    most_innocent_dead: int = 0
    shifts_clock: bool = False


async def zombie(stage: Stage) -> None:
    """Frozen with the answer in its hands, thawed when another worker has taken over."""
    frozen = await stage.worker(0)
    await stage.arm(frozen, Point.RESULT_COMPUTED, "stop")
    await stage.add("r", 150)
    await stage.was_struck(frozen)
    await stage.worker(1)
    await stage.runs("r", times=2)
    await stage.send(frozen, signal.SIGCONT, "cont")


async def same_worker_again(stage: Stage) -> None:
    """Its request is taken back and given to the same worker again, while its first outcome is being written."""
    worker = await stage.worker(0)
    await stage.arm(worker, Point.BEFORE_COMPLETE, "stall", 0.6)
    await stage.add("r", 5)
    await stage.was_struck(worker)
    stage.striker.mark("swallow", worker.name)  # it holds an attempt that it does not know of
    key = "{default}:lane:normal"
    entry = (await stage.redis.xrange(key))[0][0]
    await stage.redis.execute_command("XCLAIM", key, "workers", worker.name, 0, entry, "RETRYCOUNT", 2, "FORCE")
    await stage.redis.hset("{default}:tries", f"3|{entry.decode()}", 1)
    result = await stage.ended("r", 8)
    if result["attempt"] == "1":
        raise AssertionError("the outcome of an attempt that was taken away was published")


async def cancelled_at_the_last_moment(stage: Stage) -> None:
    """Cancelled between the engine's answer and the writing of it."""
    worker = await stage.worker(0)
    await stage.arm(worker, Point.BEFORE_COMPLETE, "stall", 1.0)
    await stage.add("r", 5, Kind.CANCELLED)
    await stage.was_struck(worker)
    await stage.cancel("r")


async def killed_while_running(stage: Stage) -> None:
    """SIGKILL of a worker that runs requests; another one is there."""
    worker = await stage.worker(0)
    await stage.add_all([(f"r{number}", 150, Kind.GOOD, "normal", None) for number in range(4)])
    await stage.runs("r3")
    await stage.worker(1)
    await stage.send(worker, signal.SIGKILL, "kill")


async def longer_than_the_lease(stage: Stage) -> None:
    """Nothing but requests that take several leases."""
    await stage.worker(0)
    await stage.worker(1)
    await stage.add("r", 350)


async def poison(stage: Stage) -> None:
    """A request that kills every worker that runs it."""
    stage.fleet.supervise()
    await stage.fleet.all_ready()
    await stage.add("poison-0", 20, Kind.POISON)


async def poison_among_others(stage: Stage) -> None:
    """The same, with others that arrive together with it; with one worker, because several would share them."""
    stage.fleet.supervise(range(1))
    await stage.fleet.ready(0)
    others = [(f"r{number}", 100, Kind.GOOD, "normal", None) for number in range(6)]
    await stage.add_all([*others, ("poison-0", 20, Kind.POISON, "normal", None)])


async def poison_leaves_tries_to_spare(stage: Stage) -> None:
    """The same with five tries: the others must not need them all, or one more fault would be their end."""
    await poison_among_others(stage)
    await stage.ended("poison-0", 20)
    for number in range(6):
        result = await stage.ended(f"r{number}", 15)
        if int(result["attempt"]) > 4:
            raise AssertionError(f"r{number} was lost {int(result['attempt']) - 1} times beside a poisonous request")


async def told_to_leave(stage: Stage) -> None:
    """SIGTERM, twice, to a worker whose lease would last for long."""
    worker = await stage.worker(0)
    await stage.add("r", 400)
    await stage.runs("r")
    await stage.worker(1)
    await stage.send(worker, signal.SIGTERM, "term")
    await stage.send(worker, signal.SIGTERM, "term_again")
    await stage.runs("r", times=2, within_s=3)


async def pull_answer_lost(stage: Stage) -> None:
    """The answer to a pull that gave a request is lost with its connection."""
    worker = await stage.idle(0)
    stage.striker.mark("swallow", worker.name)
    proxy = stage.fleet.proxies[0]
    proxy.hold()
    await stage.add("r")
    entry = (await stage.redis.xrange("{default}:lane:normal"))[0][0]
    proxy.swallow(entry)  # the pull names the entry that the worker's read brought; the housekeeping's names none
    proxy.let_go()
    await eventually(lambda: proxy.swallowed, 5, "an answer to a pull is lost")


async def watched(stage: Stage) -> None:
    """One idle worker watches; a request comes."""
    await stage.idle(0)
    await stage.add("r")
    await stage.ended("r", 5)


async def watcher_killed(stage: Stage) -> None:
    """Watchers die between the read that brought a request and their pull, one after the other."""
    for slot in range(2):
        worker = await stage.idle(slot)
        await stage.arm(worker, Point.BEFORE_PULL, "kill")
        await stage.add(f"r{slot}")
        await stage.was_struck(worker)
    await stage.worker(2)


async def before_the_first_worker(stage: Stage) -> None:
    """Requests come to a queue that no worker has ever looked at."""
    for number in range(5):
        await stage.add(f"r{number}")
    await stage.worker(0)


async def enqueue_answer_lost(stage: Stage) -> None:
    """A client sends again what was accepted, because it did not hear so."""
    await stage.load_scripts()
    await stage.worker(0)
    producer = await stage.harness.produce(
        [Step(0.8, "many", tuple(item(f"r{number}", 50) for number in range(5)))], stage.mutation
    )
    producer.proxy.swallow(mutations.sha("enqueue", stage.mutation))
    await eventually(lambda: producer.proxy.swallowed, 5, "an answer to an enqueue is lost")


async def same_id_twice(stage: Stage) -> None:
    """Two entries of one id: the second comes when the first has long ended."""
    await stage.worker(0)
    await stage.add("r", kind=Kind.TWICE)
    await stage.ended("r", 5)
    await asyncio.sleep(1.5)  # more than the grace within which a start may still be a race
    await stage.add("r", kind=Kind.TWICE)


async def cancelled_before_it_comes(stage: Stage) -> None:
    """Cancelled by its id, and enqueued after that, behind another one."""
    await stage.worker(0)
    await stage.add("first", 250)
    await stage.runs("first")
    await stage.cancel("r", before_ms=60_000)
    await stage.add("r", 10, Kind.CANCELLED)


async def cancelled_while_running(stage: Stage) -> None:
    """A request of twenty seconds is cancelled; another one waits for its place."""
    await stage.worker(0)
    await stage.add("r", 2_000, Kind.CANCELLED)
    await stage.runs("r")
    await stage.add("next")
    await stage.cancel("r")
    await stage.ended("next", 5)


async def late_behind_a_full_engine(stage: Stage) -> None:
    """A deadline passes while the only engine is full for long."""
    await stage.worker(0)
    await stage.add("first", 600)
    await stage.runs("first")
    # Long enough for the housekeeping's next look to stage it: what is late by then ends as it is staged.
    await stage.add("r", 50, Kind.LATE, ttl=1_500)
    await stage.ended("r", 4)


async def late_when_its_turn_comes(stage: Stage) -> None:
    """A deadline passes in the queue; what counts is that the request does not run when its turn comes."""
    await stage.worker(0)
    await stage.add("first", 200)
    await stage.runs("first")
    await stage.add("r", 50, Kind.LATE, ttl=500)


async def late_while_running(stage: Stage) -> None:
    """A deadline passes while the request runs."""
    await stage.worker(0)
    await stage.add("r", 300, Kind.LATE, ttl=800)
    await stage.ended("r", 5)


async def scripts_flushed(stage: Stage) -> None:
    """SCRIPT FLUSH while a worker works."""
    await stage.load_scripts()
    await stage.worker(0)
    await stage.add("first", 5)
    await stage.ended("first", 5)
    await stage.harness.redis.forget_scripts()
    await stage.add("r")


async def group_destroyed(stage: Stage) -> None:
    """A lane's group is destroyed just before a reclaim that gives up a request of another lane."""
    killed = await stage.worker(0)
    await stage.add("r", 500, lane="critical")
    await stage.runs("r")
    other = await stage.worker(1)
    await stage.arm(other, Point.BEFORE_RECLAIM, "stall", 2.0)  # two leases, and nobody makes the group anew meanwhile
    await stage.send(killed, signal.SIGKILL, "kill")  # or it would keep the turn
    await stage.was_struck(other)
    await stage.redis.execute_command("XGROUP", "DESTROY", "{default}:lane:low", "workers")


async def hanging_request(stage: Stage) -> None:
    """A request that hangs every engine it comes to."""
    stage.fleet.supervise()
    await stage.fleet.all_ready()
    await stage.add("hang-0", 20, Kind.HANG)


async def loop_hangs(stage: Stage) -> None:
    """A worker's event loop hangs for good with a request in its hands; its lease thread lives."""
    worker = await stage.worker(0)
    await stage.arm(worker, Point.BEFORE_ENGINE, "stall", 60.0)
    await stage.add("r")
    await stage.was_struck(worker)
    await stage.worker(1)
    await stage.runs("r", within_s=10)


async def engine_dies(stage: Stage) -> None:
    """An engine dies under its worker, another worker is well."""
    worker = await stage.worker(0)
    await stage.add("r", 200)
    await stage.runs("r")
    stage.striker.mark("engine_death", worker.name)
    stage.fleet.controls.tell(worker.name, do="engine", what="die")
    await stage.worker(1)
    code = await stage.exit_code(worker, 5)
    if code != 3:
        raise AssertionError(f"{worker.name} ended with {code} when its engine died")


async def engine_dies_unheard(stage: Stage) -> None:
    """The same where Redis hears all of the worker but what its run became."""
    worker = await stage.worker(0)
    await stage.add("r", 200)
    await stage.runs("r")
    stage.fleet.proxies[0].refuse(mutations.sha("retry_later", stage.mutation))
    stage.striker.mark("engine_death", worker.name)
    stage.fleet.controls.tell(worker.name, do="engine", what="die")
    await stage.exit_code(worker, LAST_WRITES_S + 5)
    await stage.worker(1)
    await stage.runs("r", times=2)


async def connections_die(stage: Stage) -> None:
    """All connections of a worker are dead without a word, as a NAT leaves them; new ones work."""
    await stage.worker(0)
    await stage.add("r", 900)
    await stage.runs("r")
    await stage.worker(1)
    stage.fleet.proxies[0].forget()


async def password_changes(stage: Stage) -> None:
    """Redis's password changes, all connections are cut, and the files that workers read follow later."""
    await stage.worker(0)
    await stage.add_all([(f"r{number}", 900, Kind.GOOD, "normal", None) for number in range(4)])
    await stage.runs("r3")
    await stage.worker(1)
    for number, user in enumerate(USERS):
        await stage.striker.strike(Fault(number, FaultKind.PASSWORD, seconds=2.0, what=f"after {user or '-'}"))


async def outage_longer_than_the_lease(stage: Stage) -> None:
    """Redis is away for longer than a lease; idle workers find it again before the one that runs a request."""
    worker = await stage.worker(0)
    await stage.add("r", 900)
    await stage.runs("r")
    for slot in range(1, 4):
        await stage.worker(slot)
    await _kill_redis(stage)
    await asyncio.sleep(LONG_OUTAGE_S)
    await _back_for_all_but(stage, worker)


async def outage_as_workers_come(stage: Stage) -> None:
    """The same, with workers that only start while Redis is away."""
    worker = await stage.worker(0)
    await stage.add("r", 900)
    await stage.runs("r")
    await _kill_redis(stage)
    for slot in range(1, 4):
        await stage.fleet.start(slot)
    await asyncio.sleep(LONG_OUTAGE_S)
    await _back_for_all_but(stage, worker)


async def _kill_redis(stage: Stage) -> None:
    stage.harness.journal.write("outage", what="redis_kill")
    await asyncio.to_thread(stage.harness.redis.server.kill)


async def _back_for_all_but(stage: Stage, worker: Member) -> None:
    """Redis answers again; one worker hears of it a little later than the others."""
    stage.fleet.proxies[worker.slot].hold()
    await asyncio.to_thread(stage.harness.redis.server.restart)
    stage.harness.journal.write("outage_over", what="redis_kill")
    await asyncio.sleep(1.4)  # less than the lease that the others must wait
    stage.fleet.proxies[worker.slot].let_go()


async def redis_clock_forward(stage: Stage) -> None:
    """Redis's clock steps forward by far more than a lease, again and again, while requests run."""
    worker = await stage.worker(0)
    await stage.add_all([(f"r{number}", 1_200, Kind.GOOD, "normal", None) for number in range(4)])
    await stage.runs("r3")
    for slot in range(1, 4):
        await stage.worker(slot)
    await _watched_for_a_lease(stage)
    for step in range(1, 5):
        stage.fleet.proxies[worker.slot].hold()  # so that it does not renew at once
        stage.harness.shift_redis_clock(step * 60_000)
        await asyncio.sleep(1.2)  # a round of housekeeping, and less than half a lease
        stage.fleet.proxies[worker.slot].let_go()
        await asyncio.sleep(0.3)


async def redis_clock_forward_in_a_turn(stage: Stage) -> None:
    """The same between the look at the clock and the reclaim."""
    worker = await stage.worker(0)
    await stage.add_all([(f"r{number}", 1_200, Kind.GOOD, "normal", None) for number in range(4)])
    await stage.runs("r3")
    others = [await stage.worker(slot) for slot in range(1, 4)]
    await _watched_for_a_lease(stage)
    for other in others:
        await stage.arm(other, Point.BEFORE_RECLAIM, "stall", 0.5)
    # For less than a lease, so that it neither keeps the turn nor renews; no fault that would explain a lost attempt.
    await stage.fleet.signal(worker, signal.SIGSTOP)
    await eventually(lambda: stage.struck, 5, "a strike at a point")
    stage.harness.shift_redis_clock(60_000)
    await asyncio.sleep(0.8)
    await stage.fleet.signal(worker, signal.SIGCONT)


async def redis_clock_back(stage: Stage) -> None:
    """Redis's clock is an hour ahead and is set right; a worker that ran something dies with it."""
    stage.harness.shift_redis_clock(3_600_000)
    worker = await stage.worker(0)
    await stage.add("r", 150)
    await stage.runs("r")
    await stage.worker(1)
    await stage.send(worker, signal.SIGKILL, "kill")
    stage.harness.shift_redis_clock(0)
    await stage.runs("r", times=2, within_s=10)


async def _watched_for_a_lease(stage: Stage) -> None:
    """Until workers may reclaim: they have watched Redis for a lease."""
    await asyncio.sleep(stage.harness.setup.lease_ms / 1000 + 0.5)


async def wake_up_lost(stage: Stage) -> None:
    """Work is staged while all wake-ups are lost, as with the workers that had taken them."""
    for slot in range(3):
        await stage.worker(slot)
    await asyncio.sleep(1.0)  # until all have pulled in vain and wait
    waiting = await stage.redis.zrange("{default}:waiting", 0, -1)
    stage._journal.write("intent", nonce="r", id="r", kind=Kind.GOOD, reply=REPLY, ttl=None)

    async def unheard(verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script in one transaction with the arrival before it, and the loss of its wake-ups after it."""
        async with stage.redis.pipeline(transaction=True) as pipe:
            pipe.xadd("{default}:lane:normal", {"id": "r", "body": body(5), "reply": REPLY, "meta": "r"})
            pipe.eval(mutations.source(verb, stage.mutation), len(keys), *keys, *args)
            pipe.delete(*(f"{{default}}:wake:{name.decode()}" for name in waiting))
            pipe.xtrim("{default}:wake", maxlen=0)
            return (await pipe.execute())[1]

    broker = stage.harness.broker
    with mock.patch.object(broker.connection, "script_once", unheard):
        await broker.pull("harness", 0, watch_ms=1_000)
    stage._journal.write("accepted", id="r", nonce="r")
    await stage.ended("r", 5)


async def redis_full(stage: Stage) -> None:
    """Redis reaches its memory limit while requests run, and stays there."""
    await stage.worker(0)
    await stage.add_all([(f"r{number}", 100, Kind.GOOD, "normal", None) for number in range(4)])
    await stage.runs("r3")
    await stage.redis.config_set("maxmemory", 1)
    full_at = time.monotonic()
    try:
        for number in range(4):
            await stage.ended(f"r{number}", max(0.1, full_at + 4 - time.monotonic()))
    finally:
        await stage.redis.config_set("maxmemory", 0)


async def late_on_a_full_redis(stage: Stage) -> None:
    """A deadline passes while the engine is full and Redis at its memory limit: the ending itself needs room."""
    await stage.worker(0)
    await stage.add("first", 400)
    await stage.runs("first")
    await stage.add("r", 50, Kind.LATE, ttl=500)
    await stage.redis.config_set("maxmemory", 1)
    try:
        await stage.ended("r", 3.0)
    finally:
        await stage.redis.config_set("maxmemory", 0)


SCENARIOS: dict[str, Scenario] = {
    "zombie": Scenario(zombie),
    "same_worker_again": Scenario(same_worker_again),
    "cancelled_at_the_last_moment": Scenario(cancelled_at_the_last_moment),
    "killed_while_running": Scenario(killed_while_running),
    "longer_than_the_lease": Scenario(longer_than_the_lease),
    "poison": Scenario(poison, settle_s=15),
    "poison_among_others": Scenario(poison_among_others, settle_s=25),
    "poison_leaves_tries_to_spare": Scenario(
        poison_leaves_tries_to_spare, replace(BASE, max_deliveries=5), settle_s=25
    ),
    "told_to_leave": Scenario(told_to_leave, LONG_LEASE),
    "pull_answer_lost": Scenario(pull_answer_lost, LONG_LEASE),
    "watched": Scenario(watched, LONG_LEASE),
    "watcher_killed": Scenario(watcher_killed, replace(BASE, workers=3, max_deliveries=1)),
    "before_the_first_worker": Scenario(before_the_first_worker),
    "enqueue_answer_lost": Scenario(enqueue_answer_lost),
    "same_id_twice": Scenario(same_id_twice),
    "cancelled_before_it_comes": Scenario(cancelled_before_it_comes, ONE_AT_A_TIME),
    "cancelled_while_running": Scenario(cancelled_while_running, replace(ONE_AT_A_TIME, lease_ms=60_000)),
    "late_behind_a_full_engine": Scenario(late_behind_a_full_engine, ONE_AT_A_TIME),
    "late_when_its_turn_comes": Scenario(late_when_its_turn_comes, ONE_AT_A_TIME),
    "late_while_running": Scenario(late_while_running),
    "scripts_flushed": Scenario(scripts_flushed),
    "group_destroyed": Scenario(group_destroyed, replace(BASE, max_deliveries=1), most_innocent_dead=1),
    "hanging_request": Scenario(hanging_request, replace(BASE, watchdog_s=1.5), settle_s=15),
    "loop_hangs": Scenario(loop_hangs, replace(BASE, watchdog_s=2.0)),
    "engine_dies": Scenario(engine_dies),
    "engine_dies_unheard": Scenario(engine_dies_unheard),
    "connections_die": Scenario(connections_die, replace(BASE, lease_ms=4_000), settle_s=25),
    "password_changes": Scenario(password_changes, replace(BASE, lease_ms=4_000), settle_s=25),
    "outage_longer_than_the_lease": Scenario(outage_longer_than_the_lease, OUTAGE, settle_s=15),
    "outage_as_workers_come": Scenario(outage_as_workers_come, OUTAGE, settle_s=15),
    "redis_clock_forward": Scenario(redis_clock_forward, CLOCK, settle_s=15, shifts_clock=True),
    "redis_clock_forward_in_a_turn": Scenario(
        redis_clock_forward_in_a_turn, replace(CLOCK, lease_ms=6_000), settle_s=15, shifts_clock=True
    ),
    "redis_clock_back": Scenario(redis_clock_back, shifts_clock=True),
    "wake_up_lost": Scenario(wake_up_lost, replace(BASE, workers=3)),
    "redis_full": Scenario(redis_full),
    "late_on_a_full_redis": Scenario(late_on_a_full_redis, ONE_AT_A_TIME),
    "tenant_at_its_limit": Scenario(waiting.tenant_at_its_limit, waiting.WAITING),
    "other_queue_beside_a_limit": Scenario(waiting.other_queue_beside_a_limit, waiting.TWO_QUEUES),
    "kept_output_overwritten": Scenario(waiting.kept_output_overwritten, waiting.INTERRUPTED),
    "cancelled_with_kept_output": Scenario(waiting.cancelled_with_kept_output, waiting.INTERRUPTED),
}
