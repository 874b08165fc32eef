"""A queue on a Redis Cluster: found by its slot, which moves, and whose master dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from streamfleet.common.broker.types import EnqueueCode, Submission
from streamfleet.common.connection import Connection
from streamfleet.common.connection.locator import SlotOwner
from streamfleet.common.connection.urls import read_url
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane
from streamfleet.producer import SyncClient
from tests.broker import Broker
from tests.ha.clusters import ClusterDeployment, slot_of
from tests.ha.failover import ANSWERS, fail_over
from tests.ha.fleet import AT_ONCE, QUEUE, users_on, workers_on
from tests.ha.migration import migrate
from tests.ha.nodes import asking, server_binary, silent_server, synced, tell
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.kill
MOST_SECONDS_AWAY = 15.0
QUEUES = ("one", "two", "three", "four", "five", "six", "seven", "eight")
REQUEST = Submission("r-1", Lane.HIGH, {"id": b"r-1", "body": b"{}"}, "digest")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterDeployment]:
    """One for all tests of this file; the last one kills a master."""
    with ClusterDeployment(server_binary()) as opened:
        yield opened


@pytest.fixture
async def broker(cluster: ClusterDeployment) -> AsyncIterator[Broker]:
    """A queue of its own, with a broker that does not wait."""
    opened = Broker(Connection(cluster.url, patience_s=0), Keys("moving"))
    await opened.ensure_groups()
    yield opened
    await opened.close()


async def test_every_queue_is_found_wherever_it_lives(cluster: ClusterDeployment) -> None:
    """Several of them, so that every master has one, those too that the URL does not name."""
    homes = set()
    for name in QUEUES:
        broker = Broker(Connection(cluster.url), Keys(name))
        await broker.ensure_groups()
        (answer,) = await broker.enqueue([REQUEST])
        assert answer.code is EnqueueCode.ACCEPTED
        assert len((await broker.pull("w1", 1)).claims) == 1
        homes.add(int((await broker.connection.command("CONFIG", "GET", "port"))[1]))
        await broker.close()
    assert len(homes) == 3


async def test_one_node_that_answers_is_enough(cluster: ClusterDeployment) -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.nodes[5].port}"
    broker = Broker(Connection(url), Keys(QUEUE))
    await broker.ensure_groups()
    await broker.close()


async def test_a_slot_on_two_nodes_is_waited_for_and_followed(cluster: ClusterDeployment, broker: Broker) -> None:
    """A script is refused, a single key as well, and a wait ends; nothing is done twice."""
    slot = slot_of("moving")
    source, target = cluster.owner(slot), cluster.other_master(slot)
    assert source is not None
    await broker.enqueue([REQUEST])
    waiting = asyncio.ensure_future(broker.connection.block(60, "BLPOP", broker.keys.wake_up("w1"), 60))
    await eventually(lambda: blocked(source), what="the wait has reached the server")
    cluster.begin_migration(slot, source, target)
    cluster.move_keys(slot, source, target, 2)
    patient = Broker(Connection(cluster.url, patience_s=None), Keys("moving"))
    pulled = asyncio.ensure_future(patient.audit())
    with pytest.raises(BrokerUnavailable, match=r"refuses for now: .*Multiple keys"):
        await broker.pull("w1", 1)
    with pytest.raises(BrokerUnavailable, match=f"is moving the queue's slot to 127.0.0.1:{target.port}"):
        await broker.result("nobody")
    (stays,) = tell(source.port, "CLUSTER", "GETKEYSINSLOT", slot, 1)
    undeclared = ("EVAL", "return redis.call('GET', ARGV[1])", 1, stays, broker.keys.result("x"))
    with pytest.raises(BrokerUnavailable, match="non local key"):
        await broker.connection.command(*undeclared)
    cluster.move_keys(slot, source, target)
    cluster.end_migration(slot, source, target)
    with pytest.raises(BrokerUnavailable, match=f"has moved the queue's slot to 127.0.0.1:{target.port}"):
        await asyncio.wait_for(waiting, 10)
    assert (await pulled).outstanding == 1
    assert len((await broker.pull("w1", 5)).claims) == 1
    assert int((await broker.connection.command("CONFIG", "GET", "port"))[1]) == target.port
    await patient.close()


async def test_a_wait_may_be_ended_from_elsewhere(cluster: ClusterDeployment, broker: Broker) -> None:
    """Its id means something only to the node where it waits."""
    waiting = asyncio.ensure_future(broker.connection.block(60, "BLPOP", "{moving}:nothing", 60))
    await eventually(lambda: blocked(cluster.owner(slot_of("moving"))), what="the wait has reached the server")
    await broker.unblock()
    assert await asyncio.wait_for(waiting, 5) is None


async def test_a_server_that_is_no_cluster_is_a_setting(redis_server: RedisServer) -> None:
    connection = Connection(f"redis+cluster://127.0.0.1:{redis_server.port}", patience_s=None)
    with pytest.raises(SettingsError, match=f"127.0.0.1:{redis_server.port} is not in cluster mode: write redis://"):
        await connection.command("GET", "x")
    await connection.close()


async def test_a_node_that_hangs_is_passed_over(cluster: ClusterDeployment) -> None:
    async with silent_server() as port:
        url = f"redis+cluster://127.0.0.1:{port},127.0.0.1:{cluster.nodes[0].port}"
        connection = Connection(url, patience_s=0)
        assert await connection.command("PING") == b"PONG"
        await connection.close()


async def test_a_node_that_lost_touch_is_not_believed_for_ever() -> None:
    """It goes on to name a master that is gone; another node knows better."""
    options = {"cluster-enabled": "yes"}
    with (
        RedisServer(server_binary(), options=options | {"cluster-port": str(free_port())}) as stale,
        RedisServer(server_binary(), options=options | {"cluster-port": str(free_port())}) as live,
    ):
        bus = free_port()
        with RedisServer(server_binary(), options=options | {"cluster-port": str(bus)}) as gone:
            for owner in (gone, live):
                tell(owner.port, "CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            tell(stale.port, "CLUSTER", "MEET", "127.0.0.1", gone.port, bus)
            await eventually(lambda: tell(stale.port, "CLUSTER", "SLOTS"), 20, "the node knows who holds the slots")
        connection = Connection(f"redis+cluster://127.0.0.1:{stale.port},127.0.0.1:{live.port}")
        await eventually(lambda: tell(live.port, "PING"), what="the other node is up")
        assert await connection.command("GET", "x") is None
        await connection.close()
        url = f"redis+cluster://127.0.0.1:{stale.port},127.0.0.1:{live.port}"
        locator = SlotOwner(read_url(url), url)
        found = [await locator.locate(), await locator.locate()]
        assert found == [f"redis://127.0.0.1:{gone.port}", f"redis://127.0.0.1:{live.port}"]
        assert ("127.0.0.1", gone.port) not in locator.nodes  # or they would grow with every change of addresses


async def test_a_plain_address_of_a_node_is_a_setting(cluster: ClusterDeployment) -> None:
    other = cluster.other_master(slot_of(QUEUE))
    connection = Connection(f"redis://127.0.0.1:{other.port}/0", patience_s=None)
    broker = Broker(connection, Keys(QUEUE))
    for operation in (broker.ensure_groups(), broker.pull("w1", 1)):
        with pytest.raises(SettingsError, match=rf"write redis\+cluster://127.0.0.1:{other.port} "):
            await operation
    await broker.close()


async def test_a_wrong_password_is_a_setting_and_no_reason_to_wait(cluster: ClusterDeployment) -> None:
    connection = Connection(f"redis+cluster://:wrong1@127.0.0.1:{cluster.nodes[0].port}", patience_s=None)
    with pytest.raises(SettingsError, match="refuses the user or password") as caught:
        await asyncio.wait_for(connection.command("GET", "x"), 5)
    assert "wrong1" not in str(caught.value)
    await connection.close()


async def test_nodes_that_do_not_answer_are_named() -> None:
    first, second = free_port(), free_port()
    connection = Connection(f"redis+cluster://127.0.0.1:{first},127.0.0.1:{second}", patience_s=0)
    with pytest.raises(BrokerUnavailable, match=f"no node of .* answers: .*{first}: .*{second}: "):
        await connection.command("GET", "x")
    await connection.close()


async def test_a_master_that_hangs_without_a_word_is_left(cluster: ClusterDeployment, broker: Broker) -> None:
    """As one whose machine is gone: no connection breaks, and a time-out is all that there is to go by."""
    master = cluster.owner(slot_of("moving"))
    assert master is not None
    patient = Broker(Connection(cluster.url, patience_s=None), Keys("moving"))
    await patient.connection.command("GET", "{moving}:x")
    os.kill(master.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerUnavailable, match="timed out"):
            await patient.connection.block(0.1, "BLPOP", "{moving}:nothing", 0.1)
        assert await asyncio.wait_for(patient.connection.command("SET", "{moving}:x", "1"), 40) == b"OK"
    finally:
        os.kill(master.pid, signal.SIGCONT)
    await patient.close()
    await eventually(lambda: synced(master.port) and cluster.healthy(), 20, "the old master is a replica")


def test_the_command_line_takes_such_an_address(cluster: ClusterDeployment) -> None:
    for command in (("audit",), ("dead", "list"), ("backlog",)):
        done = streamfleet(cluster.url, *command)
        assert done.returncode == 0, done.stderr


def test_what_a_mistyped_xadd_made_is_found_on_each_node(cluster: ClusterDeployment) -> None:
    names = [f"{{default}}:lane:{word}" for word in ("High", "urgent")]
    names += [f"default:lane:{word}" for word in ("high", "low", "normal", "critical", "High", "urgent")]
    owners = {name: owner.port for name in names if (owner := cluster.owner(key_slot(name.encode())))}
    assert len({*owners.values()}) == 3
    for name, port in owners.items():
        tell(port, "XADD", name, "*", "body", "{}")
    for command in ("doctor", "audit"):
        done = streamfleet(cluster.url, command)
        assert done.returncode == 1
        assert [name for name in names if f"'{name}' holds 1 entry" not in done.stdout + done.stderr] == []
    for name, port in owners.items():
        tell(port, "DEL", name)


def test_the_synchronous_client_takes_such_an_address(cluster: ClusterDeployment) -> None:
    with SyncClient(cluster.url, "sync") as fleet:
        handle = fleet.enqueue(chat(), id="r-1")
        assert handle.cancel()
        assert handle.result(timeout=10).status == "cancelled"


async def test_work_goes_on_when_the_slot_moves_and_its_master_is_killed(
    cluster: ClusterDeployment, tmp_path: Path
) -> None:
    slot = slot_of(QUEUE)
    async with workers_on(cluster.url, tmp_path) as workers:
        async with users_on(cluster.url) as scene:
            migration = await migrate(scene, cluster, slot, 0.3)
        moved = scene.verdict
        assert moved is not None
        assert (moved.lost, moved.forgotten, moved.run_again, moved.books) == (0, 0, 0, []), scene.line()
        assert migration.answer_s < MOST_SECONDS_AWAY, migration.line()
        master = cluster.owner(slot)
        assert master is not None
        # The only node that these users are told of is the one that dies.
        async with users_on(f"redis+cluster://127.0.0.1:{master.port}") as scene:
            failover = await fail_over(scene, master, [cluster.replica_of(master)], lambda: cluster.owner(slot))
        killed = scene.verdict
        assert killed is not None
        # Writes that the replica had not received when its master died are lost, with all that was known of them.
        assert killed.with_result > 2 * ANSWERS, scene.line()
        assert killed.lost <= AT_ONCE, scene.line()
        assert (killed.notified_twice, killed.books) == (0, []), scene.line()
        assert failover.answer_s < MOST_SECONDS_AWAY, failover.line()
        assert all(worker.alive for worker in workers)


def blocked(node: RedisServer | None) -> bool:
    assert node is not None
    with asking(node.port) as client:
        return bool(client.info("clients")["blocked_clients"])
