"""The rules as text: complete, without a password, the committed file as the code has it, and what refuses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamfleet.common import scripts
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import Keys
from streamfleet.gateway import broker as gateway_broker
from streamfleet.operator.access_rules import (
    VERBS,
    Patterns,
    Role,
    grants,
    rules,
    setuser_command,
    users_acl,
    users_acl_line,
)
from tests.integration.cli_processes import streamfleet
from tests.security.guarded import Guarded
from tests.support.redis_server import RedisServer, find_servers

COMMAND = re.compile(r"(?:call(?:_if_typed)?\(|= ?\{)'([A-Z]{3,})'(?:, ?'([A-Z]+)')?")
CONTAINERS = {"XGROUP", "XINFO", "MEMORY"}
NOT_SENT = {
    (Role.PRODUCER, "enqueue"): {"zrange"},
    (Role.WORKER, "pull"): {"zrank"},
}
"""Commands of a script that it sends only where `redis.acl_check_cmd` allows them, or in other scripts."""


def as_user(server: RedisServer, user: str | None, password: str | None) -> redis.Redis:
    """A client that gives up at once."""
    return redis.Redis(port=server.port, username=user, password=password, retry=Retry(NoBackoff(), 0))


def sent_by(verb: str) -> set[str]:
    """The commands in a script's text, as ACL rules name them."""
    found, text = set(), scripts.source(verb)
    for helper in (
        "open_for_writes",
        "require_groups",
        "require_types",
        "now_ms",
        "some_attempts",
        "forget",
        "answered",
        "wake_alone",
    ):
        if text.count(f"{helper}(") == 1:  # only defined, in the library that all scripts include
            text = re.sub(rf"(?m)^local function {helper}\([^)]*\)(?: .*end|\n(?:.*\n)*?end)$", "", text)
    for name, sub in COMMAND.findall(text):
        found.add(f"{name}|{sub}".lower() if name in CONTAINERS else name.lower())
    return found


def test_every_script_is_part_of_somebodys_job() -> None:
    assert {verb for verbs in VERBS.values() for verb in verbs} == {*scripts.VERBS, *gateway_broker.VERBS}


# `expected` has all functions of tenants, and calls those that only read; test_acl_jobs shows that they are allowed.
@pytest.mark.parametrize(
    ("role", "verb"), [(role, verb) for role, verbs in VERBS.items() for verb in verbs if verb != "expected"]
)
def test_a_role_may_send_every_command_of_its_scripts(role: Role, verb: str) -> None:
    granted = {command for grant in grants(role, Patterns(Keys("q"))) for command in grant.commands}
    assert sent_by(verb) - granted == NOT_SENT.get((role, verb), set())


def test_the_committed_file_is_what_the_code_says(repository: Path) -> None:
    text = (repository / "k8s/acl/users.acl").read_text(encoding="utf-8")
    assert text == users_acl(Patterns(Keys("default")))
    assert streamfleet("", "acl").stdout == text


@pytest.mark.parametrize("role", Role)
def test_rules_let_nobody_in_by_themselves(any_guarded: Guarded, role: Role) -> None:
    with any_guarded.admin() as admin:
        admin.execute_command("ACL", "SETUSER", "somebody", "reset", "nopass", *rules(role, Patterns(Keys("q"))))
        for password in ("", "anything"):
            somebody = as_user(any_guarded.server, "somebody", password)
            with somebody, pytest.raises(redis.exceptions.AuthenticationError):
                somebody.ping()
        admin.execute_command("ACL", "DELUSER", "somebody")


@pytest.mark.parametrize("label", [label for label in find_servers() if label != "redis-6.2"])
def test_a_server_takes_the_committed_file_and_lets_nobody_in_without_a_name(
    label: str, repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "users.acl"
    lines = (repository / "k8s/acl/users.acl").read_text(encoding="utf-8").replace(
        "streamfleet-operator on resetpass", "streamfleet-operator on resetpass >secret"
    )  # fmt: skip
    file.write_text(lines, encoding="utf-8")
    # Redis passes over requirepass where there is an aclfile: the file itself has to shut the door.
    with RedisServer(find_servers()[label], options={"aclfile": str(file), "requirepass": "unused"}) as server:
        with as_user(server, "streamfleet-operator", "secret") as operator:
            assert operator.ping()
        for user, password in ((None, None), ("default", "unused"), ("streamfleet-worker", "unused")):
            with as_user(server, user, password) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
                stranger.ping()


def test_redis_6_2_refuses_the_rules_and_the_command_says_so() -> None:
    refusal = pytest.raises(redis.exceptions.ResponseError, match="Error in ACL SETUSER")
    with RedisServer(find_servers()["redis-6.2"]) as server, redis.Redis(port=server.port) as admin, refusal:
        admin.execute_command("ACL", "SETUSER", "x", *rules(Role.PRODUCER, Patterns(Keys("q"))))
    assert "6.2 knows no selectors" in streamfleet("", "acl", "--role", "producer").stderr


@pytest.mark.parametrize("role", Role)
def test_the_command_for_redis_cli_is_one_that_the_server_takes(guarded: Guarded, role: Role) -> None:
    printed = streamfleet("", "acl", "--role", str(role), "--setuser", "--user", "me", "-q", "odd*[a]").stdout
    with guarded.admin() as admin:
        admin.execute_command(*printed.split())  # as redis-cli takes it apart: nothing in it is quoted
        listed = next(line for line in admin.execute_command("ACL", "LIST") if line.startswith("user me "))
        admin.execute_command("ACL", "SETUSER", "me2", "reset", *rules(role, Patterns(Keys("odd*[a]"))))
        again = next(line for line in admin.execute_command("ACL", "LIST") if line.startswith("user me2 "))
        assert listed.replace("user me ", "") == again.replace("user me2 ", "")
        admin.execute_command("ACL", "DELUSER", "me", "me2")


def test_a_producer_of_some_lanes_has_only_those(guarded: Guarded) -> None:
    printed = streamfleet("", "acl", "--role", "producer", "-l", "low", "-l", "normal", "-q", "q", "--setuser").stdout
    with guarded.admin() as admin:
        admin.execute_command(*printed.split(), ">pw")
    with redis.Redis(port=guarded.server.port, username="streamfleet-producer", password="pw") as me:
        assert me.xadd("{q}:lane:low", {"body": "{}"})
        with pytest.raises(redis.exceptions.NoPermissionError):
            me.xadd("{q}:lane:critical", {"body": "{}"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lane", "low"], "--role"),
        (["--role", "worker", "--lane", "low"], "--lane is for"),
        (["--role", "worker", "--user", "a b"], "user: must be"),
        (["--role", "worker", "--user", "a\nuser default on nopass"], "user: must be"),
        (["--role", "nobody"], "nobody"),
        (["--queue", 'a"b'], "queue: must not contain blanks or quotes"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str) -> None:
    ended = streamfleet("", "acl", *words)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert said in " ".join(ended.stderr.replace("│", " ").split())


@pytest.mark.parametrize("prefix", ["a b", "a\nb", "a\tb", 'a"', "a'"])
def test_a_prefix_that_rules_cannot_hold_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Patterns(Keys("q", prefix))
    assert caught.value.param == "key_prefix"


def test_a_line_and_a_command_begin_from_nothing() -> None:
    words = rules(Role.AUTOSCALER, Patterns(Keys("q")))
    assert users_acl_line("me", words).startswith("user me on resetpass resetkeys resetchannels -@all +ping")
    assert setuser_command("me", words).startswith("ACL SETUSER me reset on resetpass")
