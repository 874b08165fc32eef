"""Local validation: everything wrong is found before anything is sent, and names its field."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.broker.types import Submission
from streamfleet.common.envelope import EARLIEST_MS
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    COMPLETIONS,
    ENDPOINTS,
    LANES,
    Lane,
    Request,
    decode,
    digest,
    digest_of_bytes,
    inferred,
)
from streamfleet.producer.ask import Ask, as_ask, check_id, draft, prepare

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
# Values that may be sent as text, wrong as often as right.
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "endpoint": st.sampled_from([*sorted(ENDPOINTS), "/v1/models", ""]),
    "tenant": st.text(max_size=300),
    "session": st.text(max_size=300) | st.just("x" * 257),
    "traceparent": st.just(TRACE) | st.text(max_size=60) | st.just(TRACE + "\n"),
    "meta": st.text(max_size=100) | st.sampled_from(["x" * 4096, "x" * 4097, "é" * 2049]),
}
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
        program="p-1",
        stream=True,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        meta={"page": 3},
    )
    submission = prepare(ask, "r-1", "me")
    read = decode({name.encode(): value for name, value in submission.fields.items()}, submission.lane, "1-0")
    assert (read.id, read.lane, read.body, read.endpoint) == ("r-1", Lane.HIGH, CHAT, "/v1/completions")
    assert (read.deadline_ms, read.stream, read.reply) == (1_790_000_000_000, True, "me")
    sent = {name: submission.fields[name].decode() for name in ("tenant", "session", "program", "traceparent", "meta")}
    assert list(sent.values()) == ["acme", "s-1", "p-1", ask.traceparent, '{"page":3}']


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
        ("body", {"body": {"prompt": "x" * 4_194_304}}),
        ("body", {"body": {"model": "m"}}),
        ("lane", {"lane": "urgent"}),
        ("endpoint", {"endpoint": "/v1/models"}),
        ("endpoint", {"endpoint": 1}),
        ("deadline", {"deadline": datetime(2030, 1, 1)}),  # noqa: DTZ001 - that it has no time zone is the point
        ("deadline", {"deadline": timedelta(seconds=-1)}),
        ("deadline", {"deadline": -1}),
        ("deadline", {"deadline": 1.5}),
        ("deadline", {"deadline": 0}),
        ("deadline", {"deadline": 1_732_700_000}),
        ("deadline", {"deadline": 1_732_700_000.5}),
        ("deadline", {"deadline": 978_307_199_999}),
        ("ttl_ms", {"ttl_ms": -1}),
        ("ttl_ms", {"ttl_ms": 1.5}),
        ("deadline", {"deadline": True}),
        ("deadline", {"deadline": 10**16}),
        ("deadline", {"deadline": "tomorrow"}),
        ("ttl_ms", {"ttl_ms": "5"}),
        ("ttl_ms", {"ttl_ms": 5, "deadline": 5}),
        ("tenant", {"tenant": 7}),
        ("tenant", {"tenant": "a\nb"}),
        ("tenant", {"tenant": "\ud800"}),
        ("session", {"session": "x" * 257}),
        ("program", {"program": "x" * 257}),
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


def read(submission: Submission, stream_id: str = "5-0") -> Request:
    """Returns the request that a worker reads from it."""
    return decode(as_sent(submission), submission.lane, stream_id)


def as_sent(submission: Submission) -> dict[bytes, bytes]:
    return {name.encode(): value for name, value in submission.fields.items()}


@given(
    body=st.dictionaries(st.text(), VALUES, max_size=3),
    prompt=st.booleans(),
    request_id=NAMES,
    lane=st.sampled_from(LANES),
    deadline=st.none() | st.integers(0, 10**16 - 1) | st.timedeltas(timedelta(0), timedelta(days=100)),
    stream=st.booleans(),
    reply=st.none() | st.just("me"),
    options=st.fixed_dictionaries({}, optional={name: st.none() | text for name, text in TEXTS.items()}),
)
def test_a_worker_takes_what_was_prepared_for_the_same_and_refuses_what_was_refused(
    body: dict[str, Any], prompt: bool, request_id: str, options: dict[str, Any], **rest: Any
) -> None:
    body = {**body, "prompt": "hi"} if prompt else body
    given = {"id": request_id, **{name: value for name, value in options.items() if value is not None}}
    plainly = {b"body": json.dumps(body).encode()} | {name.encode(): value.encode() for name, value in given.items()}
    ask = Ask(body=body, **options, **_without(rest, "reply"))
    try:
        submission = prepare(ask, request_id, rest["reply"])
    except InvalidRequest:
        # An empty endpoint is none in an entry, and a mistake in a program. A deadline in seconds ends in its lane.
        in_seconds = isinstance(rest["deadline"], int) and rest["deadline"] < EARLIEST_MS
        if options.get("endpoint") != "" and not in_seconds:
            with pytest.raises(InvalidRequest):
                decode(plainly, Lane.LOW, "5-0")
        return
    found, expected = read(submission), decode(plainly, rest["lane"], "5-0")
    late = rest["deadline"]
    if isinstance(late, timedelta):
        late = 5 + late // timedelta(milliseconds=1)
    assert found == expected._replace(deadline_ms=late, stream=rest["stream"], reply=rest["reply"])
    assert (found.body, found.id, found.lane) == (body, request_id, rest["lane"])
    assert submission.digest == digest(found) + digest_of_bytes(as_sent(submission))
    assert ("endpoint" in submission.fields) == (found.endpoint != inferred(body))


def _without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != name}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"prompt": "hi", "logit_bias": {50256: -100, 9: 5, "9": 6}}, '{"50256":-100,"9":5,"9":6}'),
        ({"prompt": "hi", "logit_bias": {2.5: 1, True: 2, None: 3}}, '{"2.5":1,"true":2,"null":3}'),
        ({"prompt": "hi", "logit_bias": (1, 2)}, "[1,2]"),
        (OrderedDict(prompt="hi", logit_bias=OrderedDict(b=1, a=2)), '{"b":1,"a":2}'),
        (MappingProxyType({"prompt": "hi", "logit_bias": {}}), "{}"),
    ],
    ids=str,
)
def test_what_python_allows_beyond_json_is_read_as_it_is_written(body: Any, sent: str) -> None:
    submission = prepare(Ask(body=body), "r", "me")
    assert submission.fields["body"].decode() == f'{{"prompt":"hi","logit_bias":{sent}}}'
    found = read(submission)
    assert found.body["logit_bias"] == json.loads(sent)
    assert submission.digest == digest(found) + digest_of_bytes(as_sent(submission))


def test_what_is_prepared_stays_as_it_was_when_its_body_changes() -> None:
    body = {"prompt": "hi"}
    prepared = draft(Ask(body=body), "r", None, 1_000)
    body["prompt"] = "ho"
    assert prepared.submission() == prepare(Ask(body={"prompt": "hi"}), "r", None)


def nested(depth: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(depth):
        body = {"prompt": [body]}
    return body


def test_a_body_that_is_nested_too_deeply_is_refused_before_anything_is_sent() -> None:
    assert draft(Ask(body=nested(200)), "r", None, 10**6).submission().digest
    with pytest.raises(InvalidRequest, match="is nested too deeply"):
        draft(Ask(body=nested(2_000)), "r", None, 10**6)


@pytest.mark.parametrize("request_id", ["", "a b", "é", "x" * 257, "normal:1-0", 7])
def test_unusable_ids(request_id: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        prepare(Ask(body=CHAT), request_id, "me")
    assert raised.value.param == "id"
    with pytest.raises(InvalidRequest):
        check_id(request_id)


@pytest.mark.parametrize("reply", ["", "a b", "x" * 257])
def test_unusable_reply_names(reply: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        prepare(Ask(body=CHAT), "r", reply)
    assert raised.value.param == "reply"


def test_dicts_stand_for_asks() -> None:
    made = as_ask({"body": CHAT, "lane": "low"})
    assert made == Ask(body=CHAT, lane="low")
    assert repr(made) == repr(Ask(body=CHAT, lane="low"))
    with pytest.raises(AttributeError):
        made.lane = "high"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "param"), [({"messages": []}, "body"), ({"body": CHAT, "prio": 1}, "prio"), ("hi", "request")]
)
def test_other_values_do_not(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        as_ask(value)
    assert raised.value.param == param


def test_a_request_keeps_the_trace_that_it_names() -> None:
    named, other = (f"00-{digit * 32}-{digit * 16}-01" for digit in "ab")
    asked = [Ask(body={"prompt": "hi"}, traceparent=named), Ask(body={"prompt": "hi"})]
    drafts = [draft(each, "r-1", None, 1_000).within(other) for each in asked]
    assert [each.fields["traceparent"] for each in drafts] == [named.encode(), other.encode()]


@pytest.mark.parametrize("chars", [10, 2_000_000])
def test_a_digest_is_the_same_whether_it_waits_or_not(chars: int) -> None:
    """The digest of a long body does not wait: who makes the draft may be on a thread, which holds up nobody."""
    body = {"prompt": "x" * chars}
    drafted = draft(as_ask({"body": body}), "r1", None, 4_194_304)
    assert bool(drafted.digest) == (not drafted.compared) == (chars > 10)
    submission = drafted.submission()
    of_bytes = digest_of_bytes(as_sent(submission))
    assert submission.digest == digest(Request(body, "r1", Lane.NORMAL, COMPLETIONS)) + of_bytes
