"""Messages in Anthropic's terms: their events, what workers make of their bodies, and the gateway's tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.message_events import MessageAssembly, events_of, text_of
from streamfleet.common.protocol import COUNT_TOKENS, MESSAGES, Lane
from streamfleet.gateway.call import Call
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import Framing
from streamfleet.gateway.messages.translation import answer_of, speaks_anthropic, to_engine
from streamfleet.producer.events import Chunk, Restarted
from streamfleet.producer.follower import Follower
from streamfleet.worker.cost.amounts import without_budget
from streamfleet.worker.cost.check import check_cost, for_engine
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.cost.prompts import readable_bytes
from streamfleet.worker.credit import estimate
from streamfleet.worker.engine.base import Capacity, EngineReply, EngineRequest, Text
from streamfleet.worker.engine.replies import was_aborted
from streamfleet.worker.engine.sse_parser import HIDDEN, SseParser
from streamfleet.worker.messages import ask, fit
from streamfleet.worker.outcome import Finished, judge

BLOCKS: dict[str, list[dict[str, Any]]] = {
    "a text": [{"type": "text", "text": "Hello"}],
    "thinking": [{"type": "thinking", "thinking": "Hm", "signature": "s"}, {"type": "text", "text": "Hello"}],
    "tools": [{"type": "tool_use", "id": f"t{at}", "name": "f", "input": {"a": at}} for at in range(2)],
}
SAY: list[Any] = [{"role": "user", "content": "Say hi"}]


def message(content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 2}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "x"}
    return {**head, "content": content, "stop_reason": "end_turn", "usage": usage, **more}


@pytest.mark.parametrize("name", BLOCKS)
def test_events_of_a_message_make_it_again(name: str) -> None:
    whole, assembly = message(BLOCKS[name]), MessageAssembly()
    events = events_of(whole)
    for event in events:
        assembly.add(event)
    assert assembly.finished
    assert assembly.answer() == whole
    assert "".join(map(text_of, events)) == "".join(block.get("text", "") for block in BLOCKS[name])


def test_a_message_is_never_without_a_block() -> None:
    assembly = MessageAssembly()
    for event in events_of(message([])):
        assembly.add(event)
    assert assembly.answer()["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("pieces", "made"),
    [(['{"a"', ": 1}"], {"a": 1}), (['{"a"'], {}), (['"a"'], {}), ([""], {})],
)
def test_input_of_a_tool_comes_in_pieces_and_may_be_cut_off(pieces: list[str], made: dict[str, Any]) -> None:
    assembly = MessageAssembly()
    begin, block, _, *end = events_of(message(BLOCKS["tools"][:1]))
    deltas = [{"type": "content_block_delta", "index": 0, "delta": {"partial_json": piece}} for piece in pieces]
    for event in (begin, block, *deltas, *end):
        assembly.add(event)
    assert assembly.answer()["content"] == [{**BLOCKS["tools"][0], "input": made}]


def parsed(*events: dict[str, Any]) -> tuple[list[Any], tuple[int, bytes] | None]:
    chunks: list[Any] = []

    def take(chunk: bytes | Text) -> None:
        chunks.append(json.loads(bytes(chunk)))

    parser = SseParser(EngineRequest("r", MESSAGES, {}, Lane.LOW, on_chunk=take), lambda: 1.0)
    for event in events:
        line = json.dumps(event, separators=(",", ":"))
        parser.feed(f"event: {event['type']}\ndata: {line}\n\n".encode())
    return chunks, parser.outcome()


def test_a_streamed_message_is_handed_on_and_put_together() -> None:
    whole = message(BLOCKS["a text"])
    events = events_of(whole)
    chunks, outcome = parsed(events[0], {"type": "ping"}, *events[1:])
    assert chunks == events
    assert outcome is not None
    assert (outcome[0], json.loads(outcome[1])) == (200, whole)


def test_a_message_without_a_reason_for_its_end_is_broken_off() -> None:
    chunks, outcome = parsed(*events_of(message(BLOCKS["a text"], stop_reason=None)))
    assert "message_stop" not in [chunk["type"] for chunk in chunks]
    assert outcome is not None
    assert was_aborted(outcome[1], MESSAGES)
    assert not was_aborted(json.dumps(message(BLOCKS["a text"]), separators=(",", ":")).encode(), MESSAGES)
    assert parsed(*events_of(message(BLOCKS["a text"]))[:-1])[1] is None


@pytest.mark.parametrize(
    ("kind", "status"), [("invalid_request_error", 400), ("overloaded_error", 503), ("internal_error", 500)]
)
def test_an_error_in_a_stream_is_the_answer(kind: str, status: int) -> None:
    error = {"type": kind, "message": "No"}
    events = events_of(message(BLOCKS["a text"]))
    chunks, outcome = parsed(*events[:2], {"type": "error", "error": error})
    assert chunks == events[:2]
    assert outcome == (status, json.dumps({"error": error}).encode())


HIDES = (
    "2 validation errors for ChatCompletionStreamResponse\nmodel\n input={'error': {'message': 'Fa...': 'code': 400}}"
)


@pytest.mark.parametrize(("before", "status"), [(0, 400), (2, 500)])
def test_an_error_whose_reason_is_hidden_has_its_status(before: int, status: int) -> None:
    """Only where nothing was handed on: the same request is asked again."""
    error = {"type": "internal_error", "message": HIDES}
    _, outcome = parsed(*events_of(message(BLOCKS["a text"]))[:before], {"type": "error", "error": error})
    assert outcome is not None
    assert outcome[0] == status
    assert (HIDDEN.encode() in outcome[1]) == (before == 0)


def groups(*runs: list[dict[str, Any]], directly: bool = False) -> list[Any]:
    """Events of runs of one message, of which each goes on with the one before; or those of the last run, where the
    others are handed on directly.
    """
    follower, events = Follower(), list[Any]()

    def entry(at: int, run: list[dict[str, Any]], seq: int = 0) -> dict[bytes, bytes]:
        fields = {"attempt": "1", "run": str(at), "seq": str(seq), "chunks": "\n".join(map(json.dumps, run))}
        more = {"resumed": "2"} if at > 1 else {}
        return {name.encode(): value.encode() for name, value in {**fields, **more}.items()}

    for at, run in enumerate(runs, 1):
        now = run[:1] if directly and at < len(runs) else run
        events += follower.read(f"{at}-0", entry(at, now))
        if now != run:
            assert follower.goes_on(entry(at, run[1:], seq=1)) is not None
    return events


def test_a_message_goes_on_in_another_run() -> None:
    def run(*texts: str) -> list[dict[str, Any]]:
        begin, block, delta, *end = events_of(message([{"type": "text", "text": ""}]))
        return [begin, block, *({**delta, "delta": {"type": "text_delta", "text": text}} for text in texts), *end]

    first, whole = run("Hel", "lo")[:4], run("Hello", " you")
    events = [event.data for event in groups(first, whole)]
    assert [event["type"] for event in events].count("message_start") == 1
    assert [event["type"] for event in events].count("content_block_start") == 1
    assert "".join(map(text_of, events)) == "Hello you"
    assert events[-2:] == whole[-2:]
    cut = [event.data for event in groups(first, run("Hello you"))]
    assert "".join(map(text_of, cut)) == "Hello you"
    other = groups(first, run("Other text"))
    assert isinstance(other[4], Restarted)
    assert [event.data for event in other[5:] if isinstance(event, Chunk)] == run("Other text")


CUT: dict[str, tuple[list[dict[str, Any]], int]] = {
    "before a tool's input": ([{"type": "text", "text": "Hello"}, BLOCKS["tools"][0]], 5),
    "in a tool's input": ([{"type": "text", "text": "Hello"}, BLOCKS["tools"][0]], 6),
    "in its thinking": (BLOCKS["thinking"], 3),
    "in the text behind its thinking": (BLOCKS["thinking"], 7),
    "behind its only block": (BLOCKS["a text"], 4),
    "behind its usage": (BLOCKS["a text"], 5),
}


@pytest.mark.parametrize("directly", [False, True])
@pytest.mark.parametrize("name", CUT)
def test_a_message_with_more_than_a_text_begins_anew(name: str, directly: bool) -> None:
    """Ids and signatures are others in each run, and no event may come twice."""
    content, had = CUT[name]
    run = events_of(message(content))
    first, *rest = groups(run[:had], run, directly=directly)[1 if directly else had :]
    assert isinstance(first, Restarted)
    assert [event.data for event in rest] == run


def test_a_run_whose_message_is_of_other_blocks_is_none_that_goes_on() -> None:
    run = events_of(message([{"type": "thinking", "thinking": "Hello"}]))
    first, *rest = groups(events_of(message(BLOCKS["a text"]))[:3], run[:3])[3:]
    assert isinstance(first, Restarted)
    assert [event.data for event in rest] == run[:3]


def test_a_messages_tokens_are_counted_as_those_of_a_chat() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1}
    outcome = judge(EngineReply(200, json.dumps(message([], usage=usage)).encode()))
    assert isinstance(outcome, Finished)
    assert outcome.finish_reason == "end_turn"
    assert outcome.usage == {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 5},
    }


class Counting:
    """An engine with a context of 2,000 tokens that counts a prompt."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        self.asked: list[EngineRequest] = []
        self._reply = EngineReply(status, json.dumps(answer, separators=(",", ":")).encode())

    def capacity(self) -> Capacity:
        return Capacity(1, None, 2_000)

    async def run(self, request: EngineRequest) -> EngineReply:
        self.asked.append(request)
        return self._reply


PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo"}}
THINKS = {"type": "enabled", "budget_tokens": 5_000}
FITTED: dict[str, tuple[dict[str, Any], int, dict[str, Any], dict[str, Any]]] = {
    "little is asked": ({"max_tokens": 10}, 200, {}, {"max_tokens": 10}),
    "it fits": ({"max_tokens": 1_900}, 200, {"input_tokens": 100}, {"max_tokens": 1_900}),
    "it is cut": ({"max_tokens": 1_901}, 200, {"input_tokens": 100}, {"max_tokens": 1_900}),
    "with its thinking": (
        {"max_tokens": 9_000, "thinking": THINKS},
        200,
        {"input_tokens": 100},
        {"max_tokens": 1_900, "thinking": {**THINKS, "budget_tokens": 1_899}},
    ),
    "without its thinking": (
        {"max_tokens": 9_000, "thinking": THINKS},
        200,
        {"input_tokens": 1_500},
        {"max_tokens": 500, "thinking": {"type": "adaptive"}},
    ),
    "beside an image": (
        {"max_tokens": 900, "messages": [{"role": "user", "content": [PIXEL]}]},
        200,
        {"input_tokens": 1_500},
        {"max_tokens": 500, "messages": [{"role": "user", "content": [PIXEL]}]},
    ),
    "words of an image": (
        {"max_tokens": 900, "system": json.dumps(PIXEL)},
        500,
        {},
        {"max_tokens": 900, "system": json.dumps(PIXEL)},
    ),
    "nobody counts": ({"max_tokens": 9_000}, 404, {"error": {}}, {"max_tokens": 9_000}),
    "nobody knows": ({"max_tokens": 9_000}, 200, {}, {"max_tokens": 9_000}),
    "no number": ({"max_tokens": "9000"}, 200, {"input_tokens": 100}, {"max_tokens": "9000"}),
}


