"""Any entry of a lane, by XADD, has one result that names the field and one dead letter; others do not notice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from streamfleet.common.protocol import DEFAULT_MAX_BODY_BYTES as MOST_BYTES
from tests.integration.worker_process import WorkerProcess, chat
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

GOOD = json.dumps(chat()).encode()
LANE = "{default}:lane:normal"


@dataclass(frozen=True)
class Bad:
    """An entry that must fail.

    Attributes:
        fields: what is XADDed; `id` is added unless it is given.
        param: the field that the error must name.
        code: its code; None for any.
        status: how it ends.
    """

    fields: dict[Any, Any]
    param: str
    code: str | None = None
    status: str = "failed"


def body(**more: Any) -> dict[str, bytes]:
    return {"body": json.dumps({**chat(), **more}).encode()}


def good(**more: Any) -> dict[Any, Any]:
    return {"body": GOOD, **more}


BAD = {
    "no body": Bad({"nobody": "1"}, "body", "missing_field"),
    "an empty body": Bad({"body": ""}, "body", "invalid_json"),
    "no UTF-8": Bad({"body": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'}, "body", "invalid_encoding"),
    "no JSON": Bad({"body": "Say hi"}, "body", "invalid_json"),
    "an array": Bad({"body": "[1, 2]"}, "body", "invalid_type"),
    "NaN": Bad({"body": '{"messages":[],"temperature":NaN}'}, "body", "invalid_json"),
    "nested too deeply": Bad({"body": '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"}, "body", "invalid_json"),
    "an object nested too deeply": Bad({"body": '{"a":' * 50_000 + "1" + "}" * 50_000}, "body", "invalid_json"),
    "nothing to infer the endpoint from": Bad({"body": "{}"}, "body", "missing_field"),
    "50 MB": Bad({"body": b'{"prompt":"' + b"x" * 50_000_000 + b'"}'}, "body", "request_too_large"),
    "slightly too large": Bad({"body": b'{"prompt":"' + b"x" * MOST_BYTES + b'"}'}, "body", "request_too_large"),
    "a deadline of nan": Bad(good(deadline="nan"), "deadline"),
    "a deadline of inf": Bad(good(deadline="inf"), "deadline"),
    "a deadline of 1e13": Bad(good(deadline="1e13"), "deadline"),
    "a negative deadline": Bad(good(deadline="-1"), "deadline"),
    "a deadline of 17 digits": Bad(good(deadline="9" * 17), "deadline"),
    "a deadline in other digits": Bad(good(deadline="١٧٩٠٠٠٠٠٠٠٠٠٠"), "deadline"),
    "a deadline in the past": Bad(good(deadline="1000"), "deadline", "deadline_exceeded", "expired"),
    "a deadline of no bytes of text": Bad(good(deadline=b"\xff"), "deadline", "invalid_encoding"),
    "a ttl of words": Bad(good(ttl="soon"), "ttl"),
    "an unknown endpoint": Bad(good(endpoint="/v1/chat"), "endpoint", "unknown_endpoint"),
    "an administrative endpoint": Bad(good(endpoint="/v1/load_lora_adapter"), "endpoint", "unknown_endpoint"),
    "an unknown model": Bad(body(model="gpt-9"), "model", "model_not_found"),
    "a model that is a number": Bad(body(model=7), "model"),
    "n=100000": Bad(body(n=100_000), "n", "too_expensive"),
    "n=1e400": Bad({"body": '{"messages":[],"n":1e400}'}, "n", "too_expensive"),
    "n with 400 digits": Bad(body(n=10**400), "n", "too_expensive"),
    "100000 prompts": Bad({"body": json.dumps({"prompt": ["x"] * 100_000})}, "prompt", "too_expensive"),
    "a prompt longer than the context": Bad(
        body(messages=[{"role": "user", "content": "x " * 20_000}]), "messages", "context_length_exceeded"
    ),
    "max_tokens with 400 digits": Bad(body(max_tokens=10**400), "max_tokens", "context_length_exceeded"),
    "a grammar field that vLLM has removed": Bad(body(guided_regex="(.?){5000}x"), "guided_regex", "too_expensive"),
    "another without a successor": Bad(body(guided_decoding_backend="outlines"), "guided_decoding_backend"),
    "two constraints": Bad(body(guided_regex="a", structured_outputs={"regex": "b"}), "guided_regex"),
    "a constraint where nothing is generated": Bad(
        {"body": '{"input":"x","guided_regex":"a"}', "endpoint": "/v1/embeddings"},
        "guided_regex",
        "unsupported_parameter",
    ),
    "a number with 5000 digits": Bad({"body": '{"messages":[],"seed":1' + "0" * 5_000 + "}"}, "body", "invalid_json"),
    "infinite temperature": Bad({"body": GOOD[:-1] + b',"temperature":1e400}'}, "body"),
    "temperature in words": Bad(body(temperature="hot"), "temperature"),
    "messages that are none": Bad(body(messages="hi"), "messages"),
    "a 1 MB regex": Bad(body(structured_outputs={"regex": "a" * 1_000_000}), "structured_outputs", "too_expensive"),
    "a large schema": Bad(body(response_format={"a": "b" * 20_000}), "response_format", "too_expensive"),
    "half a surrogate pair": Bad(
        {"body": '{"messages":[{"role":"user","content":"\\ud800"}]}'}, "body", "invalid_encoding"
    ),
    "a 1 MB id": Bad(good(id="i" * 1_000_000), "id"),
    "an id with spaces": Bad(good(id="a b"), "id"),
    "an id of the reserved form": Bad(good(id="high:1-1"), "id"),
    "an id of no bytes of text": Bad(good(id=b"\xff"), "id", "invalid_encoding"),
    "an odd reply name": Bad(good(reply="me and you"), "reply"),
    "a reply name of no bytes of text": Bad(good(reply=b"\xff"), "reply", "invalid_encoding"),
    "a stream flag of 2": Bad(good(stream="2"), "stream"),
    "a tenant of control characters": Bad(good(tenant="a\x00b"), "tenant"),
    "a session that is too long": Bad(good(session="s" * 257), "session"),
    "a program that is too long": Bad(good(program="p" * 257), "program"),
    "a wrong traceparent": Bad(good(traceparent="00-1"), "traceparent"),
    "a meta that is too long": Bad(good(meta="m" * 4_097), "meta"),
    "300 fields, one of them wrong": Bad({**{f"f{n}": "x" for n in range(300)}, **good(stream="yes")}, "stream"),
}
FINE = {
    "an id with braces": good(id="a}{b*?[c]"),
    "300 fields": {**{f"f{n}": "x" * 100 for n in range(300)}, **good()},
    "field names of no bytes of text": {b"\xff\xfe": b"\x00", **good()},
    "a pair of surrogates": {"body": '{"messages":[{"role":"user","content":"\\ud83d\\ude00"}],"max_tokens":1}'},
    "a body in UTF-8": {"body": json.dumps(chat(user="Grüße 😀"), ensure_ascii=False).encode()},
    "streaming asked for in the body": body(stream=True, stream_options={"include_usage": True}),
    "a far deadline": good(deadline="9" * 16),
    "tenant and meta in UTF-8": good(tenant="Müller", meta='{"straße":1}'),
}


@dataclass
class SharedWorker:
    """A worker that all these tests share, on a server of their own."""

    redis: Any
    worker: WorkerProcess
    count: int = field(default=0)

    def submit(self, *entries: dict[Any, Any]) -> list[str]:
        """Add entries at one moment; the ids under which their results will stand."""
        pipe = self.redis.pipeline(transaction=True)
        named = []
        for fields in entries:
            self.count += 1
            named.append({"id": f"t-{self.count}", "reply": "me", **fields})
            pipe.xadd(LANE, named[-1])
        keys = pipe.execute()
        return [_result_id(fields["id"], key.decode()) for fields, key in zip(named, keys, strict=True)]

    def result(self, request_id: str) -> dict[str, str]:
        """Wait for a result."""
        key = f"{{default}}:result:{request_id}"
        eventually_blocking(lambda: self.redis.exists(key), 10, f"result of {request_id[:80]}")
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(key).items()}

    def dead_letters(self, request_id: str) -> list[dict[bytes, bytes]]:
        """The dead letters of a request."""
        found = self.redis.xrevrange("{default}:dead", count=20)
        return [letter for _, letter in found if letter[b"_id"] == request_id.encode()]

    def told(self, request_id: str) -> int:
        """Number of notifications of it in the reply stream."""
        found = self.redis.xrevrange("{default}:reply:me", count=20)
        return sum(notice[b"id"] == request_id.encode() for _, notice in found)


def _result_id(given: Any, stream_id: str) -> str:
    """Returns the name of the result: the id if it is usable, else the entry."""
    text = given if isinstance(given, str) else given.decode("latin-1")
    usable = 0 < len(text) <= 256 and all("!" <= char <= "~" for char in text) and text != "high:1-1"
    return text if usable else f"normal:{stream_id}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorker]:
    with (
        RedisServer(newest(find_servers())) as server,
        WorkerProcess(server.url, tmp_path_factory.mktemp("input"), "w1") as worker,
        redis.Redis.from_url(server.url) as client,
    ):
        yield SharedWorker(client, worker.ready_blocking())


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_result_that_names_the_field(shared: SharedWorker, name: str) -> None:
    bad = BAD[name]
    before, request, after = shared.submit(good(), bad.fields, good())
    fields = shared.result(request)
    assert fields["status"] == bad.status, fields
    error = json.loads(fields["error"])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == bad.param, error
    assert bad.code in (None, error["code"]), error
    assert 0 < len(error["message"]) < 5_000
    assert bad.param in error["message"], "SDKs show the message alone"
    assert "response" not in fields
    (letter,) = shared.dead_letters(request)
    assert (letter[b"_status"].decode(), letter[b"_error"].decode()) == (bad.status, fields["error"])
    for neighbour in (before, after):
        assert shared.result(neighbour)["status"] == "succeeded"
        assert shared.told(neighbour) == 1
    if bad.fields.get("reply") is None:
        assert shared.told(request) == 1
    eventually_blocking(lambda: shared.redis.xlen(LANE) == 0, what="nothing is outstanding")
    assert shared.worker.alive


@pytest.mark.parametrize("name", FINE)
def test_odd_but_allowed_input_runs(shared: SharedWorker, name: str) -> None:
    (request,) = shared.submit(FINE[name])
    fields = shared.result(request)
    assert fields["status"] == "succeeded", fields
    assert shared.worker.alive


WRONG_TIMES = [
    *[
        ("deadline", value, "expired")
        for value in ("0", "1000", "1732700000", "4102444800", "978307199999", "0001732700000")
    ],
    *[
        ("deadline", value, "failed")
        for value in ("1732700000.5", "1790000000000.0", "-1", "+1790000000000", " 1790000000000", "1790000000000 ")
    ],
    *[
        ("deadline", value, "failed")
        for value in ("1e12", "0x1A0C2E5D400", "nan", "-inf", "1_790_000_000_000", "1790000000000ms", "soon", " ")
    ],
    *[
        ("deadline", value, "failed")
        for value in ("2030-01-31T12:00:00Z", "9" * 17, "null", "undefined", "'1790000000000'")
    ],
    *[
        ("ttl", value, "failed")
        for value in ("-5", "-60000", "1.5", "1e3", "60s", "nan", "0x10", " 60000", "60000\n", "1" * 17)
    ],
]


@pytest.mark.parametrize(("name", "value", "status"), WRONG_TIMES)
def test_a_wrong_time_says_what_was_read_and_what_is_meant(
    shared: SharedWorker, name: str, value: str, status: str
) -> None:
    (request,) = shared.submit(good(**{name: value}))
    fields = shared.result(request)
    error = json.loads(fields["error"])["error"]
    assert (fields["status"], error["param"]) == (status, name)
    assert "milliseconds" in error["message"]
    assert ("epoch" if name == "deadline" else "from enqueueing") in error["message"]
    assert (value.lstrip("0") or "0" if status == "expired" else repr(value)) in error["message"]
    (letter,) = shared.dead_letters(request)
    assert (letter[b"_error"].decode(), letter[name.encode()].decode()) == (fields["error"], value)


@pytest.mark.parametrize("fields", [{"deadline": "978307200000"}, {"deadline": "1700000000000"}, {"ttl": "0"}])
def test_a_time_that_passed_is_not_taken_for_one_in_seconds(shared: SharedWorker, fields: dict[str, str]) -> None:
    (request,) = shared.submit(good(**fields))
    written = shared.result(request)
    message = json.loads(written["error"])["error"]["message"]
    assert (written["status"], "seconds" in message) == ("expired", False), message


def test_an_id_of_a_time_long_ago_does_not_make_a_ttl_a_deadline_in_seconds(shared: SharedWorker) -> None:
    shared.redis.xadd("{default}:lane:low", good(id="long-ago", ttl="1000"), id="1-1")
    message = json.loads(shared.result("long-ago")["error"])["error"]["message"]
    assert message == "the deadline passed while the request was queued"


@pytest.mark.parametrize("name", ["deadline", "ttl"])
def test_an_empty_time_counts_as_absent(shared: SharedWorker, name: str) -> None:
    (request,) = shared.submit(good(**{name: ""}))
    assert shared.result(request)["status"] == "succeeded"


def test_all_at_once(shared: SharedWorker) -> None:
    """In one batch, twice over, with good ones among them."""
    small = [bad.fields for bad in BAD.values() if len(str(bad.fields)) < 10_000]
    entries = [entry for fields in small * 2 for entry in (fields, good())]
    requests = shared.submit(*entries)
    statuses = [shared.result(request)["status"] for request in requests]
    assert statuses[1::2] == ["succeeded"] * len(small) * 2
    assert set(statuses[::2]) == {"failed", "expired"}
    eventually_blocking(lambda: shared.redis.xlen(LANE) == 0, what="nothing is outstanding")
    assert shared.worker.events("request_broke_the_worker") == []


def test_one_id_twice_gets_one_result(shared: SharedWorker) -> None:
    first, second = shared.submit(good(id="twin"), good(id="twin"))
    assert first == second
    assert shared.result("twin")["status"] == "succeeded"
    eventually_blocking(lambda: shared.redis.xlen(LANE) == 0, what="both entries are gone")
    assert shared.redis.hget("{default}:counts", "duplicate") == b"1"


def test_absurd_wishes_do_not_make_later_requests_look_large(shared: SharedWorker) -> None:
    """The room of the engine is measured in tokens: claims of a refused request must not count."""
    for request in shared.submit(*[body(max_tokens=10**15) for _ in range(50)]):
        assert shared.result(request)["status"] == "failed"
    requests = shared.submit(*[{"body": json.dumps(chat(0.5))} for _ in range(30)])
    pending = lambda: shared.redis.xpending(LANE, "workers")["pending"] == 30  # noqa: E731
    eventually_blocking(pending, 2, "thirty run at once")
    for request in requests:
        assert shared.result(request)["status"] == "succeeded"
