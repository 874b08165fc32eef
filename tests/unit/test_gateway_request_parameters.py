"""Request parameters from headers and bodies of callers: lane, deadline, session, id, and errors in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    LANES,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    Lane,
    check_name,
)
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.request_parameters import (
    Bounds,
    RequestParameters,
    belongs_to,
    body_to_enqueue,
    check_fields,
    leave_out_tools,
    read_parameters,
    request_id,
)

NOW = 1_790_000_000_000
BOUNDS = Bounds((Lane.HIGH, Lane.NORMAL, Lane.LOW), deadline_ms=600_000, most_ms=3_600_000)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def read(body: dict[str, Any] | None = None, bounds: Bounds = BOUNDS, /, **headers: str) -> RequestParameters:
    """Headers with `_` for `-`."""
    named = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return read_parameters(named, body or {}, bounds, NOW)


def test_what_nobody_waits_for_has_time_and_goes_on() -> None:
    """The SDK's time-out is that of the call, which is answered at once."""
    headers = {"x-stainless-read-timeout": "5", "x-streamfleet-on-disconnect": "cancel"}
    found = read_parameters(Headers(headers), {}, BOUNDS, NOW, background=True)
    assert (found.lane, found.ttl_ms, found.continue_on_disconnect) == (Lane.LOW, BOUNDS.most_ms, True)
    named = Headers({"x-streamfleet-ttl": "3s"})
    found = read_parameters(named, {"service_tier": "priority"}, BOUNDS, NOW, background=True)
    assert (found.lane, found.ttl_ms) == (Lane.HIGH, 3_000)


def test_who_says_nothing_gets_the_usual() -> None:
    assert read() == RequestParameters(
        lane=Lane.NORMAL,
        deadline_ms=None,
        ttl_ms=600_000,
        session=None,
        program=None,
        traceparent=None,
        continue_on_disconnect=False,
        stream=False,
        restart_events=False,
        after=None,
        event_ids=False,
        tier=None,
    )


@pytest.mark.parametrize(
    ("tier", "lane"),
    [
        (None, "normal"),
        ("auto", "normal"),
        ("default", "normal"),
        ("scale", "normal"),
        ("priority", "high"),
        ("flex", "low"),
    ],
)
def test_a_service_tier_is_a_lane(tier: str | None, lane: str) -> None:
    found = read({"service_tier": tier})
    assert (found.lane, found.refuses_late) == (lane, tier == "flex")
    assert found.ask({}, "r1", "", None, refuse_late=found.refuses_late).if_late == (
        "refuse" if tier == "flex" else None
    )


def test_the_header_says_more_than_the_tier() -> None:
    assert read({"service_tier": "priority"}, X_Streamfleet_Lane="low").lane is Lane.LOW
    assert not read({"service_tier": "flex"}, X_Streamfleet_Lane="high").refuses_late
    assert read(X_Streamfleet_Lane=" High ").lane is Lane.HIGH


@pytest.mark.parametrize(("body", "headers"), [({"service_tier": "gold"}, {}), ({"service_tier": ["flex"]}, {})])
def test_an_unknown_tier_is_refused(body: dict[str, Any], headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body, **headers)
    assert caught.value.param == "service_tier"


def test_a_lane_that_the_key_may_not_use_is_refused() -> None:
    with pytest.raises(ApiError, match="critical") as caught:
        read(X_Streamfleet_Lane="critical")
    assert (caught.value.status, caught.value.code) == (403, "lane_not_allowed")
    with pytest.raises(ApiError) as caught:
        read({"service_tier": "priority"}, Bounds((Lane.LOW,), 1, 1))
    assert caught.value.param == "service_tier"
    assert read({}, Bounds(LANES, 1, 1), X_Streamfleet_Lane="critical").lane is Lane.CRITICAL


