"""Message batches: bodies that come in pieces of any size, bad ones, and what becomes of lines and batches."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.results import Result, Timings
from streamfleet.gateway.batch_records import BatchRecord, BatchStatus
from streamfleet.gateway.batches.lines import LineChecker, most_line_bytes
from streamfleet.gateway.body import Bodies
from streamfleet.gateway.messages.batch_form import RequestSplitter, batch_object, input_line, own_id, result_line
from streamfleet.gateway.messages.batches import _Requests
from streamfleet.gateway.metrics import endpoint_label
from streamfleet.producer.batch_lines import BadLine, answer_line, refusal_line

MOST = 100_000
HARD = 'x"}],[{ \\ \\" \u00e9\n\u2028\\\\'
PARAMS: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": HARD}], "stop_sequences": [HARD, "\\"]}


def asked(name: str, **changes: Any) -> dict[str, Any]:
    """One request."""
    return {"custom_id": name, "params": PARAMS | changes}


def lines_of(body: bytes, step: int = 10_000, most: int = MOST) -> list[dict[str, Any]]:
    """The lines that are made of a body."""
    splitter, checker, found = RequestSplitter(most_line_bytes(most)), LineChecker("/v1/messages", most), list[bytes]()
    for at in range(0, len(body), step):
        for text in splitter.feed(body[at : at + step]):
            found.append(input_line(text, len(found), checker, most))
    splitter.end()
    return [json.loads(line) for line in found]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_requests_become_lines_however_they_come(step: int, indent: int | None, ascii_only: bool) -> None:
    requests = [asked(f"r-{number}", max_tokens=number) for number in range(3)]
    body = json.dumps({"requests": requests}, indent=indent, ensure_ascii=ascii_only).encode()
    lines = lines_of(b" \n" + body + b"\r\n", step)
    assert [{"custom_id": line["custom_id"], "params": line["body"]} for line in lines] == requests
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/messages")}


A = json.dumps(asked("a"))
B = json.dumps(asked("b"))
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
BAD: dict[str, tuple[str, str, str]] = {
    "nothing": ("", "body", "invalid_json"),
    "a list": (f"[{A}]", "body", "invalid_json"),
    "no JSON": ("custom_id,params", "body", "invalid_json"),
    "zero bytes": (json.dumps({"requests": []}).encode("utf-16").decode("latin-1"), "body", "invalid_json"),
    "no fields": ("{ }", "requests", "missing_required_parameter"),
    "null": ('{"requests": null}', "requests", "invalid_type"),
    "no list": ('{"requests": {}}', "requests", "invalid_type"),
    "a text": ('{"requests" : "[]"}', "requests", "invalid_type"),
    "no requests": ('{"requests": []}', "requests", "invalid_value"),
    "an end in the middle": (f'{{"requests": [{A}, {B[:-3]}', "body", "invalid_json"),
    "an end before the end": (f'{{"requests": [{A}]', "body", "invalid_json"),
    "more behind the end": (f'{{"requests": [{A}]}}]', "body", "invalid_json"),
    "much before the beginning": (" " * 20_000 + f'{{"requests": [{A}]}}', "body", "invalid_json"),
    "another field first": (f'{{"model": "m", "requests": [{A}]}}', "model", "unsupported_parameter"),
    "another field last": (f'{{"requests": [{A}], "model": "m"}}', "model", "unsupported_parameter"),
    "the list twice": (f'{{"requests": [{A}], "requests": [{B}]}}', "requests", "unsupported_parameter"),
    "a number": (f'{{"requests": [{A}, 5]}}', "requests.1", "invalid_json"),
    "no comma": (f'{{"requests": [{A} {B}]}}', "requests.1", "invalid_json"),
    "a comma too many": (f'{{"requests": [{A},]}}', "requests.1", "invalid_json"),
    "a comma first": (f'{{"requests": [,{A}]}}', "requests.0", "invalid_json"),
    "brackets that do not fit": ('{"requests": [{"custom_id": "a"]]}', "requests.0", "invalid_json"),
    "a request that is no JSON": (f'{{"requests": [{A}, {{custom_id: 5}}]}}', "requests.1", "invalid_json"),
    "half a character": ('{"requests": [{"custom_id": "\\ud800", "params": {}}]}', "requests.0", "invalid_encoding"),
    "an unknown field": (
        json.dumps({"requests": [asked("a") | {"method": "POST"}]}),
        "requests.0.method",
        "unsupported_parameter",
    ),
    "no custom_id": ('{"requests": [{"params": {}}]}', "requests.0.custom_id", "missing_required_parameter"),
    "no params": ('{"requests": [{"custom_id": "a"}]}', "requests.0.params", "missing_required_parameter"),
    "an empty custom_id": (json.dumps({"requests": [asked("")]}), "requests.0.custom_id", "invalid_value"),
    "a custom_id too long": (json.dumps({"requests": [asked("a" * 65)]}), "requests.0.custom_id", "invalid_value"),
    "a custom_id with blanks": (json.dumps({"requests": [asked("a b")]}), "requests.0.custom_id", "invalid_value"),
    "a custom_id twice": (f'{{"requests": [{A}, {B}, {A}]}}', "requests.2.custom_id", "duplicate_custom_id"),
    "params that are a list": (
        '{"requests": [{"custom_id": "a", "params": []}]}',
        "requests.0.params",
        "invalid_type",
    ),
    "no messages": (
        f'{{"requests": [{A}, {{"custom_id": "b", "params": {{}}}}]}}',
        "requests.1.params.messages",
        "missing_required_parameter",
    ),
    "a stream": (
        json.dumps({"requests": [asked("a", stream=True)]}),
        "requests.0.params.stream",
        "unsupported_parameter",
    ),
    "tools of Anthropic alone": (
        json.dumps({"requests": [asked("a", tools=[SEARCH])]}),
        "requests.0.params.tools",
        "unsupported_parameter",
    ),
    "a request too long": (
        json.dumps({"requests": [asked("a", system="x" * 2 * MOST)]}),
        "requests.0",
        "request_too_large",
    ),
    "a request far too long": (
        json.dumps({"requests": [asked("a", system="x" * 8 * MOST)]}),
        "requests.0",
        "request_too_large",
    ),
}


@pytest.mark.parametrize("step", [7, 10_000])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_body_names_the_field_and_the_request(name: str, step: int) -> None:
    body, param, code = BAD[name]
    with pytest.raises(InvalidRequest) as refused:
        lines_of(body.encode("latin-1" if name == "zero bytes" else "utf-8"), step)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "requests: is missing"),
        (b'{"requests": null}', "requests: must be a list"),
        (b'{"requests": [{"custom_id": "a", "params": {}}]}', "requests.0.params.messages: is missing: "),
        (f'{{"requests": [{A}, {A}]}}'.encode(), "requests.1.custom_id: 'a' is that of an earlier request"),
    ],
)
def test_a_field_is_named_once(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        lines_of(body)
    assert str(refused.value).startswith(said)


def test_a_request_that_takes_long_to_read_is_not_read() -> None:
    text = json.dumps(asked("a", stop_sequences=[[]] * 200_000)).encode()[:-1]  # no JSON: it is not parsed
    with pytest.raises(InvalidRequest, match="numbers, lists") as refused:
        input_line(text, 3, LineChecker("/v1/messages", 1_000_000), 1_000_000)
    assert refused.value.param == "requests.3"


def test_a_request_that_never_ends_is_not_gathered() -> None:
    splitter = RequestSplitter(MOST)
    splitter.feed(b'{"requests": [{"custom_id": "' + b"x" * 9_990)
    tracemalloc.start()
    try:
        for _ in range(MOST // 10_000 - 2):
            splitter.feed(b"x" * 10_000)
        with pytest.raises(InvalidRequest, match="100000"):
            splitter.feed(b"x" * 20_000)
        assert tracemalloc.get_traced_memory()[1] < 5 * MOST
    finally:
        tracemalloc.stop()


def test_blanks_between_requests_are_not_held() -> None:
    """Each piece was read again with all blanks before it, on the event loop."""
    splitter, blanks = RequestSplitter(MOST), b" \t\r\n" * 2_500
    found = splitter.feed(b'{"requests": [')
    tracemalloc.start()
    try:
        for between in (A.encode(), b",", B.encode(), b"]}"):
            for _ in range(100):
                found += splitter.feed(blanks)
            found += splitter.feed(between)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(blanks)
    finally:
        tracemalloc.stop()
    splitter.end()
    assert found == [A.encode(), B.encode()]


async def test_a_request_counts_as_held_until_it_is_written() -> None:
    room = Bodies(MOST).hold("a")
    requests, held = _Requests(MOST, Lane.LOW, room), list[int]()

    class Upload:
        async def write(self, line: bytes) -> None:
            assert line
            held.append(room.bytes)

    upload: Any = Upload()
    await requests.take(f'{{"requests": [{A}, {B[:-1]}'.encode(), upload)
    assert room.bytes == len(B) - 1
    await requests.take(b"}]}", upload)
    assert (held, room.bytes) == ([len(A) + len(B) + 15, len(B) + 2], 1)
    room.release()


MESSAGE = {"type": "message", "content": []}
ENDED = Result("id-1", Status.SUCCEEDED, MESSAGE, None, 200, "stop", None, "w", 1, Timings(), {})


def test_results_are_those_of_anthropic() -> None:
    def result_of(line: bytes) -> Any:
        found = json.loads(result_line(line.rstrip()))
        assert set(found) == {"custom_id", "result"}
        assert found["custom_id"] == "a"
        return found["result"]

    def errored(kind: str, message: str, request_id: str | None) -> dict[str, Any]:
        error = {"type": kind, "message": message}
        return {"type": "errored", "error": {"type": "error", "error": error, "request_id": request_id}}

    assert result_of(answer_line("a", ENDED)) == {"type": "succeeded", "message": ENDED.response}
    assert result_of(answer_line("a", ENDED, "tools.f"))["x-streamfleet-ignored"] == "tools.f"
    failed = replace(ENDED, status=Status.FAILED, http_status=400, response=None, error={"message": "no"})
    assert result_of(answer_line("a", failed)) == errored("invalid_request_error", "no", "id-1")
    broken = replace(failed, http_status=500)
    assert result_of(answer_line("a", broken)) == errored("api_error", "no", "id-1")
    unknown = BadLine(3, "a", "there is no model m", "body.model", "model_not_found")
    assert result_of(refusal_line(unknown)) == errored("not_found_error", "model: there is no model m", None)
    conflict = BadLine(3, "a", "changed", None, "conflict")
    assert result_of(refusal_line(conflict)) == errored("invalid_request_error", "changed", None)
    for code, kind in (("batch_cancelled", "canceled"), ("batch_expired", "expired")):
        assert result_of(refusal_line(BadLine(3, "a", "over", None, code))) == {"type": kind}


def test_a_result_is_one_line_for_every_reader() -> None:
    hard = {**MESSAGE, "content": "a\u2028b\u2029c\x85d\u00e9"}
    text = result_line(answer_line("a", replace(ENDED, response=hard)).rstrip())
    assert len(text.decode().splitlines()) == 1
    assert json.loads(text)["result"]["message"] == hard
    assert "\u00e9" in text.decode()


BATCH = BatchRecord(
    "batch_" + "0" * 32, "t", "file-1", "file-2", "file-3", "/v1/messages", "24h", Lane.LOW, 1_000, 86_401_000, total=9
)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (BatchStatus.VALIDATING, "in_progress"),
        (BatchStatus.IN_PROGRESS, "in_progress"),
        (BatchStatus.FINALIZING, "in_progress"),
        (BatchStatus.CANCELLING, "canceling"),
    ],
)
def test_an_open_batch_is_processing(status: BatchStatus, shown: str) -> None:
    told = batch_object(replace(BATCH, status=status, completed=4, times={"cancelling": 2_500}))
    assert told["processing_status"] == shown
    assert told["request_counts"] == {"processing": 9, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    assert (told["created_at"], told["expires_at"]) == ("1970-01-01T00:00:01.000Z", "1970-01-02T00:00:01.000Z")
    assert (told["ended_at"], told["results_url"], told["archived_at"]) == (None, None, None)
    assert told["cancel_initiated_at"] == "1970-01-01T00:00:02.500Z"


@pytest.mark.parametrize("status", [status for status in BatchStatus if status.ended])
def test_a_batch_that_ended_counts_its_requests(status: BatchStatus) -> None:
    told = batch_object(
        replace(BATCH, status=status, completed=2, failed=6, late=1, cancelled=3, times={status: 5_000})
    )
    assert told["processing_status"] == "ended"
    assert told["request_counts"] == {"processing": 0, "succeeded": 2, "errored": 3, "canceled": 3, "expired": 1}
    assert (told["id"], told["ended_at"]) == (f"msg{BATCH.id}", "1970-01-01T00:00:05.000Z")
    assert told["results_url"] == f"/v1/messages/batches/msg{BATCH.id}/results"
    assert own_id(told["id"]) == BATCH.id


@pytest.mark.parametrize("wrong", ["", BATCH.id, "msgbatch_", f"msgjob_{'0' * 32}", f"msgmsg{BATCH.id}"])
def test_other_ids_are_none_of_a_message_batch(wrong: str) -> None:
    assert own_id(wrong) is None


def test_paths_with_ids_have_one_label() -> None:
    assert endpoint_label(f"/v1/messages/batches/msg{BATCH.id}/results") == "/v1/messages/batches"
