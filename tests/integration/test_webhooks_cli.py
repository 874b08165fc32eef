"""`streamfleet gateway webhooks`: what was given up, shown, delivered after all; secrets made, replaced, listed."""

from __future__ import annotations

import json

import pytest
import redis

from streamfleet.common.connection import Connection
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.webhook_messages import Ending, Message, Reason, Settlement, WebhookNames
from streamfleet.gateway.webhooks.signing import read_secrets
from tests.integration.cli_processes import Ended, streamfleet

SECRETS = "{gateway}/webhooks:secrets"


def webhooks(url: str, *arguments: str) -> Ended:
    return streamfleet(url, "gateway", "webhooks", *arguments)


@pytest.fixture
async def broker(redis_url: str) -> WebhookBroker:
    """With one dead webhook in it, whose texts mean to look like something else."""
    broker = WebhookBroker(Connection(redis_url), WebhookNames())
    message = Message("msg_1", "https://example.com/hook?token=abc", "a.b", "t1", '{"type":"a.b\x1b[31m"}', 1_000)
    await broker.announce(message)
    (delivery,) = (await broker.take("d1", 1)).deliveries
    await broker.settle(delivery, Settlement(Ending.DEAD, reason=Reason.GONE, status=410, error="[bold]gone\x1b[0m"))
    await broker.close()
    return broker


def test_dead_webhooks_are_listed_and_shown(broker: WebhookBroker, redis_url: str) -> None:
    listed = webhooks(redis_url, "list").stdout
    assert "msg_1" in listed
    assert "[bold]gone\\x1b[0m" in listed, "text of anybody's is text"
    assert "token" not in listed
    (row,) = map(json.loads, webhooks(redis_url, "list", "--json").stdout.splitlines())
    assert (row["webhook_id"], row["reason"], row["status"], row["attempts"]) == ("msg_1", "gone", 410, 1)
    for name in ("msg_1", row["letter_id"]):
        shown = webhooks(redis_url, "show", name).stdout
        assert "https://example.com/hook?token=abc" in shown
        assert "\x1b" not in shown
    assert json.loads(webhooks(redis_url, "show", "msg_1", "--json").stdout)["tenant"] == "t1"


def test_a_dead_webhook_is_requeued(broker: WebhookBroker, redis_url: str) -> None:
    ended = webhooks(redis_url, "requeue", "msg_1")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "msg_1 requeued\n", "1 requeued\n")
    assert webhooks(redis_url, "list").stdout == "no dead webhooks\n"
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        stored = json.loads(str(client.hget("{gateway}/webhooks:messages", "msg_1")))
        assert stored["since_ms"] > 1_000, "its life begins anew"
        assert client.xlen("{gateway}/webhooks:due") == 1
    assert webhooks(redis_url, "requeue", "--all").stderr == "0 requeued\n"


def test_one_that_cannot_be_read_is_said(broker: WebhookBroker, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("{gateway}/webhooks:dead", {"id": "msg_2", "message": "no JSON"})
    ended = webhooks(redis_url, "requeue", "--all")
    assert (ended.returncode, ended.stdout) == (1, "msg_1 requeued\n")
    assert "cannot be read" in ended.stderr
    assert "cannot be read" in webhooks(redis_url, "show", "msg_2").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "msg_9"], "ID: there is no dead webhook 'msg_9'"),
        (["requeue"], "name ids, or give --all"),
        (["requeue", "msg_1", "--all"], "name ids, or give --all"),
        (["secret", "rotate", "--tenant", "t9"], "tenant: has no secret yet; `secret create` makes one"),
        (["secret", "rotate", "--overlap", "soon"], "overlap: must be a span"),
        (["secret", "create", "--tenant", "a\nb"], "tenant: must be"),
    ],
    ids=range(6),
)
def test_what_makes_no_sense_is_refused(redis_url: str, words: list[str], said: str) -> None:
    ended = webhooks(redis_url, *words)
    assert ended.returncode == 2
    assert said in " ".join(ended.stderr.replace("│", " ").split())


def stored(url: str, tenant: str) -> list[tuple[str, bool]]:
    """A tenant's secrets, newest first: the text, and whether it signs for ever."""
    with redis.Redis.from_url(url) as client:
        text = client.hget(SECRETS, tenant)
    assert isinstance(text, bytes)
    return [(secret.text, secret.until_ms is None) for secret in read_secrets(text)]


@pytest.mark.parametrize("tenant", ["billing", ""])
def test_secrets_are_made_replaced_and_listed(redis_url: str, tenant: str) -> None:
    whose = ["--tenant", tenant] if tenant else []
    assert webhooks(redis_url, "secret", "list").stdout.startswith("no secrets")
    first = webhooks(redis_url, "secret", "create", *whose).stdout.strip()
    assert stored(redis_url, tenant) == [(first, True)]
    again = webhooks(redis_url, "secret", "create", *whose)
    assert (again.returncode, again.stdout) == (2, "")
    assert "has a secret already" in again.stderr
    second = webhooks(redis_url, "secret", "rotate", *whose).stdout.strip()
    assert stored(redis_url, tenant) == [(second, True), (first, False)]
    listed = webhooks(redis_url, "secret", "list").stdout + webhooks(redis_url, "secret", "list", "--json").stdout
    assert first not in listed
    assert second not in listed
    assert len(webhooks(redis_url, "secret", "list", "--json").stdout.splitlines()) == 2
    third = webhooks(redis_url, "secret", "rotate", *whose, "--overlap", "0s").stdout.strip()
    assert stored(redis_url, tenant) == [(third, True)]