@pytest.mark.parametrize(
    ("headers", "deadline_ms", "ttl_ms"),
    [
        ({"X_Streamfleet_Ttl": "30s"}, None, 30_000),
        ({"X_Streamfleet_Ttl": "2h"}, None, 3_600_000),
        ({"X_Streamfleet_Deadline_Ms": str(NOW + 5_000)}, NOW + 5_000, 5_000),
        ({"X_Streamfleet_Deadline_Ms": str(NOW - 5_000)}, NOW - 5_000, 0),
        ({"X_Streamfleet_Deadline_Ms": str(NOW * 10)}, NOW + 3_600_000, 3_600_000),
        ({"X_Stainless_Read_Timeout": "12.5"}, None, 13_500),
        ({"X_Stainless_Timeout": "60"}, None, 61_000),
        ({"X_Stainless_Read_Timeout": "99999"}, None, 3_600_000),
        ({"X_Stainless_Read_Timeout": "soon"}, None, 600_000),
        ({"X_Stainless_Read_Timeout": "0"}, None, 600_000),
        ({"X_Stainless_Read_Timeout": "5", "X_Streamfleet_Ttl": "7s"}, None, 7_000),
        ({"X_Streamfleet_Ttl": "7s", "X_Streamfleet_Deadline_Ms": str(NOW + 1)}, NOW + 1, 1),
        ({"X_Stainless_Read_Timeout": "5", "X_Stainless_Retry_Count": "0"}, None, 3 * 5_000 + 2 * 8_000 + 1_000),
        ({"X_Stainless_Read_Timeout": "5", "X_Stainless_Retry_Count": "1"}, None, 2 * 5_000 + 8_000 + 1_000),
        ({"X_Stainless_Read_Timeout": "5", "X_Stainless_Retry_Count": "2"}, None, 6_000),
        ({"X_Stainless_Read_Timeout": "5", "X_Stainless_Retry_Count": "999"}, None, 6_000),
        ({"X_Stainless_Read_Timeout": "5", "X_Stainless_Retry_Count": "x"}, None, 6_000),
        ({"X_Stainless_Read_Timeout": "99999", "X_Stainless_Retry_Count": "0"}, None, 3_600_000),
        ({"X_Streamfleet_Ttl": "7s", "X_Stainless_Retry_Count": "0"}, None, 7_000),
        ({"X_Stainless_Retry_Count": "0"}, None, 600_000),
    ],
    ids=str,
)
def test_deadlines(headers: dict[str, str], deadline_ms: int | None, ttl_ms: int) -> None:
    found = read(**headers)
    assert (found.deadline_ms, found.ttl_ms) == (deadline_ms, ttl_ms)


@pytest.mark.parametrize(
    ("headers", "ttl_ms"),
    [
        ({"X_Stainless_Read_Timeout": "5"}, 600_000),
        ({"X_Stainless_Timeout": "900"}, 901_000),
        ({"X_Stainless_Timeout": "99999"}, 3_600_000),
        ({"X_Stainless_Read_Timeout": "5", "X_Streamfleet_Ttl": "7s"}, 7_000),
    ],
    ids=str,
)
def test_the_time_out_of_a_client_is_no_deadline_of_a_stream(headers: dict[str, str], ttl_ms: int) -> None:
    """It is the longest silence that it bears, and may be far shorter than the stream."""
    assert read({"stream": True}, **headers).ttl_ms == ttl_ms


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"X_Streamfleet_Ttl": "soon"}, "X-Streamfleet-Ttl"),
        ({"X_Streamfleet_Deadline_Ms": "tomorrow"}, "X-Streamfleet-Deadline-Ms"),
        ({"X_Streamfleet_Deadline_Ms": "1732700000"}, "X-Streamfleet-Deadline-Ms"),
        ({"X_Streamfleet_Deadline_Ms": "978307199999"}, "X-Streamfleet-Deadline-Ms"),
        ({"X_Streamfleet_Deadline_Ms": "1732700000.5"}, "X-Streamfleet-Deadline-Ms"),
        ({"X_Streamfleet_Ttl": "-5s"}, "X-Streamfleet-Ttl"),
        ({"X_Streamfleet_Lane": "fast"}, "X-Streamfleet-Lane"),
        ({"X_Streamfleet_On_Disconnect": "maybe"}, "X-Streamfleet-On-Disconnect"),
        ({"X_Streamfleet_Restarts": "glue"}, "X-Streamfleet-Restarts"),
        ({"Last_Event_Id": "7"}, "Last-Event-ID"),
    ],
    ids=str,
)
def test_an_odd_header_is_named(headers: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**headers)
    assert caught.value.param == param


