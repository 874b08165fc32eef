"""docs/security.md: its commands are run as they stand there, and what it says of the code is so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import yaml

from streamfleet.common.settings import GROUPS, PREFIX, variable
from streamfleet.operator.access_rules import Role
from tests.integration.k8s_chart import charted, differences
from tests.integration.k8s_manifests import only, with_component
from tests.programs import program, skip_without
from tests.security.tls import with_tls
from tests.servers import WITH_SELECTORS, newest
from tests.support.redis_server import RedisServer, free_port
from tests.waiting import eventually_blocking

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CERTIFICATES, USERS, SERVER, FLEET, REFUSED = range(5)


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/security.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def steps(page: str) -> list[str]:
    """The steps of the five minutes, one piece of shell each."""
    (block,) = [body for language, body in FENCE.findall(page) if language == "sh" and "openssl req" in body]
    found = re.split(r"(?m)^(?=# \d\. )", block)
    return [step for step in found if step.strip()]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Folder of the steps; processes that they started are ended."""
    yield tmp_path
    for name in ("redis.pid", "worker.pid"):
        if (tmp_path / name).exists():
            os.kill(int((tmp_path / name).read_text()), signal.SIGTERM)


def run(step: str, folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    """A step, on a port that is free here."""
    path = f"{Path(sys.executable).parent}:/usr/bin:{os.environ['PATH']}"
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMFLEET", "REDIS"))}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step.replace("6380", str(port))],
        cwd=folder,
        env={**settings, "PATH": path, "STREAMFLEET_HEALTH_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_the_five_minutes_work_as_written(steps: list[str], folder: Path) -> None:
    program("openssl")
    server = with_tls() or skip_without("a Redis with TLS", "sudo apt-get install redis-server")
    port = free_port()
    for step in (CERTIFICATES, USERS):
        done = run(steps[step], folder, port)
        assert done.returncode == 0, done.stderr
    at = steps[SERVER].replace("redis-server ", f"{server} --pidfile {folder}/redis.pid --dir {folder} ", 1)
    assert run(at.replace("users.acl", f"{folder}/users.acl"), folder, port).returncode == 0
    eventually_blocking((folder / "redis.pid").exists, 10, "the server runs")
    # A process that a shell starts in its background ends with the test.
    fleet = steps[FLEET].replace("simulated &", f"simulated > worker.log 2>&1 & echo $! > {folder}/worker.pid")
    done = run(fleet, folder, port)
    assert done.returncode == 0, done.stderr + (folder / "worker.log").read_text()
    assert "accepted=1 = succeeded=1" in done.stdout
    done = run(steps[REFUSED], folder, port)
    assert done.returncode == 2
    assert "lacks a permission" in done.stderr
    passwords = [url.read_text().split(":")[2].split("@")[0] for url in folder.glob("*.url")]
    assert len(passwords) == 6
    written = (folder / "worker.log").read_text() + (folder / "users.acl").read_text() + done.stderr
    assert [password for password in passwords if password in written] == []
    assert {path.stat().st_mode & 0o077 for path in folder.glob("*.url")} == {0}


def test_every_role_and_setting_that_it_names_exists(page: str) -> None:
    roles = re.findall(r"^\| (\w+) \| [^|]+ \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert {*Role} <= {*roles}
    known = {variable(name) for group in GROUPS for name in group.model_fields}
    named = {*re.findall(rf"\b{PREFIX}[A-Z_]+\b", page)}
    assert {name.removesuffix("_FILE") for name in named} <= known


# -- on Kubernetes -----------------------------------------------------------------------------------------


@pytest.mark.timeout(240)  # a bare machine fetches kubectl first
def test_the_component_gives_a_server_that_knows_the_users_as_the_values_do(page: str) -> None:
    assert "`k8s/components/redis-users`" in page
    (values,) = [body for language, body in FENCE.findall(page) if language == "yaml" and "acl: streamfleet" in body]
    manifests = with_component("redis-users")
    assert differences(manifests, charted(values=yaml.safe_load(values))) == []
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][-1] == "/etc/redis-acl/users.acl"
    assert pod["containers"][0]["volumeMounts"][-1]["mountPath"] == "/etc/redis-acl"
    assert pod["volumes"][-1]["secret"]["secretName"] == "streamfleet-redis-acl"
    for name, secret in (("streamfleet-worker", "worker"), ("streamfleet-exporter", "operator")):
        volumes = only(manifests, "Deployment", name)["spec"]["template"]["spec"]["volumes"]
        assert [each["secret"]["secretName"] for each in volumes if "secret" in each] == [f"streamfleet-{secret}-redis"]


CLUSTER = """kubectl() {
  if [ "$1" = get ]; then printf base | base64; else printf '%s\\n' "$*" >> made; fi
}
"""
"""A kubectl that knows the password of the base, and writes down what it is told to make."""


def test_the_file_that_it_has_one_make_lets_in_whom_it_should(page: str, tmp_path: Path) -> None:
    """The same commands without a cluster: the probes' user, each role, and nobody without a password."""
    (block,) = [body for language, body in FENCE.findall(page) if language == "sh" and "hash_of" in body]
    done = run(CLUSTER + block, tmp_path, 0)
    assert done.returncode == 0, done.stderr
    made = re.findall(r"//(streamfleet-\w+):(\w+)@", (tmp_path / "made").read_text())
    roles = ("worker", "producer", "operator", "gateway", "autoscaler")
    assert [user for user, _ in made] == [f"streamfleet-{role}" for role in roles]
    with RedisServer(newest(WITH_SELECTORS), options={"aclfile": str(tmp_path / "users.acl")}) as server:
        for user, password in (("default", "base"), *made):
            with redis.Redis(port=server.port, username=user, password=password) as client:
                assert client.execute_command("AUTH", user, password)
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
            stranger.ping()
