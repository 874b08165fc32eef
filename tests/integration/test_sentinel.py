"""Redis behind Sentinels: found by name, lost and found again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.connection.locator import SentinelMaster
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.producer import SyncClient
from tests.ha.failover import fail_over
from tests.ha.fleet import users_on, workers_on
from tests.ha.nodes import SentinelServer, server_binary, silent_server, tell
from tests.ha.sentinels import SERVICE, SentinelDeployment
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.kill
MOST_SECONDS_AWAY = 15.0


@pytest.fixture(scope="module")
def deployment() -> Iterator[SentinelDeployment]:
    """One for all tests of this file; the last ones take its master away."""
    with SentinelDeployment(server_binary()) as opened:
        yield opened


def sentinels(deployment: SentinelDeployment) -> str:
    return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in deployment.sentinels)


async def refusal(url: str) -> str:
    """Returns the error of a connection to this URL, in one line."""
    connection = Connection(url, patience_s=0)
    with pytest.raises((SettingsError, BrokerUnavailable)) as caught:
        await connection.command("GET", "x")
    await connection.close()
    assert len(str(caught.value).splitlines()) == 1
    return f"{type(caught.value).__name__}: {caught.value}"


def said(sentinel: RedisServer) -> str:
    return str(tell(sentinel.port, "SENTINEL", "MASTERS"))


async def test_the_master_is_found_by_its_name(deployment: SentinelDeployment) -> None:
    connection = Connection(deployment.url)
    assert (await connection.command("ROLE"))[0] == b"master"
    await connection.close()


async def test_a_wrong_service_name_is_a_setting_and_names_the_right_one(deployment: SentinelDeployment) -> None:
    said = await refusal(f"redis+sentinel://{sentinels(deployment)}/mymaster")
    assert said.startswith("SettingsError: REDIS_URL redis+sentinel://127.0.0.1:")
    assert said.endswith(f"the Sentinels watch no 'mymaster', only {SERVICE}")


async def test_sentinels_that_do_not_answer_are_named() -> None:
    first, second = free_port(), free_port()
    said = await refusal(f"redis+sentinel://127.0.0.1:{first},127.0.0.1:{second}/mymaster")
    assert said.startswith("BrokerUnavailable: no Sentinel of redis+sentinel://127.0.0.1:")
    assert f"127.0.0.1:{first}: " in said
    assert f"127.0.0.1:{second}: " in said


async def test_a_redis_in_place_of_a_sentinel_is_a_setting(redis_server: RedisServer) -> None:
    said = await refusal(f"redis+sentinel://127.0.0.1:{redis_server.port}/mymaster")
    assert "SettingsError" in said
    assert f"127.0.0.1:{redis_server.port} is no Sentinel but a Redis: name the Sentinels" in said


async def test_a_sentinel_that_is_gone_is_passed_over(deployment: SentinelDeployment) -> None:
    connection = Connection(f"redis+sentinel://127.0.0.1:{free_port()},{sentinels(deployment)}/{SERVICE}")
    assert await connection.command("PING") == b"PONG"
    await connection.close()


async def test_a_sentinel_that_hangs_is_passed_over(deployment: SentinelDeployment) -> None:
    async with silent_server() as port:
        connection = Connection(f"redis+sentinel://127.0.0.1:{port},{sentinels(deployment)}/{SERVICE}", patience_s=0)
        assert await connection.command("PING") == b"PONG"
        await connection.close()


async def test_a_master_that_answers_needs_no_sentinels(
    deployment: SentinelDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them gone, or with nothing to say, as while they are set up anew: work goes on where it is."""
    monkeypatch.setattr(SentinelMaster, "trust_s", 0.2)
    master = deployment.master()
    assert master is not None
    with SentinelServer(server_binary(), SERVICE, master.port, {}) as sentinel:
        connection = Connection(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", patience_s=0)
        assert await connection.command("PING") == b"PONG"
        tell(sentinel.port, "SENTINEL", "REMOVE", SERVICE)
        await still_answers(connection)
        sentinel.stop()
        await still_answers(connection)
        await connection.close()


async def still_answers(connection: Connection) -> None:
    """For longer than what the Sentinels said is trusted."""
    begun = time.monotonic()

    async def long_enough() -> bool:
        assert await connection.command("PING") == b"PONG"
        return time.monotonic() > begun + 1.5 * SentinelMaster.trust_s

    await eventually(long_enough)


async def test_a_master_that_the_sentinels_take_for_dead_is_not_asked() -> None:
    """It may hang, and whoever asks it hangs with it."""
    with RedisServer(server_binary()) as master:
        directives = {"down-after-milliseconds": 200}
        with SentinelServer(server_binary(), "alone", master.port, directives) as sentinel:
            os.kill(master.pid, signal.SIGSTOP)
            connection = Connection(f"redis+sentinel://127.0.0.1:{sentinel.port}/alone", patience_s=0)
            await eventually(lambda: "s_down" in said(sentinel), 10, "the Sentinel takes it for dead")
            with pytest.raises(BrokerUnavailable, match="know no master that is up"):
                await asyncio.wait_for(connection.command("PING"), 5)
            await connection.close()


async def test_sentinels_with_a_password(deployment: SentinelDeployment) -> None:
    """Their own, which is not the servers'."""
    master = deployment.master()
    assert master is not None
    with SentinelServer(server_binary(), SERVICE, master.port, {}, "requirepass s@cret") as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
        assert "refuses the user or password: add ?sentinel_username=" in await refusal(url)
        said = await refusal(f"{url}?sentinel_password=wrong1")
        assert "refuses the user or password" in said
        assert "wrong1" not in said
        connection = Connection(f"{url}/0?sentinel_password=s%40cret")
        assert await connection.command("PING") == b"PONG"
        await connection.close()


def test_the_command_line_takes_such_an_address(deployment: SentinelDeployment) -> None:
    done = streamfleet(deployment.url, "audit")
    assert done.returncode == 0, done.stderr
    wrong = streamfleet(f"redis+sentinel://{sentinels(deployment)}/mymaster", "audit")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    assert "the Sentinels watch no 'mymaster'" in wrong.stderr


def test_the_synchronous_client_takes_such_an_address(deployment: SentinelDeployment) -> None:
    with SyncClient(deployment.url, "sync") as fleet:
        handle = fleet.enqueue(chat(), id="r-1")
        assert handle.cancel()
        assert handle.result(timeout=10).status == "cancelled"


async def test_work_goes_on_when_the_master_is_killed(deployment: SentinelDeployment, tmp_path: Path) -> None:
    master = deployment.master()
    assert master is not None
    async with workers_on(deployment.url, tmp_path) as workers:
        async with users_on(deployment.url, replicas=1) as scene:
            failover = await fail_over(scene, master, deployment.replicas(), deployment.master)
        assert all(worker.alive for worker in workers)
    verdict = scene.verdict
    assert verdict is not None
    assert (verdict.lost, verdict.mistold, verdict.notified_twice, verdict.books) == (0, 0, 0, []), scene.line()
    assert failover.answer_s < MOST_SECONDS_AWAY, failover.line()


async def test_a_master_that_is_replaced_in_order_is_left_at_once(deployment: SentinelDeployment) -> None:
    """It goes on taking writes, all of them lost, until the Sentinels demote it some ten seconds later."""
    before = deployment.master()
    assert before is not None
    connection = Connection(deployment.url, patience_s=None)
    await connection.command("SET", "x", "1")
    assert connection.moves == 0
    waiting = asyncio.ensure_future(connection.block(60, "BLPOP", "nothing", 60))
    deployment.replace_master()
    await eventually(lambda: asyncio.to_thread(replaced, deployment, before), 20, "the Sentinels name another")

    async def left() -> bool:
        return int((await connection.command("CONFIG", "GET", "port"))[1]) != before.port

    await eventually(left, 6, "the connection is at the new master")
    assert connection.moves == 1
    assert await connection.command("SET", "x", "2") == b"OK"
    with pytest.raises(BrokerUnavailable):  # what it waits for will not come to the old one
        await asyncio.wait_for(waiting, 4)
    await connection.close()


def replaced(deployment: SentinelDeployment, before: RedisServer) -> bool:
    return deployment.master() not in (None, before)