def test_sessions() -> None:
    assert read({"prompt_cache_key": "chat-7", "user": "ann"}).session == "chat-7"
    assert read({"user": "ann"}).session == "ann"
    assert read({"user": ""}).session is None
    long = read({"user": "x" * 5_000}).session
    assert long is not None
    assert len(long) == 64
    assert read({"user": "line\nbreak"}).session != "line\nbreak"
    with pytest.raises(InvalidRequest) as caught:
        read({"user": 7})
    assert caught.value.param == "user"


def test_programs() -> None:
    asked = read(X_Streamfleet_Program="run 7")
    assert asked.program == "run 7"
    assert asked.ask({}, "r", "/v1/completions", None).program == "run 7"
    assert read(X_Streamfleet_Program="").program is None
    assert len(read(X_Streamfleet_Program="x" * 300).program or "") == 64


def test_who_names_a_request_means_to_come_back() -> None:
    assert not read().continue_on_disconnect
    assert read(Idempotency_Key="k").continue_on_disconnect
    assert not read(Idempotency_Key="k", X_Streamfleet_On_Disconnect="cancel").continue_on_disconnect
    assert read(X_Streamfleet_On_Disconnect="continue").continue_on_disconnect


def test_streams() -> None:
    assert read({"stream": True}).stream
    assert read(X_Streamfleet_Restarts="event").restart_events
    assert read(Last_Event_ID="1-0/3").after == "1-0/3"


@pytest.mark.parametrize(
    ("headers", "resumes"),
    [
        ({}, False),
        ({"Accept": "text/event-stream"}, False),
        ({"X_Streamfleet_Restarts": "event"}, False),
        ({"X_Streamfleet_On_Disconnect": "cancel"}, False),
        ({"Idempotency_Key": ""}, False),
        ({"Last_Event_ID": "1-0/3"}, True),
        ({"Idempotency_Key": "mine"}, True),
        ({"Idempotency_Key": "mine", "X_Streamfleet_On_Disconnect": "cancel"}, True),
        ({"X_Streamfleet_On_Disconnect": "continue"}, True),
        ({"X_Streamfleet_Event_Ids": "send"}, True),
    ],
    ids=str,
)
def test_events_have_ids_for_those_who_can_resume(headers: dict[str, str], resumes: bool) -> None:
    assert read(**headers).event_ids is resumes


def test_an_event_id_is_asked_for_in_one_way() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(X_Streamfleet_Event_Ids="yes")
    assert (caught.value.param, caught.value.message) == ("X-Streamfleet-Event-Ids", "must be send, not 'yes'")
    with pytest.raises(InvalidRequest) as caught:
        read({"stream": "yes"})
    assert caught.value.param == "stream"


def test_a_trace_is_carried_and_what_is_none_passed_over() -> None:
    assert read(traceparent=TRACE).traceparent == TRACE
    assert read(traceparent="00-xyz").traceparent is None


@pytest.mark.parametrize(
    ("endpoint", "needed"), [(CHAT, "messages"), (COMPLETIONS, "prompt"), (EMBEDDINGS, "input")], ids=str
)
def test_a_body_without_its_prompt_is_refused(endpoint: str, needed: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_fields(endpoint, {"model": "m"})
    assert (caught.value.param, caught.value.code) == (needed, "missing_required_parameter")
    check_fields(endpoint, {needed: ""})


def test_what_is_the_gateways_own_is_not_sent_on() -> None:
    body = {"model": "small", "service_tier": "flex", "stream": True, "stream_options": {"include_usage": True}}
    assert body_to_enqueue(body, "SmolLM2") == {"model": "SmolLM2", "stream_options": {"include_usage": True}}
    assert body_to_enqueue({"prompt": "hi"}, None) == {"prompt": "hi"}
    asked = {"input": "hi", "store": True, "background": True, "previous_response_id": "resp_1"}
    assert body_to_enqueue(asked, None, RESPONSES) == {"input": "hi", "store": False}


@pytest.mark.parametrize(
    ("body", "headers", "tier"),
    [
        ({"service_tier": "auto"}, {}, "default"),
        ({"service_tier": "scale"}, {}, "default"),
        ({"service_tier": "priority"}, {}, "priority"),
        ({"service_tier": "flex"}, {"X_Streamfleet_Lane": "high"}, "priority"),
        ({}, {"X_Streamfleet_Lane": "low"}, None),
    ],
    ids=str,
)
def test_the_tier_that_is_told_is_the_lane_that_is_used(
    body: dict[str, Any], headers: dict[str, str], tier: str | None
) -> None:
    assert read(body, BOUNDS, **headers).tier == tier


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (RESPONSES, {"conversation": "conv_1"}, "conversation"),
        *((endpoint, {"stream": True}, "stream") for endpoint in (SCORE, RERANK, CLASSIFY, POOLING)),
    ],
    ids=str,
)
def test_what_no_gateway_does_is_refused(endpoint: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_fields(endpoint, {"input": "hi", "query": "hi", **body})
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_what_asks_for_nothing_of_the_kind_is_taken() -> None:
    check_fields(RESPONSES, {"input": "hi", "store": False, "background": None, "stream": False})
    check_fields(SCORE, {"text_1": "a", "text_2": "b"})
    check_fields(CHAT, {"messages": [], "stream": True, "store": True})


FUNCTION, SEARCH = {"type": "function", "name": "f"}, {"type": "web_search_preview_2025_03_11"}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION, SEARCH]}


