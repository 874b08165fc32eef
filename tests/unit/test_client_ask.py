"""Local validation: everything wrong is found before anything is sent, and names its field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane, decode
from streamfleet.producer.ask import Ask, as_ask, prepare

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
CIRCULAR: dict[str, Any] = {}
CIRCULAR["prompt"] = CIRCULAR


def fields_of(**options: Any) -> dict[str, str]:
    submission = prepare(Ask(**{"body": CHAT, **options}), "r-1", "me")
    return {name: value.decode() for name, value in submission.fields.items()}


def test_sends_no_more_than_needed() -> None:
    assert fields_of() == {"body": '{"messages":[{"role":"user","content":"hi"}]}', "id": "r-1", "reply": "me"}


def test_a_client_that_is_not_notified_names_no_reply_stream() -> None:
    submission = prepare(Ask(body=CHAT), "r-1", None)
    assert "reply" not in submission.fields
    assert not submission.reply


def test_a_worker_reads_what_was_asked() -> None:
    ask = Ask(
        body=CHAT,
        lane="high",
        deadline=1_790_000_000_000,
        endpoint="/v1/completions",
        tenant="acme",
        session="s-1",
        stream=True,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        meta={"page": 3},
    )
    submission = prepare(ask, "r-1", "me")
    read = decode({name.encode(): value for name, value in submission.fields.items()}, submission.lane, "1-0")
    assert (read.id, read.lane, read.body, read.endpoint) == ("r-1", Lane.HIGH, CHAT, "/v1/completions")
    assert (read.deadline_ms, read.tenant, read.session, read.stream) == (1_790_000_000_000, "acme", "s-1", True)
    assert (read.traceparent, read.meta, read.reply) == (ask.traceparent, '{"page":3}', "me")


@pytest.mark.parametrize(
    ("deadline", "sent"),
    [
        (datetime(2030, 1, 31, 12, tzinfo=UTC), {"deadline": "1896091200000"}),
        (1_790_000_000_000, {"deadline": "1790000000000"}),
        # A span is counted by Redis's clock: this machine's may be wrong.
        (timedelta(seconds=1.5), {"ttl": "1500"}),
    ],
)
def test_deadlines(deadline: Any, sent: dict[str, str]) -> None:
    found = fields_of(deadline=deadline)
    assert {name: found[name] for name in ("deadline", "ttl") if name in found} == sent


def test_ttl() -> None:
    assert fields_of(ttl_ms=250)["ttl"] == "250"


def test_keeps_the_order_of_keys_and_writes_utf8() -> None:
    body = {"prompt": "héllo 🚀", "b": 1, "a": 2}
    assert (
        prepare(Ask(body=body), "r", "me").fields["body"]
        == json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    )


def test_same_request_same_digest() -> None:
    first, again, other = (prepare(Ask(body=body), "r", "me") for body in (CHAT, dict(CHAT), CHAT | {"n": 2}))
    assert first.digest == again.digest != other.digest


@pytest.mark.parametrize(
    ("param", "options"),
    [
        ("body", {"body": ["hi"]}),
        ("body", {"body": "hi"}),
        ("body", {"body": {"prompt": float("nan")}}),
        ("body", {"body": {"prompt": {1, 2}}}),
        ("body", {"body": {"prompt": "\ud800"}}),
        ("body", {"body": CIRCULAR}),
        ("body", {"body": {"prompt": "x" * 1_048_576}}),
        ("body", {"body": {"model": "m"}}),
        ("lane", {"lane": "urgent"}),
        ("endpoint", {"endpoint": "/v1/models"}),
        ("endpoint", {"endpoint": 1}),
        ("deadline", {"deadline": datetime(2030, 1, 1)}),  # noqa: DTZ001 - that it has no time zone is the point
        ("deadline", {"deadline": timedelta(seconds=-1)}),
        ("deadline", {"deadline": -1}),
        ("deadline", {"deadline": 1.5}),
        ("deadline", {"deadline": True}),
        ("deadline", {"deadline": 10**16}),
        ("deadline", {"deadline": "tomorrow"}),
        ("ttl_ms", {"ttl_ms": "5"}),
        ("ttl_ms", {"ttl_ms": 5, "deadline": 5}),
        ("tenant", {"tenant": 7}),
        ("tenant", {"tenant": "a\nb"}),
        ("tenant", {"tenant": "\ud800"}),
        ("session", {"session": "x" * 257}),
        ("traceparent", {"traceparent": "00-zz"}),
        ("meta", {"meta": "x" * 4097}),
        ("meta", {"meta": {"a": {1}}}),
    ],
)
def test_wrong_fields_are_named(param: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        fields_of(**options)
    assert raised.value.param == param
    assert str(raised.value).startswith(f"{param}: ")


@pytest.mark.parametrize("request_id", ["", "a b", "é", "x" * 257, "normal:1-0", 7])
def test_unusable_ids(request_id: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        prepare(Ask(body=CHAT), request_id, "me")
    assert raised.value.param == "id"


def test_dicts_stand_for_asks() -> None:
    assert as_ask({"body": CHAT, "lane": "low"}) == Ask(body=CHAT, lane="low")


@pytest.mark.parametrize(
    ("value", "param"), [({"messages": []}, "body"), ({"body": CHAT, "prio": 1}, "prio"), ("hi", "request")]
)
def test_other_values_do_not(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        as_ask(value)
    assert raised.value.param == param
