"""The wire protocol: what is written can be read, and what cannot be read names the field that is wrong."""

from __future__ import annotations

import gc
import hashlib
import json
import string
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfleet.common.envelope import KNOWN
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    CHAT,
    COMPLETIONS,
    DEFAULT_MAX_BODY_BYTES,
    EMBEDDINGS,
    ENDPOINTS,
    LANES,
    PLAIN_BYTES,
    Lane,
    Request,
    check_body,
    check_name,
    decode,
    digest,
    digest_of_bytes,
    infer_endpoint,
    inferred,
    parse_body,
)
from streamfleet.producer.ask import encode_body

BODY = b'{"prompt":"hi"}'
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(stream_id: str = "7-0", **fields: str | bytes) -> Request:
    """The request in an entry with these fields beside a body."""
    raw = {"body": BODY, **fields}
    encoded = {name.encode(): value.encode() if isinstance(value, str) else value for name, value in raw.items()}
    return decode(encoded, Lane.HIGH, stream_id, max_body_bytes=1000)


def refusal(**fields: str | bytes) -> tuple[str | None, str]:
    """Field and code of the error that these fields give."""
    with pytest.raises(InvalidRequest) as caught:
        read("7-0", **fields)
    return caught.value.param, caught.value.code


def outcome(fields: dict[bytes, bytes]) -> Request | InvalidRequest:
    """The request in these fields, or why there is none; any other error goes through."""
    try:
        return decode(fields, Lane.LOW, "5-3")
    except InvalidRequest as error:
        return error


@given(st.dictionaries(st.sampled_from(KNOWN).map(str.encode) | st.binary(max_size=9), st.binary(max_size=300)))
@example({b"body": b"[" * 100_000})
@example({b"body": b'{"prompt":' + b"9" * 5000 + b"}"})
@example({b"body": b'\xef\xbb\xbf{"prompt":1}'})
@example({b"body": b'{"prompt":"\\ud800"}'})
@example({b"body": b"{}", b"deadline": "٣".encode()})
def test_any_fields_give_a_request_or_name_what_is_wrong(fields: dict[bytes, bytes]) -> None:
    request = outcome(fields)
    if isinstance(request, InvalidRequest):
        assert request.param in KNOWN
        assert json.loads(request.to_openai())["error"]["param"] == request.param
    else:
        assert isinstance(request.body, dict)