@pytest.mark.parametrize("name", FITTED)
async def test_a_message_is_fitted(name: str) -> None:
    body, status, answer, fitted = FITTED[name]
    engine, request = Counting(status, answer), EngineRequest("r", MESSAGES, {"messages": SAY, **body}, Lane.LOW)
    assert await fit(engine, request) is None  # type: ignore[arg-type]
    assert request.body == {"messages": SAY, **fitted}
    assert [(each.endpoint, "max_tokens" in each.body) for each in engine.asked] in ([], [(COUNT_TOKENS, False)])


@pytest.mark.parametrize(
    ("status", "answer", "tokens"),
    [
        (200, {"input_tokens": 2_000}, 2_000),
        (400, {"error": {"message": "maximum context length: contains at least 2500 input tokens"}}, 2_500),
        (400, {"error": {"message": "maximum context length: contains 9000 characters"}}, 2_270),
    ],
)
async def test_a_prompt_that_is_too_long_is_refused(status: int, answer: dict[str, Any], tokens: int) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 9_000}], "max_tokens": 9}
    reply = await fit(Counting(status, answer), EngineRequest("r", MESSAGES, body, Lane.LOW))  # type: ignore[arg-type]
    assert reply is not None
    error = json.loads(reply.body)["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("prompt is too long: ")
    told, most = (int(word) for word in error["message"].split() if word.isdigit())
    assert (abs(told - tokens) < 50, most) == (True, 2_000)


async def test_a_hidden_reason_is_asked_for() -> None:
    engine, request = Counting(400, {"error": {"message": HIDES}}), EngineRequest("r", MESSAGES, {}, Lane.LOW)
    request.on_chunk = lambda _: None
    assert (await ask(engine, request)).status == 400  # type: ignore[arg-type]
    assert [each.on_chunk for each in engine.asked] == [None, None], "the second time unstreamed"
    assert engine.asked[0] is engine.asked[1]
    await ask(engine, EngineRequest("r", MESSAGES, {}, Lane.LOW))  # type: ignore[arg-type]
    assert len(engine.asked) == 3


async def test_a_message_of_vllm_is_named_as_anthropics() -> None:
    """Whole and streamed; the ids of its calls stay as they are, whatever the message's is."""
    call = {"type": "tool_use", "id": "chatcmpl-tool-1", "name": "f", "input": {}}
    for given, name in (("chatcmpl-r", "msg_r"), ("other", "other")):
        whole = {**message([call]), "id": given}
        request = EngineRequest("r", MESSAGES, {}, Lane.LOW)
        reply = await ask(Counting(200, whole), request)  # type: ignore[arg-type]
        assert json.loads(reply.body) == {**whole, "id": name}
        chunks, outcome = parsed(*events_of(whole))
        assert chunks[0]["message"]["id"] == name
        assert outcome is not None
        assert json.loads(outcome[1]) == {**whole, "id": name}


class WithoutBudget:
    """A server without a reasoning parser: it refuses a budget, and hides the reason in a stream."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, str]] = []

    def capacity(self) -> Capacity:
        return Capacity(1, None, None)

    async def run(self, request: EngineRequest) -> EngineReply:
        kind = request.body["thinking"]["type"]
        self.asked.append((request.streams, kind))
        if kind == "adaptive":
            return EngineReply(200, b"{}")
        said = HIDES if request.streams else "thinking_token_budget is set but reasoning_config is not configured."
        return EngineReply(400, json.dumps({"error": {"message": said}}).encode())


@pytest.mark.parametrize(
    ("streams", "asked"),
    [
        (False, [(False, "enabled"), (False, "adaptive")]),
        (True, [(True, "enabled"), (False, "enabled"), (True, "adaptive")]),
    ],
)
async def test_a_server_that_cannot_keep_a_budget_is_asked_without(
    streams: bool, asked: list[tuple[bool, str]]
) -> None:
    engine, request = WithoutBudget(), EngineRequest("r", MESSAGES, {"thinking": THINKS}, Lane.LOW)
    request.on_chunk = (lambda _: None) if streams else None
    assert (await ask(engine, request)).status == 200  # type: ignore[arg-type]
    assert engine.asked == asked


async def test_a_refusal_of_a_budget_that_nobody_sent_is_the_answer() -> None:
    engine = Counting(400, {"error": {"message": "thinking_token_budget"}})
    assert (await ask(engine, EngineRequest("r", MESSAGES, {}, Lane.LOW))).status == 400  # type: ignore[arg-type]
    assert len(engine.asked) == 1


async def test_another_refusal_of_the_count_is_that_of_the_message() -> None:
    engine = Counting(400, {"error": {"message": "a block that is none"}})
    request = EngineRequest("r", MESSAGES, {"messages": SAY, "max_tokens": 9_000}, Lane.LOW)
    assert await fit(engine, request) is engine._reply  # type: ignore[arg-type]


def test_an_engine_that_cannot_keep_a_budget_gets_none() -> None:
    assert without_budget({"thinking": THINKS}) == {"thinking": {"type": "adaptive"}}
    assert without_budget({"thinking": {"type": "disabled"}}) == {"thinking": {"type": "disabled"}}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://inside/"}}
SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
COSTS: dict[str, tuple[dict[str, Any], str]] = {
    "a large limit": ({"max_tokens": 10**6}, ""),
    "a choice": ({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "auto"}}, ""),
    "a tool that is only shown": (
        {"tools": [{"name": "f", "input_schema": {"$ref": "http://a/b"}}], "tool_choice": {"type": "auto"}},
        "",
    ),
    "an address in a tool's input": (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"image_url": "http://a/b"}}]}]},
        "",
    ),
    "a source in a tool's input": (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"source": IMAGE["source"]}}]}]},
        "",
    ),
    "an image to fetch": ({"messages": [{"role": "user", "content": [IMAGE]}]}, "not_allowed"),
    "an image of a tool": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
        "not_allowed",
    ),
    "an image without a source": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
        "invalid_type",
    ),
    "a tool that is named again": (
        {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"name": "f"}}]}]},
        "",
    ),
    "a tool outside of tools": (
        {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"definition": {}}}]}]},
        "not_allowed",
    ),
    "a forced tool that can never be called": (
        {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        "invalid_value",
    ),
    "a shape that costs too much": (
        {"output_config": {"format": {"type": "json_schema", "schema": {"enum": ["x" * 20_000]}}}},
        "too_expensive",
    ),
    "a system text that is too long": ({"system": "word " * 20_000}, "context_length_exceeded"),
}


@pytest.mark.parametrize("endpoint", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize("name", COSTS)
def test_messages_have_the_bounds_of_chats(name: str, endpoint: str) -> None:
    changes, code = COSTS[name]
    body = {"messages": SAY, **changes}
    if endpoint == COUNT_TOKENS:
        body.pop("max_tokens", None)
    if not code:
        check_cost(body, CostLimits(), 2_000, endpoint)
        return
    with pytest.raises(InvalidRequest) as caught:
        check_cost(body, CostLimits(), 2_000, endpoint)
    assert caught.value.code == code


def test_a_limit_that_limits_nothing_reserves_nothing() -> None:
    body = {"messages": SAY, "max_tokens": 32_000}
    assert for_engine(body, MESSAGES, CostLimits(), 2_000)["max_tokens"] == 2_000
    assert for_engine(body, MESSAGES, CostLimits(max_output_tokens=100), 2_000)["max_tokens"] == 100
    thinks = for_engine({**body, "thinking": THINKS}, MESSAGES, CostLimits(max_output_tokens=1_500), 20_000)
    assert (thinks["max_tokens"], thinks["thinking"]["budget_tokens"]) == (1_500, 1_499)
    assert estimate(body, 40, 2_000, MESSAGES, usual_output=256).tokens == 266
    assert estimate({**body, "max_tokens": 1_000}, 40, 2_000, MESSAGES, usual_output=256).tokens == 1_010


@pytest.mark.parametrize("name", ["data", "url", "source", "image"])
def test_a_tools_input_counts_whatever_its_fields_are_called(name: str) -> None:
    given: Any = "data:" + "x" * 400_000
    given = {"type": "base64", "data": given} if name == "source" else given
    body = {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {name: given}}]}]}
    with pytest.raises(InvalidRequest, match="too long"):
        check_cost(body, CostLimits(), 2_000, MESSAGES)
    assert readable_bytes(body, size := len(json.dumps(body))) == size


def test_an_image_counts_as_one_and_not_as_its_bytes() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "x" * 400_000}
    body = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    check_cost(body, CostLimits(), 2_000, MESSAGES)
    assert 5_000 < readable_bytes(body, len(json.dumps(body))) < 6_000


OWN, SEARCH = {"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "search"}
CUSTOM = {"type": "custom", "name": "g", "input_schema": {}}
BODIES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a user": (
        {"metadata": {"user_id": "u"}},
        {"metadata": {"user_id": "u"}, "user": "u"},
        [],
    ),
    "a session beside it": (
        {"metadata": {"user_id": "u"}, "user": "s"},
        {"metadata": {"user_id": "u"}, "user": "s"},
        [],
    ),
    "no user": ({"metadata": {"user_id": None}}, {"metadata": {"user_id": None}}, []),
    "a tier of Anthropic": ({"service_tier": "standard_only"}, {}, []),
    "a tier of the gateway": ({"service_tier": "flex"}, {"service_tier": "flex"}, []),
    "tools": ({"tools": [OWN, SEARCH, CUSTOM]}, {"tools": [OWN, CUSTOM]}, ["tools.search"]),
    "all else": ({"nonsense": 1, "max_tokens": 9}, {"nonsense": 1, "max_tokens": 9}, []),
}


def test_a_choice_of_an_odd_form_is_the_engines_to_refuse() -> None:
    assert to_engine({"tools": [OWN, SEARCH], "tool_choice": {"name": {}}})[0]["tools"] == [OWN]


@pytest.mark.parametrize("name", BODIES)
def test_fields_of_anthropic_become_the_engines(name: str) -> None:
    given, passed, left_out = BODIES[name]
    assert to_engine(given) == (passed, left_out)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"tools": [SEARCH]}, "tools"), ({"tools": [OWN, SEARCH], "tool_choice": {"name": "search"}}, "tool_choice")],
)
def test_tools_that_are_needed_are_not_left_out(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match="search") as caught:
        to_engine(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("status", "code", "told", "kind"),
    [
        (400, None, 400, "invalid_request_error"),
        (401, None, 401, "authentication_error"),
        (403, None, 403, "permission_error"),
        (404, None, 404, "not_found_error"),
        (409, None, 409, "invalid_request_error"),
        (413, None, 413, "request_too_large"),
        (429, None, 429, "rate_limit_error"),
        (429, "queue_full", 529, "overloaded_error"),
        (500, None, 500, "api_error"),
        (503, None, 503, "overloaded_error"),
        (504, None, 504, "timeout_error"),
    ],
)
def test_errors_have_anthropics_types(status: int, code: str | None, told: int, kind: str) -> None:
    call = Call(0.0, anthropic=True)
    assert answer_of(ApiError(status, "No", code), Call(0.0))[0] == status
    found, body = answer_of(ApiError(status, "No", code), call)
    answer = {"type": "error", "error": {"type": kind, "message": "No"}, "request_id": call.id}
    assert (found, json.loads(body)) == (told, answer)


@pytest.mark.parametrize(
    ("path", "header", "told"),
    [
        ("/v1/messages", "", True),
        ("/v1/messages/count_tokens", "", True),
        ("/v1/models", "anthropic-version", True),
        ("/v1/models/x", "", False),
        ("/v1/chat/completions", "anthropic-version", False),
    ],
)
def test_who_reads_anthropics_form(path: str, header: str, told: bool) -> None:
    assert speaks_anthropic(path, [(header.encode(), b"2023-06-01")]) is told


def test_a_stream_of_a_message_has_pings_and_errors_of_its_own() -> None:
    framing = Framing(event_ids=False, endpoint=MESSAGES)
    assert framing.keep_alive(0, "m") == b'event: ping\ndata: {"type":"ping"}\n\n'
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"No"}}'
    assert framing.error(ApiError(503, "No")) == b"event: error\ndata: " + error + b"\n\n"
    raw = '{"type":"message_stop"}'
    for each in (framing, unknown := Framing(event_ids=False, endpoint="")):
        assert each.chunk("1-0/0", raw) == b"event: message_stop\ndata: " + raw.encode() + b"\n\n"
    assert unknown.endpoint == MESSAGES
    assert unknown.error(ApiError(503, "No")) == framing.error(ApiError(503, "No"))
    named = Framing(event_ids=True, endpoint=MESSAGES).whole(message(BLOCKS["a text"])).decode()
    assert named.count("id: ") == 1
    assert named.split("\n\n")[-2].startswith("event: message_stop\nid: 0-0/0\n")
