"""Events of whole responses, and how a gateway frames them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.protocol import CHAT, RESPONSES
from streamfleet.common.response_events import event_type, events_of
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import COMMENT, WHOLE, Framing
from streamfleet.producer.events import text_of

PART = {"type": "output_text", "text": "hi", "annotations": []}
MESSAGE = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [PART]}
CALL = {"id": "fc_1", "type": "function_call", "status": "completed", "name": "f", "call_id": "c", "arguments": "{}"}
THOUGHT = {"id": "rs_1", "type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
OTHER = {"id": "x_1", "type": "compaction", "status": "completed"}
RESPONSE = {"object": "response", "status": "completed", "output": [THOUGHT, MESSAGE, CALL, OTHER], "usage": {"x": 1}}


def test_a_response_has_the_events_that_openai_streams_of_it() -> None:
    events = events_of(RESPONSE)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "output_item.done"),
        "completed",
    ]
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == RESPONSE["output"]
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == [0, 1, 2, 3]
    assert events[-1]["response"] == RESPONSE
    assert events[0]["response"] == {**RESPONSE, "status": "in_progress", "output": [], "usage": None} | {
        "incomplete_details": None
    }
    assert "".join(map(text_of, events)) == "hi"


@pytest.mark.parametrize("output", [None, "x", ["x"], [{}], [{"content": ["x", {}]}]])
def test_odd_responses_have_events_too(output: Any) -> None:
    assert events_of({"status": "incomplete", "output": output})[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ('{"a":1,"type":"response.created"}', "response.created"),
        ('{"type":"response.created","a":{"type":"message"}}', "response.created"),
        ('{"type":"response.created","a":{"b":1,"type":"message"}}', "response.created"),
        ('{"type": "response.created", "a": "\\"type\\":\\"x"}', "response.created"),
        ('{"choices":[]}', ""),
        ('{"type":7}', ""),
        ('{"a":1,"type":"x\\nevent: y"}', ""),
    ],
)
def test_the_type_is_that_of_the_event_itself(raw: str, kind: str) -> None:
    assert event_type(raw) == kind


def events(sent: bytes) -> list[dict[str, str]]:
    return [dict(line.split(": ", 1) for line in each.splitlines()) for each in sent.decode().split("\n\n")[:-1]]


DELTA = '{"delta":"ü\u2028","sequence_number":4,"type":"response.output_text.delta"}'


@pytest.mark.parametrize("endpoint", [RESPONSES, ""])
@pytest.mark.parametrize("ids", [True, False])
def test_an_event_is_named_and_on_one_line(endpoint: str, ids: bool) -> None:
    framing = Framing(event_ids=ids, endpoint=endpoint)
    (event,) = events(framing.group("1-0", [DELTA]))
    assert event.get("id") == ("1-0/0" if ids else None)
    assert (event["event"], json.loads(event["data"])) == ("response.output_text.delta", json.loads(DELTA))
    assert framing.keep_alive(1, "m") == COMMENT


def test_a_chunk_of_a_chat_has_no_name_for_a_reader_that_did_not_ask_for_it() -> None:
    framing = Framing(event_ids=True, endpoint="")
    assert events(framing.group("1-0", ['{"choices":[]}'])) == [{"id": "1-0/0", "data": '{"choices":[]}'}]
    assert framing.endpoint == CHAT


@pytest.mark.parametrize("kind", ["x", "chat.completion.chunk"])
def test_a_chunk_of_a_chat_may_have_a_type(kind: str) -> None:
    raw = f'{{"choices":[],"type":"{kind}"}}'
    assert events(Framing(event_ids=True, endpoint="").chunk("1-0/0", raw)) == [{"id": "1-0/0", "data": raw}]
    with pytest.raises(ApiError, match="404"):
        Framing(event_ids=True, endpoint=RESPONSES).chunk("1-0/0", raw)


@pytest.mark.parametrize("raw", ['{"sequence_number":0}', '{"type":"x y"}'])
def test_an_event_without_a_type_has_no_name(raw: str) -> None:
    assert events(Framing(event_ids=False, endpoint=RESPONSES).chunk("1-0/0", raw)) == [{"data": raw}]


@pytest.mark.parametrize(
    "raw",
    [
        '{"response":{"id":"r"},"type":"x"}',
        '{"response": {"id": "r"}, "type": "x"}',
        '{"response" : {"id": "r"}, "type": "x"}',
        '{"response":\r{"id":"r"},"type":"x"}',
    ],
)
def test_a_response_tells_its_tier(raw: str) -> None:
    (event,) = events(Framing(event_ids=False, endpoint=RESPONSES, said={"service_tier": "flex"}).chunk("1-0/0", raw))
    assert json.loads(event["data"]) == {"response": {"id": "r", "service_tier": "flex"}, "type": "x"}


def test_an_error_goes_on_with_the_numbers_and_has_both_forms_of_openai() -> None:
    framing, error = Framing(event_ids=False, endpoint=RESPONSES), ApiError(503, "away", "gone", "server_error")
    assert json.loads(events(framing.error(error))[0]["data"])["sequence_number"] == 0
    framing.group("1-0", [DELTA])
    (event,) = events(framing.error(error))
    flat = {"type": "error", "code": "gone", "message": "away", "param": None, "sequence_number": 5}
    assert (event["event"], json.loads(event["data"])) == ("error", {**flat, "error": error.error})


@pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
def test_the_first_error_goes_on_with_the_number_that_the_reader_has(endpoint: str) -> None:
    (event,) = events(Framing(event_ids=True, endpoint=endpoint, had=7).error(ApiError(503, "away", "gone")))
    assert json.loads(event["data"]).get("sequence_number") == (7 if endpoint == RESPONSES else None)


@pytest.mark.parametrize(
    ("had", "streamed", "told"),
    [(0, 0, range(21)), (3, 0, range(3, 21)), (21, 0, ()), (0, 50, range(21)), (3, 50, ()), (50, 50, ())],
)
def test_a_whole_response_goes_on_behind_a_number_unless_that_is_of_its_own_events(
    had: int, streamed: int, told: Any
) -> None:
    found = events(Framing(event_ids=True, endpoint=RESPONSES, had=had).whole(RESPONSE, streamed))
    assert [json.loads(event["data"])["sequence_number"] for event in found] == list(told)


@pytest.mark.parametrize(
    ("answer", "had", "streamed", "status", "param"),
    [
        (RESPONSE, 22, 0, 400, "starting_after"),
        (RESPONSE, 51, 50, 400, "starting_after"),
        ({"object": "chat.completion", "choices": []}, 0, 0, 404, "request_id"),
        ({"object": "list", "data": []}, 3, 2, 404, "request_id"),
    ],
)
def test_what_is_no_response_or_has_fewer_events_is_refused(
    answer: dict[str, Any], had: int, streamed: int, status: int, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        Framing(event_ids=True, endpoint=RESPONSES, had=had).whole(answer, streamed)
    assert (caught.value.status, caught.value.param) == (status, param)


def test_a_reader_that_is_cut_within_a_whole_response_has_nothing_to_resume_behind() -> None:
    found = events(Framing(event_ids=True).whole(RESPONSE))
    assert [event.get("id") for event in found] == [*[None] * (len(found) - 1), WHOLE]
