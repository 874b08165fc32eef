"""Batches of the gateway, as far as they need no Redis: lines, checks, what is asked for and what is shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfleet.common.broker.types import Submission
from streamfleet.common.errors import BrokerUnavailable, InvalidRequest
from streamfleet.common.protocol import CHAT, RERANK, RESPONSES, SCORE, Lane, Status, parse_body
from streamfleet.common.results import Result, Timings
from streamfleet.gateway.authentication import Caller, over_token_limit
from streamfleet.gateway.batch_records import (
    BATCH,
    FILE,
    BatchRecord,
    BatchStatus,
    new_id,
    read_batch,
)
from streamfleet.gateway.batches.batch_parameters import choose_lane, read_batch_parameters
from streamfleet.gateway.batches.ledger import LATEST_S, SOONEST_S, pause_s
from streamfleet.gateway.batches.lines import LineChecker, LineSet, error_object, most_line_bytes, number_lines
from streamfleet.gateway.batches.routes import batch_object
from streamfleet.gateway.batches.submitter import Answer, PreparedLine, Refused, Submitter, line_request_id
from streamfleet.gateway.broker.api_keys import Held, Left
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.offload import encode
from streamfleet.gateway.simple import prompts, reading
from streamfleet.gateway.simple.reading import read_call
from streamfleet.gateway.simple.routes import job_object, status_of
from streamfleet.gateway.token_budget import Reservation, TokenBudget
from streamfleet.producer.batch_lines import BadLine, BatchLine, answer_line, refusal_line

DAY_MS = 86_400_000


def line(custom_id: Any = "a", **changes: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes).encode()


def record(**changes: Any) -> BatchRecord:
    made = BatchRecord(
        new_id(BATCH, 5), "t", "file-in", "file-out", "file-err", CHAT, "24h", Lane.LOW, 1_000, 1_000 + DAY_MS
    )
    return replace(made, **changes)


async def blocks_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for first in range(0, len(data), size):
        yield data[first : first + size]


async def lines_of(data: bytes, size: int, most: int = 1_000) -> list[tuple[int, bytes]]:
    return [each async for group in number_lines(blocks_of(data, size), most) for each in group]


@given(st.lists(st.binary(max_size=20).filter(lambda text: b"\n" not in text)), st.integers(1, 30), st.booleans())
@settings(max_examples=100, deadline=None)
async def test_lines_are_the_same_in_whatever_blocks_they_come(texts: list[bytes], size: int, ended: bool) -> None:
    data = b"\n".join(texts) + (b"\n" if ended and texts else b"")
    found = dict(await lines_of(data, size))
    wanted = dict(enumerate(data.split(b"\n"), 1))
    assert found == {number: text for number, text in wanted.items() if text.strip()}


async def test_lines_come_some_at_a_time() -> None:
    groups = [group async for group in number_lines(blocks_of(b"{}\n" * 2_000, 6_000), 10)]
    assert max(map(len, groups)) < 1_000
    assert [number for group in groups for number, _ in group] == list(range(1, 2_001))


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_of_a_long_line_only_the_beginning_is_kept(size: int) -> None:
    found = await lines_of(b"short\n" + b"x" * 100 + b"\nafter", size, most=10)
    assert found == [(1, b"short"), (2, b"x" * 11), (3, b"after")]


def test_bits_are_as_redis_counts_them() -> None:
    bits = LineSet(bytes([0b1000_0001, 0b0100_0000]))
    assert [number for number in range(1, 40) if number in bits] == [1, 8, 10]
    bits.add(2)
    bits.add(33)
    assert [number for number in range(1, 40) if number in bits] == [1, 2, 8, 10, 33]


def refused(text: bytes, checker: LineChecker | None = None, number: int = 7) -> BadLine:
    with pytest.raises(BadLine) as error:
        (checker or LineChecker(CHAT, 10_000)).check(number, text)
    assert error.value.number == number
    return error.value


@pytest.mark.parametrize(
    ("text", "param", "custom_id"),
    [
        (b"{", None, None),
        (b"[]", None, None),
        (b'{"custom_id": "a"}', "method", "a"),
        (line(custom_id=None), "custom_id", None),
        (line(custom_id=""), "custom_id", None),
        (line(url="/v1/embeddings"), "url", "a"),
        (line(url="/admin"), "url", "a"),
        (line(body="hi"), "body", "a"),
        (line(body={"model": "m"}), "body.messages", "a"),
        (line(x="x" * 80_000), None, None),
    ],
    ids=["broken", "list", "method", "no id", "empty id", "other url", "no url", "body", "no messages", "too long"],
)
def test_a_line_that_is_no_request_is_refused_with_its_number(
    text: bytes, param: str | None, custom_id: str | None
) -> None:
    error = refused(text)
    assert (error.param, error.custom_id) == (param, custom_id)
    assert error_object(error)["line"] == 7


RESPONSE = {"model": "m", "input": "hi"}
SEARCH, FUNCTION = {"type": "web_search_preview"}, {"type": "function", "name": "f"}


def response_line(**changes: Any) -> bytes:
    return line(url=RESPONSES, body=RESPONSE | changes)


@pytest.mark.parametrize("name", ["stream", "background", "store", "previous_response_id", "conversation"])
def test_a_response_of_a_batch_is_stored_in_its_file_alone(name: str) -> None:
    error = refused(response_line(**{name: True}), LineChecker(RESPONSES, 10_000))
    assert (error.param, error.code) == (f"body.{name}", "unsupported_parameter")
    assert "not supported in a batch" in error.message
    assert LineChecker(RESPONSES, 10_000).check(7, response_line(**{name: False})).ignored == ""


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "body.input.0"),
        ({"tools": [SEARCH]}, "body.tools"),
        ({"tools": [SEARCH, FUNCTION], "tool_choice": SEARCH}, "body.tool_choice"),
    ],
    ids=["reference", "tools", "tool_choice"],
)
def test_a_response_that_cannot_be_had_is_refused_by_its_field(changes: dict[str, Any], param: str) -> None:
    assert refused(response_line(**changes), LineChecker(RESPONSES, 10_000)).param == param


def test_a_response_is_asked_without_tools_that_need_a_server() -> None:
    asked = response_line(tools=[SEARCH, FUNCTION, {"type": "mcp"}, SEARCH])
    read = LineChecker(RESPONSES, 10_000).check(1, asked)
    assert (read.body["tools"], read.ignored) == ([FUNCTION], "tools.web_search_preview, tools.mcp")
    told = json.loads(answer_line("a", answered("hello"), read.ignored))["response"]
    assert (told["status_code"], told["x-streamfleet-ignored"]) == (200, read.ignored)


def test_a_line_that_is_too_long_whatever_it_says_is_not_read() -> None:
    escaped = line(body={"messages": [{"role": "user", "content": "é" * 15_000}]})
    assert len(escaped) > 80_000
    assert LineChecker(CHAT, 10_000).read(1, escaped).custom_id == "a"
    broken = escaped.replace(b"\\u00e9", b"[],[],")
    assert refused(broken).code == "request_too_large"


def test_a_custom_id_is_used_once() -> None:
    checker = LineChecker(CHAT, 10_000)
    assert checker.check(1, line("a")).custom_id == "a"
    assert checker.check(2, line("b")).custom_id == "b"
    second = refused(line("a"), checker)
    assert (second.code, second.custom_id) == ("duplicate_custom_id", None)
    # A line refused for another reason has its custom_id in the error file: no other line may have that id.
    assert refused(line("c", method="GET"), checker).custom_id == "c"
    assert refused(line("c"), checker).code == "duplicate_custom_id"
    assert refused(line("c", method="GET"), checker).custom_id is None


def test_a_body_at_its_limit_fits_into_a_line() -> None:
    most = most_line_bytes(1_000)
    body = {"messages": [{"role": "user", "content": "\x01" * 990}]}
    assert len(line(body=body)) < most


def test_the_request_of_a_line_is_the_same_whoever_enqueues_it() -> None:
    assert line_request_id("batch_x", 17) == "batch_x-17"


def test_what_runs_for_long_is_written_down_less_often() -> None:
    assert [pause_s(age) for age in (0, 10, 100, 1_000, 10**6)] == [SOONEST_S, SOONEST_S, 2.0, 20.0, LATEST_S]


ASKED = {"input_file_id": new_id(FILE, 1), "endpoint": CHAT, "completion_window": "24h"}


def test_a_batch_as_openai_asks_for_it() -> None:
    read = read_batch_parameters({**ASKED, "metadata": {"for": "me"}})
    assert (read.window_ms, read.metadata, read.callback_url) == (DAY_MS, {"for": "me"}, None)
    assert read.output_kept_ms == 0
    expiry = {"anchor": "created_at", "seconds": 3_600}
    assert read_batch_parameters({**ASKED, "output_expires_after": expiry}).output_kept_ms == 3_600_000
    for endpoint in (RESPONSES, SCORE, RERANK):
        assert read_batch_parameters({**ASKED, "endpoint": endpoint}).endpoint == endpoint


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"endpoint": "/v1/responses/x"}, "endpoint"),
        ({"endpoint": "/pooling"}, "endpoint"),
        ({"output_expires_after": 3600}, "output_expires_after"),
        ({"output_expires_after": {"seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "last_active_at", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": "3600"}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": True}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3_599}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}}, "output_expires_after.seconds"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"completion_window": "0s"}, "completion_window"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"callback_url": 5}, "callback_url"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_batch_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_batch_parameters({**ASKED, **changes})
    assert error.value.param == param


def test_the_lane_is_the_least_urgent_unless_one_is_named() -> None:
    lanes = (Lane.HIGH, Lane.NORMAL, Lane.LOW)
    assert choose_lane({}, {}, lanes) is Lane.LOW
    assert choose_lane({}, {}, (Lane.HIGH, Lane.NORMAL)) is Lane.NORMAL
    assert choose_lane({}, {"service_tier": "priority"}, lanes) is Lane.HIGH
    assert choose_lane({"x-streamfleet-lane": "normal"}, {}, lanes) is Lane.NORMAL
    with pytest.raises(ApiError, match="critical"):
        choose_lane({"x-streamfleet-lane": "critical"}, {}, lanes)


def test_a_batch_is_what_its_hash_says() -> None:
    made = record(metadata={"a": "b"}, callback_url="https://x.example", total=3, output_kept_ms=7_200_000)
    fields = {name.encode(): value.encode() for name, value in made.fields().items()}
    assert read_batch(made.id, fields) == made
    assert batch_object(made)["output_expires_after"] == {"anchor": "created_at", "seconds": 7_200}
    assert batch_object(record())["output_expires_after"] is None
    more = {b"completed": b"2", b"models": b'{"m": ["q", "s"]}', b"in_progress_ms": b"9000", b"mark": b"7"}
    found = read_batch(made.id, fields | more)
    assert found is not None
    assert (found.completed, found.models, found.times, found.mark) == (2, {"m": ("q", "s")}, {"in_progress": 9000}, 7)
    for broken in (
        {b"status": b"lost"},
        {b"lane": b"slow"},
        {b"total": b"many"},
        {b"metadata": b"{"},
        {b"models": b"[]"},
    ):
        assert read_batch(made.id, fields | broken) is None


async def test_every_line_is_reserved_before_it_is_enqueued() -> None:
    """Its gateway may be killed right after; another one then has to know which lines may be in the queue."""
    enqueued: list[int] = []

    async def reserve(mark: int) -> None:
        claimed.mark = mark

    async def submit(chunk: Sequence[PreparedLine]) -> Refused:
        numbers = [ready.line.number for ready in chunk]
        assert max(numbers) <= claimed.mark
        enqueued.extend(numbers)
        return Refused([], [])

    claimed = claimed_batch(reserve=reserve)
    submitter = Submitter(cast("Any", claimed))
    submitter._prepared_lines = cast("Any", prepared(7, 90, 3, 50))
    submitter._collector.submit = submit  # type: ignore[method-assign]
    await submitter._submit_window()
    assert enqueued == [7, 90, 3, 50]


def claimed_batch(**more: Any) -> Any:
    """A batch of a key with a limit, in progress, whose mark goes up as `reserve` says."""

    async def reserve(mark: int) -> None:
        claimed.mark = mark

    async def save() -> None:
        pass

    claimed = SimpleNamespace(
        dependencies=SimpleNamespace(
            queues=None,
            budget=TokenBudget(None, cast("Any", None), 1, cast("Any", None)),
        ),
        batch=record(deadline_ms=10**15, payer="key", tokens_per_minute=1_000),
        cancelling=False,
        mark=0,
        now_ms=lambda _: 0,
        **{"reserve": reserve, "save": save, **more},
    )
    return claimed


async def prepared(*numbers: int) -> AsyncIterator[PreparedLine]:
    for number in numbers:
        submission = Submission(f"r-{number}", Lane.LOW, {"body": b"{}"}, "")
        yield PreparedLine(BatchLine(number, f"c-{number}", "/v1/chat/completions", {}), "default", submission)


class CountedBudget:
    """A budget that has enough, and counts what it is asked."""

    def __init__(self) -> None:
        self.reserved = self.released = self.settled = 0
        self.too_large: set[str] = set()
        self.fails = False

    async def reserve(self, _caller: object, held: Held, *_: object) -> Reservation:
        self.reserved += 1
        if held.id in self.too_large:
            raise over_token_limit(Caller("key", tokens=Left(10, 10, 0)), 20)
        return Reservation(held, "key", "1", 5)

    async def release(self, _: Reservation) -> None:
        self.released += 1

    async def settle(self, *_: object) -> None:
        if self.fails:
            raise BrokerUnavailable("Redis is away")
        self.settled += 1


async def test_a_full_lane_is_tried_with_one_line_at_a_time() -> None:
    """Each try reserves tokens, which the other requests of the key lack until they are given back."""
    budget, room, enqueued, calls = CountedBudget(), 0, 0, 0

    async def submit(chunk: Sequence[PreparedLine]) -> Refused:
        nonlocal room, enqueued, calls
        calls += 1
        taken = min(room, len(chunk))
        room, enqueued = room - taken, enqueued + taken
        return Refused(list(chunk[taken:]), [])

    refused: list[int] = []
    ledger = SimpleNamespace(full=False, add_refusal=lambda error: refused.append(error.number))
    claimed = claimed_batch(ledger=ledger)
    claimed.dependencies.budget = budget
    submitter = Submitter(claimed)
    submitter._prepared_lines = cast("Any", prepared(*range(1_000)))
    submitter._collector.submit = submit  # type: ignore[method-assign]
    await submitter._submit_window()
    before = budget.reserved
    for _ in range(10):
        await submitter._submit_window()
    assert budget.reserved - before <= 10, "one line each time"
    before, room = budget.reserved, 5
    await submitter._submit_window()
    assert enqueued == 5
    assert budget.reserved - before <= 3 * 5, "few more than there was room for"
    budget.too_large, room = {f"r-{number}" for number in range(300, 900)}, 10_000
    calls = 0
    await submitter._submit_window()
    assert enqueued == 400, "all others at once, as soon as there is room"
    assert calls < 20, "more each time"
    assert refused == list(range(300, 900))
    assert budget.reserved - budget.released == enqueued + len(refused)


async def test_answers_are_recorded_where_their_tokens_cannot_be_settled_now() -> None:
    """Any gateway settles them later; a batch that starts anew would have to read all of its input."""
    budget, answers = CountedBudget(), [Answer(number, "c", answered("hi")) for number in range(5)]
    recorded: list[int] = []
    ledger = SimpleNamespace(full=False, numbers=recorded, add_answer=lambda number, *_, **__: recorded.append(number))
    claimed = claimed_batch(ledger=ledger)
    claimed.dependencies.budget = budget
    submitter = Submitter(claimed)
    submitter._prepared_lines = cast("Any", prepared(*range(5)))
    collector: Any = submitter._collector

    async def submit(chunk: Sequence[PreparedLine]) -> Refused:
        collector._lines.update({f"r-{ready.line.number}": (0, "") for ready in chunk})
        return Refused([], [])

    async def take(_: float) -> list[Answer]:
        collector._lines.clear()
        return answers

    collector.submit, collector.take = submit, take
    budget.fails = True
    await submitter.run()
    assert recorded == [0, 1, 2, 3, 4]


def test_files_are_shown_once_they_are_there() -> None:
    running = record(status=BatchStatus.IN_PROGRESS, output_bytes=5, error_bytes=5)
    assert (batch_object(running)["output_file_id"], batch_object(running)["error_file_id"]) == (None, None)
    ended = record(status=BatchStatus.COMPLETED, output_bytes=5, times={"completed": 5_000}, total=2, completed=2)
    assert (batch_object(ended)["output_file_id"], batch_object(ended)["error_file_id"]) == ("file-out", None)
    assert batch_object(ended)["completed_at"] == 5
    assert batch_object(ended)["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


def test_a_batch_tells_its_tokens_and_which_were_cached() -> None:
    usage = batch_object(record(prompt_tokens=90, completion_tokens=10, cached_tokens=64))["usage"]
    assert (usage["input_tokens"], usage["total_tokens"]) == (90, 100)
    assert usage["input_tokens_details"] == {"cached_tokens": 64}


def test_prompts_become_requests() -> None:
    wish = prompts.read_prompts({"prompts": ["a", "b"], "system": "Be brief.", "max_tokens": 5, "model": "m"}, 1_000)
    assert wish.bodies[1] == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.7,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "b"}],
    }
    plain = prompts.read_prompts({"prompts": ["a"], "endpoint": "/v1/completions"}, 1_000)
    assert plain.bodies == [{"prompt": "a", "max_tokens": 256, "temperature": 0.7}]


def test_the_newer_name_of_max_tokens_counts_too() -> None:
    (body,) = prompts.read_prompts({"prompts": ["a"], "max_completion_tokens": 9, "temperature": 0}, 1_000).bodies
    assert (body["max_completion_tokens"], body["temperature"], body.get("max_tokens")) == (9, 0, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompts"),
        ({"prompts": []}, "prompts"),
        ({"prompts": "hi"}, "prompts"),
        ({"prompts": {"a": "b"}}, "prompts"),
        ({"prompts": ["a", 5]}, "prompts[1]"),
        ({"prompts": ["a", ["b"]]}, "prompts[1]"),
        ({"prompts": ["a"] * 11}, "prompts"),
        ({"prompts": ["a"], "endpoint": "/v1/embeddings"}, "endpoint"),
        ({"prompts": ["a"], "system": 5}, "system"),
        ({"prompts": ["a"], "system": "x", "endpoint": "/v1/completions"}, "system"),
        ({"prompts": ["a"], "completion_window": 5}, "completion_window"),
        ({"prompts": ["a"], "x": "y" * 600, "prompt": 5}, "x"),
        ({"prompts": ["a"] * 5, "system": "y" * 400, "b": 5}, "system"),
        ({"prompts": ["a" * 995, "b" * 995]}, "prompts"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_field_of_a_call_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        prompts.read_prompts(read_call(json.dumps(body).encode(), 10, 500), 2_000)
    assert error.value.param == param


def test_what_all_prompts_share_counts_once_for_each() -> None:
    body = {"prompts": ["a" * 10] * 4, "system": "y" * 100, "max_tokens": 5}
    with pytest.raises(
        InvalidRequest, match=r"4 prompts with 106 bytes .* 40 bytes of their own, .* 464 bytes; at most 463"
    ):
        prompts.read_prompts(body, 463)
    wish = prompts.read_prompts(body, 464)
    assert (wish.size_bytes, len(wish.bodies)) == (464, 4)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(), JSON_VALUES, max_size=5), st.lists(st.text(), max_size=5), st.booleans(), st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_a_call_is_read_as_any_json(fields: dict[str, Any], texts: list[str], pretty: bool, ascii_only: bool) -> None:
    body = {**fields, "prompts": texts}
    raw = json.dumps(body, indent=2 if pretty else None, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert found_by(lambda: read_call(raw, 10, 100_000)) == found_by(lambda: parse_body(raw, 10**6))


def found_by(read: Callable[[], dict[str, Any]]) -> object:
    """Returns the value, or the code of its refusal; None for a prompt that is no text, which only one refuses."""
    try:
        found = read()
    except InvalidRequest as error:
        return None if str(error.param).startswith("prompts[") else error.code
    texts = found.get("prompts")
    return None if isinstance(texts, list) and not all(isinstance(each, str) for each in texts) else found


@given(
    st.dictionaries(st.text('ab\\"é', max_size=3), JSON_VALUES, max_size=3),
    st.integers(0, 200),
    st.sampled_from('{}[]",:x1 \\'),
)
@settings(max_examples=300, deadline=None)
def test_a_broken_call_is_refused_as_any_json(fields: dict[str, Any], at: int, char: str) -> None:
    raw = json.dumps({"prompts": ["a", "b"], **fields}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    broken = raw[: at % len(raw)] + char.encode() + raw[at % len(raw) + 1 :]
    wanted = found_by(lambda: parse_body(broken, 10**6))
    if "inf" in repr(wanted):  # an exponent grew: such a number of one request is refused only when it is encoded
        wanted = "invalid_json"
    found = found_by(lambda: read_call(broken, 10, 100_000))
    assert found in (wanted, None) or (found, wanted) == ("invalid_type", "invalid_json")


@pytest.mark.parametrize("number", ["1" * 300, "0." + "5" * 300, '"' + "x" * 300 + '"', "[" + "1," * 200 + "2]"])
def test_a_value_that_does_not_end_soon_is_read_whole(number: str) -> None:
    body = f'{{"x": {number}, "prompts": ["a"]}}'
    assert read_call(body.encode(), 10, 1_000) == json.loads(body)
    with pytest.raises(InvalidRequest) as error:
        read_call(body.encode(), 10, 290)
    assert (error.value.param, error.value.code) == ("x", "request_too_large")


def answered(text: str) -> Result:
    message = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 2}}
    return Result("r", Status.SUCCEEDED, message, None, 200, "stop", message["usage"], "w", 1, Timings(), {})  # type: ignore[arg-type]


def test_lines_of_a_job_are_read_as_its_results() -> None:
    good = prompts.of_line(answer_line("3", answered("hello")))
    assert (good["index"], good["status"], good["output"], good["finish_reason"]) == (3, "succeeded", "hello", "stop")
    failed = replace(
        answered(""), status=Status.FAILED, error={"message": "too long", "code": "too_long"}, http_status=400
    )
    bad = prompts.of_line(answer_line("4", failed))
    assert (bad["index"], bad["status"], bad["output"]) == (4, "failed", None)
    assert bad["error"]["message"] == "too long"
    refusal = prompts.of_line(refusal_line(BadLine(6, "5", "no such model", "body.model", "model_not_found")))
    assert (refusal["index"], refusal["error"]["code"]) == (5, "model_not_found")
    assert prompts.tokens_of([good, bad]) == (2, 0)
    assert list(prompts.outputs_of(map(encode, [good, bad]))) == ["hello", None]


def test_totals_say_how_fast_it_was() -> None:
    found = prompts.totals(10, 40, 4, 2_000.0)
    assert found["usage"]["total_tokens"] == found["total_tokens"] == 50
    assert found["throughput_tokens_per_sec"] == 25.0
    assert found["throughput"] == {"prompts_per_second": 2.0, "output_tokens_per_second": 20.0}


@pytest.mark.parametrize(
    ("status", "completed", "failed", "wanted"),
    [
        (BatchStatus.VALIDATING, 0, 0, "pending"),
        (BatchStatus.IN_PROGRESS, 1, 0, "processing"),
        (BatchStatus.COMPLETED, 1, 1, "completed"),
        (BatchStatus.COMPLETED, 0, 2, "failed"),
        (BatchStatus.EXPIRED, 1, 1, "failed"),
        (BatchStatus.CANCELLED, 1, 1, "failed"),
    ],
)
def test_four_words_for_a_job(status: BatchStatus, completed: int, failed: int, wanted: str) -> None:
    job = record(status=status, completed=completed, failed=failed, total=2)
    assert status_of(job) == wanted
    assert job_object(job, 2_000)["progress"] == 0.5 * (completed + failed)


ESCAPED = ["中文", "\U0001f600" * 3, '"\\/\b\f\n\r\t', "plain", "", "\x7f\u2028", "a\U0001f600b" * 40_000]
BROKEN = [b'"a\\u12"', b'"\\x"', b'"tab\tinside"', b'"no end', b'"\\ud83d"', b'"\\ude00x"', b'"\\"']


def test_strings_read_in_pieces_are_those_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = json.dumps({"prompts": ESCAPED}).encode()
    monkeypatch.setattr(reading, "MANY_ESCAPES", -1)
    assert reading.read_call(raw, 100, 100) == {"prompts": ESCAPED}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_string_read_in_pieces_is_refused_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch, broken: bytes
) -> None:
    said = []
    for many in (10**9, -1):
        monkeypatch.setattr(reading, "MANY_ESCAPES", many)
        with pytest.raises(InvalidRequest) as refused:
            reading.read_call(b'{"prompts":[' + broken + b"]}", 100, 100)
        said.append(refused.value.message)
    assert said[0] == said[1]
