"""Signatures as the specification has them, and which secrets sign when."""

from __future__ import annotations

import base64
import hmac
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.webhook_messages import Message, message_id, read_dead, read_message
from streamfleet.gateway.webhooks.deliverer import signatures
from streamfleet.gateway.webhooks.signing import (
    MOST_SECRETS,
    Secret,
    active_secrets,
    encode_secrets,
    new_secret,
    read_secrets,
    rotate,
)

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000


def headers(keys: list[Secret], body: bytes, name: str = "msg_1", at_s: int | None = None) -> dict[str, str]:
    at_s = int(time.time()) if at_s is None else at_s
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at_s),
        "webhook-signature": signatures(keys, name, at_s, body.decode()),
    }


@given(st.binary(max_size=200), st.from_regex(r"msg_[a-f0-9]{8}", fullmatch=True))
def test_the_official_library_verifies_ours(content: bytes, name: str) -> None:
    secret = Secret(new_secret(), NOW)
    body = json.dumps({"type": "a.b", "data": {"x": base64.b64encode(content).decode()}}).encode()
    assert Webhook(secret.text).verify(body, headers([secret], body, name)) == json.loads(body)


def test_a_signature_is_the_one_of_the_specification() -> None:
    """Written out, because the library that signs is also the one that verifies in the other tests."""
    key, body = bytes(range(32)), '{"type":"a.b","data":"ä"}'
    secret = Secret("whsec_" + base64.b64encode(key).decode(), NOW)
    mac = hmac.digest(key, b"msg_1.1700000000." + body.encode(), "sha256")
    assert signatures([secret], "msg_1", 1_700_000_000, body) == f"v1,{base64.b64encode(mac).decode()}"


def test_while_a_secret_is_rotated_receivers_may_have_either() -> None:
    old = [Secret(new_secret(), NOW - HOUR_MS)]
    both = rotate(old, new_secret(), NOW, HOUR_MS)
    body = b'{"type":"a.b"}'
    sent = headers(active_secrets(both, NOW), body)
    assert [part.split(",")[0] for part in sent["webhook-signature"].split(" ")] == ["v1", "v1"]
    for secret in both:
        Webhook(secret.text).verify(body, sent)
    later = headers(active_secrets(both, NOW + HOUR_MS), body)
    Webhook(both[0].text).verify(body, later)
    with pytest.raises(WebhookVerificationError):
        Webhook(both[1].text).verify(body, later)


def test_a_rotation_never_lengthens_a_secrets_life() -> None:
    first = rotate([Secret(new_secret(), NOW)], new_secret(), NOW, HOUR_MS)
    second = rotate(first, new_secret(), NOW + 1, 24 * HOUR_MS)
    assert [secret.until_ms for secret in second] == [None, NOW + 1 + 24 * HOUR_MS, NOW + HOUR_MS]
    assert len(rotate(second, new_secret(), NOW + 2, 0)) == 1, "without an overlap the former ones end at once"


def test_secrets_do_not_pile_up() -> None:
    keys = [Secret(new_secret(), NOW)]
    for _ in range(MOST_SECRETS - 1):
        keys = rotate(keys, new_secret(), NOW, HOUR_MS)
    with pytest.raises(InvalidRequest, match="wait for one to end"):
        rotate(keys, new_secret(), NOW, HOUR_MS)
    assert len(rotate(keys, new_secret(), NOW + HOUR_MS, HOUR_MS)) == 2


def test_a_secret_is_what_the_specification_asks_for() -> None:
    made = {new_secret() for _ in range(10)}
    assert len(made) == 10
    assert all(text.startswith("whsec_") for text in made)
    assert all(24 <= len(base64.b64decode(text[6:], validate=True)) <= 64 for text in made)


def test_secrets_are_stored_and_read() -> None:
    keys = rotate([Secret(new_secret(), NOW)], new_secret(), NOW, HOUR_MS)
    assert read_secrets(encode_secrets(keys)) == keys


@pytest.mark.parametrize(
    "text", [b"", b"x", b"[]", b"{}", b"[1]", b'[{"text":"whsec_!"}]', b"null", b"[" * 9_999, b"\xff"], ids=range(9)
)
def test_what_somebody_else_wrote_there_are_no_secrets(text: bytes) -> None:
    assert read_secrets(text) == []
    assert read_message(text) is None


def test_an_id_is_the_events_and_the_receivers() -> None:
    made = [message_id(*words) for words in (("t", "e", "u"), ("t", "e", "v"), ("t", "f", "u"), ("s", "e", "u"))]
    assert len(set(made)) == 4
    assert message_id("t", "e", "u") == made[0]
    assert message_id("", "e.with.stops\n", "u").isidentifier(), "no full stop: it would divide what is signed"


def test_messages_and_dead_letters_are_stored_and_read() -> None:
    message = Message("msg_1", "https://example.com/ä", "a.b", "t", '{"type":"a.b"}', NOW)
    assert read_message(message.encoded().encode()) == message
    fields = {
        b"id": b"msg_1",
        b"message": message.encoded().encode(),
        b"reason": b"gone",
        b"attempts": b"3",
        b"status": b"x",
    }
    dead = read_dead(f"{NOW}-0", fields)
    assert (dead.message, dead.webhook_id, dead.reason, dead.attempts, dead.status) == (message, "msg_1", "gone", 3, 0)
    assert dead.written_ms == NOW