@pytest.mark.parametrize(
    ("body", "kept", "names"),
    [
        ({}, {}, []),
        ({"tools": [FUNCTION, SEARCH, SEARCH]}, {"tools": [FUNCTION]}, [f"tools.{SEARCH['type']}"]),
        (
            {"tools": [FUNCTION, {"type": "mcp"}], "tool_choice": "auto"},
            {"tools": [FUNCTION], "tool_choice": "auto"},
            ["tools.mcp"],
        ),
        *(
            ({"tools": tools}, {"tools": tools}, [])
            for tools in ([{"type": "mcp_like_function"}], [{"type": "mcp" + "x" * 200}], [{"type": 7}, "x"], "x")
        ),
        (
            {"tools": [FUNCTION, SEARCH], "tool_choice": ALLOWED},
            {"tools": [FUNCTION], "tool_choice": {**ALLOWED, "tools": [FUNCTION]}},
            [f"tools.{SEARCH['type']}"],
        ),
        (
            {"tools": [FUNCTION, SEARCH], "tool_choice": {**ALLOWED, "tools": [SEARCH]}},
            {"tools": [FUNCTION], "tool_choice": "none"},
            [f"tools.{SEARCH['type']}"],
        ),
        (
            {"include": ["reasoning.encrypted_content", "web_search_call.action.sources", "file_search_call.results"]},
            {"include": ["reasoning.encrypted_content"]},
            ["include.web_search_call.action.sources", "include.file_search_call.results"],
        ),
        ({"include": ["code_interpreter_call.outputs"]}, {"include": []}, ["include.code_interpreter_call.outputs"]),
        *(({"include": given}, {"include": given}, []) for given in ("x", [7, None], ["web_search_caller.x"])),
    ],
    ids=str,
)
def test_what_needs_a_server_of_its_own_is_left_out_and_named(
    body: dict[str, Any], kept: dict[str, Any], names: list[str]
) -> None:
    assert leave_out_tools(body) == (kept, names)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [SEARCH]}, "tools"),
        ({"tools": [SEARCH, FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (
            {"tools": [SEARCH, FUNCTION], "tool_choice": {**ALLOWED, "mode": "required", "tools": [SEARCH]}},
            "tool_choice",
        ),
    ],
    ids=str,
)
def test_what_asks_for_a_server_alone_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        leave_out_tools(body)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


@given(st.text(min_size=1, max_size=300))
def test_any_idempotency_key_makes_an_id_that_the_queue_takes(key: str) -> None:
    key = key.encode(errors="replace").decode()
    made = request_id("0123456789abcdef", key)
    assert check_name(made, "id") == made
    assert made == request_id("0123456789abcdef", key)


def test_ids_belong_to_the_key_that_made_them() -> None:
    """Two tenants who choose the same Idempotency-Key have two requests."""
    mine, other = request_id("a" * 16, "order-42"), request_id("b" * 16, "order-42")
    assert mine != other
    assert belongs_to("a" * 16, mine)
    assert not belongs_to("b" * 16, mine)
    assert not belongs_to("open", mine)
    assert request_id("open", None) != request_id("open", None)
    with pytest.raises(InvalidRequest) as caught:
        request_id("open", "x" * 5_000)
    assert caught.value.param == "Idempotency-Key"
