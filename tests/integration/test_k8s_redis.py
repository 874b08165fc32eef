"""The redis.conf of k8s/base, given to a real server with the very arguments of the StatefulSet."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.integration.k8s_manifests import base, only, redis_pod
from tests.support.redis_server import RedisServer
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

PASSWORD = "not-a-secret"


def redis_conf() -> str:
    text: str = only(base(), "ConfigMap", "streamfleet-redis")["data"]["redis.conf"]
    return text


@contextmanager
def redis_of_the_cluster(binary: Path) -> Iterator[redis.Redis]:
    """The server as the pod starts it, but with its data in a temporary folder and on a socket of its own."""
    container = redis_pod()["containers"][0]
    # A socket's path may have about 100 characters: too few for pytest's own folders.
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:
        conf = Path(folder) / "redis.conf"
        conf.write_text(redis_conf(), encoding="utf-8")
        socket = f"{folder}/redis.sock"
        here = {"$(REDIS_PASSWORD)": PASSWORD, "/data": folder}
        args = [here.get(each, each) for each in container["args"]]
        command = [str(binary), str(conf), *args, "--port", "0", "--unixsocket", socket]
        with (
            subprocess.Popen(command, stdout=subprocess.DEVNULL) as process,
            redis.Redis(unix_socket_path=socket, password=PASSWORD, decode_responses=True) as client,
        ):
            try:
                eventually_blocking(lambda: Path(socket).exists() or process.poll(), within_s=20)
                assert process.poll() is None, "the server does not start: its reason is on stderr"
                yield client
            finally:
                process.terminate()


def test_server_takes_its_configuration(any_redis_server: RedisServer) -> None:
    with redis_of_the_cluster(any_redis_server.binary) as client:
        said = client.config_get("*")
        assert isinstance(said, dict)
        assert {name: said[name] for name in ("appendonly", "appendfsync", "maxmemory-policy", "save")} == {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        assert int(str(said["maxmemory"])) == 2 * 1024**3


def test_server_wants_the_password(redis_server: RedisServer) -> None:
    with redis_of_the_cluster(redis_server.binary) as client:
        assert client.ping()
        path = client.connection_pool.connection_kwargs["path"]
        with (
            redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_password_is_not_in_the_process_list(redis_server: RedisServer) -> None:
    with redis_of_the_cluster(redis_server.binary) as client:
        info = client.info("server")
        assert isinstance(info, dict)
        shown = Path(f"/proc/{info['process_id']}/cmdline")
        if not shown.exists():
            pytest.skip("no /proc on this system")
        assert PASSWORD.encode() not in shown.read_bytes()


def test_redis_starts_without_the_entry_point_of_its_image() -> None:
    # That script wants to start as root.
    container = redis_pod()["containers"][0]
    assert container["command"] == ["redis-server", "/etc/redis/redis.conf"]
    assert "/etc/redis" in {each["mountPath"] for each in container["volumeMounts"]}