@given(st.sampled_from(KNOWN), st.binary(max_size=50) | st.text(max_size=50).map(str.encode))
def test_a_wrong_field_beside_good_ones_is_the_one_that_is_named(name: str, value: bytes) -> None:
    good = {"body": BODY, "id": b"r-1", "deadline": b"5", "reply": b"me", "stream": b"1", "traceparent": TRACE.encode()}
    request = outcome({key.encode(): item for key, item in {**good, name: value}.items()})
    assert not isinstance(request, InvalidRequest) or request.param == name


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"body": b""}, "body", "invalid_json"),
        ({"body": b"\xff"}, "body", "invalid_encoding"),
        ({"body": "[]"}, "body", "invalid_type"),
        ({"body": "null"}, "body", "invalid_type"),
        ({"body": '{"prompt":NaN}'}, "body", "invalid_json"),
        ({"body": '{"prompt":-Infinity}'}, "body", "invalid_json"),
        ({"body": "{}"}, "body", "missing_field"),
        ({"body": "x" * 1001}, "body", "request_too_large"),
        ({"endpoint": "/metrics"}, "endpoint", "unknown_endpoint"),
        ({"endpoint": b"\xff"}, "endpoint", "invalid_encoding"),
        ({"id": "a b"}, "id", "invalid_value"),
        ({"id": "é"}, "id", "invalid_value"),
        ({"id": b"\xff"}, "id", "invalid_encoding"),
        ({"id": "x" * 257}, "id", "invalid_value"),
        ({"id": "high:1-1"}, "id", "invalid_value"),
        ({"reply": "a\nb"}, "reply", "invalid_value"),
        ({"deadline": "nan"}, "deadline", "invalid_value"),
        ({"deadline": "-1"}, "deadline", "invalid_value"),
        ({"deadline": "1e9"}, "deadline", "invalid_value"),
        ({"deadline": "1" * 17}, "deadline", "invalid_value"),
        ({"deadline": "١"}, "deadline", "invalid_value"),
        ({"ttl": "5s"}, "ttl", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"tenant": "a\0"}, "tenant", "invalid_value"),
        ({"session": "x" * 257}, "session", "invalid_value"),
        ({"program": "x" * 257}, "program", "invalid_value"),
        ({"traceparent": TRACE.upper()}, "traceparent", "invalid_value"),
        ({"meta": "x" * 4097}, "meta", "invalid_value"),
        ({"meta": b"\xff"}, "meta", "invalid_encoding"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_with_a_code(fields: dict[str, Any], param: str, code: str) -> None:
    assert refusal(**fields) == (param, code)


def test_a_missing_body_is_named() -> None:
    with pytest.raises(InvalidRequest, match="body: is missing") as caught:
        decode({b"id": b"r"}, Lane.LOW, "1-1")
    assert caught.value.code == "missing_field"


def test_a_request_without_an_id_is_named_after_its_entry() -> None:
    assert read("12-3").id == "high:12-3"
    assert read("12-3", id="").id == "high:12-3"


def test_a_time_to_live_counts_from_enqueueing_and_a_deadline_wins_over_it() -> None:
    assert read("1000-0", ttl="250").deadline_ms == 1250
    assert read("1000-0", ttl="250", deadline="9").deadline_ms == 9
    assert read("1000-0").deadline_ms is None


def test_the_endpoint_follows_from_the_body_when_it_is_absent() -> None:
    assert read(body='{"messages":[],"prompt":""}').endpoint == CHAT
    assert read(body='{"prompt":""}').endpoint == COMPLETIONS
    assert read(body='{"input":""}').endpoint == EMBEDDINGS
    assert read(body='{"input":""}', endpoint="/v1/score").endpoint == "/v1/score"


def test_unknown_fields_are_passed_over() -> None:
    assert read(colour="red") == read()


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    text = b'{"prompt":"' + b"x" * 87 + b'"}'
    assert parse_body(text, 100) == json.loads(text)
    with pytest.raises(InvalidRequest, match="is 100 bytes; at most 99 are allowed"):
        parse_body(text, 99)


def test_errors_say_what_to_do_and_stay_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(endpoint="/" * 10_000)
    assert len(str(caught.value)) < 400
    with pytest.raises(InvalidRequest, match="neither messages, prompt nor input") as caught:
        infer_endpoint({})
    assert json.loads(caught.value.to_openai())["error"]["type"] == "invalid_request_error"


@given(json_values.filter(lambda value: isinstance(value, dict)), st.sampled_from(sorted(ENDPOINTS)))
@example({"prompt": '\x7f\u2028é🚀"\\\n', "b": [1, 1.0, 1e16, 1e-07, -0.0, 10**30, True, None], "a": {}}, CHAT)
def test_a_digest_is_what_every_release_wrote_into_the_records(body: dict[str, Any], endpoint: str) -> None:
    """Else a request that was enqueued before an upgrade, and again after it, would be a conflict."""
    compared = json.dumps(body, sort_keys=True, separators=(",", ":"))
    expected = hashlib.blake2b(f"{endpoint}\0{compared}".encode(), digest_size=8).hexdigest()
    assert digest(Request(body, "r", Lane.LOW, endpoint)) == expected


def test_a_body_that_fits_no_endpoint_has_none_inferred() -> None:
    assert [inferred({name: 1}) for name in ("messages", "prompt", "input", "x")] == [
        CHAT,
        COMPLETIONS,
        EMBEDDINGS,
        None,
    ]
    with pytest.raises(InvalidRequest):
        infer_endpoint({"x": 1})


def test_a_digest_tells_bodies_and_endpoints_apart_and_nothing_else() -> None:
    def of(body: bytes, **fields: bytes) -> str:
        named = {b"body": body, **{name.encode(): value for name, value in fields.items()}}
        return digest(decode(named, Lane.LOW, "5-0"))

    body = b'{"prompt":"hi","max_tokens":3}'
    assert of(body) == of(body, id=b"other", deadline=b"5") == of(b'{"max_tokens": 3, "prompt": "hi"}')
    assert len({of(body), of(b'{"prompt":"hi"}'), of(body, endpoint=b"/v1/embeddings")}) == 3
    assert set(of(body)) <= set(string.hexdigits.lower())
    assert len(of(body)) == 16


def test_a_digest_of_bytes_is_that_of_body_and_endpoint() -> None:
    of = digest_of_bytes
    assert of({b"body": b"{}"}) == of({b"body": b"{}", b"endpoint": b"", b"id": b"r", b"meta": b"m"})
    assert len({of({}), of({b"body": b"{}"}), of({b"body": b"{ }"}), of({b"body": b"{}", b"endpoint": b"/x"})}) == 4
    assert len(of({})) == 16
    bodies = [b"x" * 65_536, b"x" * 65_537, b"y" + b"x" * 65_536, b"x" * 65_536 + b"y"]
    assert len({of({b"body": body}) for body in bodies}) == 4


@given(st.text(max_size=300))
def test_a_checked_name_is_safe_in_a_key(name: str) -> None:
    try:
        checked = check_name(name, "id")
    except InvalidRequest:
        return
    assert checked == name
    assert 1 <= len(name.encode()) <= 256
    assert name.isascii()
    assert name.isprintable()
    assert " " not in name


def test_a_name_may_have_further_rules() -> None:
    with pytest.raises(InvalidRequest, match=r"must not contain any of \{\}"):
        check_name("a{b", "queue", forbidden="{}")


def test_lanes_are_numbered_from_the_most_urgent() -> None:
    assert [(lane.number, lane.rank) for lane in LANES] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert list(LANES) == ["critical", "high", "normal", "low"]


def body(begin: str, unit: str, end: str, size: int) -> bytes:
    """JSON text of about this size, most of it the unit again and again."""
    return (begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end).encode()


LONG = DEFAULT_MAX_BODY_BYTES - 1_048_576
IMAGE = body(
    '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,',
    "Ab9+/=",
    '"}}]}]}',
    LONG,
)
SLOW = {
    "lists": body('{"x":[', "[],", "[]]}", LONG),
    "strings": body('{"x":[', '"",', '""]}', LONG),
    "objects": body('{"x":[', '{"a":1},', "1]}", LONG),
    "numbers": body('{"x":[', "1.5,", "1]}", 1_048_576),
    "digits": body('{"x":[', "7" * 4_000 + ",", "1]}", LONG),
    "blanks": body('{"x":', " \n", "1}", LONG),
    "escapes": body('{"x":"', "\\n", '"}', LONG),
    "quotes": body('{"x":"', '\\"', '"}', LONG),
    "letters": body('{"x":"', "中", '"}', LONG // 3),
    "deletes": body('{"x":"', "\x7f", '"}', LONG),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_long_body_that_takes_long_to_read_is_refused_before_it_is_read(name: str) -> None:
    """Python's JSON decoder serves nobody else meanwhile: 3 MiB of empty lists took a quarter of a second."""
    spent = []
    for _ in range(3):
        began_s = time.thread_time()
        with pytest.raises(InvalidRequest) as raised:
            parse_body(SLOW[name], DEFAULT_MAX_BODY_BYTES)
        spent.append(time.thread_time() - began_s)
        assert (raised.value.param, raised.value.code) == ("body", "request_too_large")
    assert min(spent) < 0.05


def test_a_long_body_is_read_where_it_is_long_because_of_an_image() -> None:
    parsed = parse_body(IMAGE, DEFAULT_MAX_BODY_BYTES)
    sent, _ = encode_body(parsed)
    assert sent == IMAGE
    check_body(sent, DEFAULT_MAX_BODY_BYTES)


@pytest.mark.parametrize(
    "text",
    [
        body('{"x":"', '{\\"a\\": [1, 2, 3]}, ', '"}', 1_048_576),
        body('{"x":"', "a, b: [c] {d}\\\\", '"}', 1_048_576),
        body('{"x":"', "中", '"}', 1_048_576 // 3),
        body('{"x":[', "1.5,", "1]}", PLAIN_BYTES),
        body('{"x":[', '"some words, and \\"others\\"", ', "1]}", 1_048_576),
    ],
    ids=["JSON in a text", "code in a text", "Chinese", "numbers", "texts"],
)
def test_a_text_of_a_megabyte_is_read_whatever_stands_in_it(text: bytes) -> None:
    assert parse_body(text, DEFAULT_MAX_BODY_BYTES) == json.loads(text)


def test_how_long_a_body_may_take_to_read_grows_with_the_largest_body() -> None:
    numbers = body('{"x":[', "1.5,", "1]}", 1_000_000)
    assert parse_body(numbers, 64 * 1_048_576)
    with pytest.raises(InvalidRequest, match="to be read in 40 ms") as refused:
        parse_body(numbers, 1_048_576)
    assert refused.value.code == "request_too_large"


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("digits", [1, 6])
def test_token_ids_of_a_thousand_texts_are_read(digits: int, blank: str) -> None:
    text = json.dumps({"input": [[10**digits - 1] * 200] * 1_000}, separators=(f",{blank}", ":")).encode()
    found = parse_body(text, DEFAULT_MAX_BODY_BYTES)
    assert sum(map(len, found["input"])) == 200_000


UNITS = [
    "1,",
    "12345,",
    "[],",
    "[[[]]],",
    "{},",
    '{"a":1},',
    '"",',
    '"a","b",',
    "1.5,",
    "-1e300,",
    "null,",
    "9" * 4_000 + ",",
]


@pytest.mark.parametrize("unit", UNITS, ids=[unit[:9] for unit in UNITS])
def test_no_body_that_is_read_takes_long_in_one_step(unit: str) -> None:
    """The largest of each kind that passes, beside the time of the ids that have to pass, on this machine."""

    def longest(text: bytes) -> float:
        found = 0.0
        value = json.loads(text)
        for step in (lambda: parse_body(text, DEFAULT_MAX_BODY_BYTES), lambda: json.dumps(value)):
            began = time.process_time()
            step()
            found = max(found, time.process_time() - began)
        return found

    low, high = 0, DEFAULT_MAX_BODY_BYTES
    while high - low > 4_096:
        middle = (low + high) // 2
        try:
            check_body(body('{"x":[', unit, "1]}", middle), DEFAULT_MAX_BODY_BYTES)
            low = middle
        except InvalidRequest:
            high = middle
    most, ids = body('{"x":[', unit, "1]}", low), json.dumps({"input": [[123_456] * 200] * 1_000}).encode()
    gc.freeze()  # a collection would look at all that the tests hold
    try:
        assert any(longest(most) < 6 * max(0.008, longest(ids)) for _ in range(3))
    finally:
        gc.unfreeze()


def test_half_of_a_surrogate_pair_is_refused_in_a_long_body_too() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        parse_body(IMAGE.replace(b'"user"', b'"\\ud800"'), DEFAULT_MAX_BODY_BYTES)
