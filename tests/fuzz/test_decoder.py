"""The decoder and the checks behind it say of any entry what is wrong, and raise nothing else."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from streamfleet.common.envelope import KNOWN
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import ENDPOINTS, LANES, Lane, decode, digest, digest_of_bytes
from streamfleet.producer.ask import Ask, encode_body, prepare
from streamfleet.worker.cost.check import check_cost, for_engine
from streamfleet.worker.cost.limits import CostLimits, Feature
from streamfleet.worker.credit import estimate
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.replies import encode_body as for_wire
from streamfleet.worker.engine.simulated_api import Plan, answer, plan
from streamfleet.worker.outcome import Finished, Postponed, judge
from tests.fuzz import strategies as some
from tests.fuzz.attempts import attempt
from tests.fuzz.budget import examples
from tests.fuzz.entries import Entries

LIMITS = CostLimits()
LONGEST = 8_192
OPEN = CostLimits(allow=tuple(Feature))
stream_ids = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda parts: f"{parts[0]}-{parts[1]}")
names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256)
labels = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=50)


def explained(error: InvalidRequest) -> None:
    """A refusal that a person and a program can read."""
    assert error.param
    assert 0 < len(error.message) < 5_000
    assert set(json.loads(error.to_openai())["error"]) == {"message", "type", "param", "code"}
    error.to_openai().encode()


@given(some.any_fields, st.sampled_from(LANES), stream_ids)
@examples(400)
def test_any_fields_are_a_request_or_refused_with_the_field_named(
    fields: dict[bytes, bytes], lane: Lane, stream_id: str
) -> None:
    request = attempt(InvalidRequest, lambda: decode(fields, lane, stream_id))
    if isinstance(request, InvalidRequest):
        explained(request)
        assert request.param in KNOWN
    else:
        assert request.endpoint in ENDPOINTS
        json.dumps(dict(request.body), ensure_ascii=False).encode()  # no half of a surrogate pair got through
        digest(request)


@given(some.raw_entries)
@examples(400)
def test_generated_entries_are_decoded_alike(entry: Any) -> None:
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    try:
        request = decode(fields, Lane(entry.lane), "5-5")
    except InvalidRequest as error:
        explained(error)
        assert not entry.good
    else:
        assert request.id.encode() == entry.effective_id(b"5-5")


@given(some.raw_bodies)
@examples(400)
def test_a_body_that_was_decoded_passes_every_step_up_to_its_outcome(text: bytes) -> None:
    try:
        request = decode({b"body": text}, Lane.NORMAL, "1-1")
        check_cost(request.body, LIMITS, LONGEST)
        body = for_engine(request.body, request.endpoint, LIMITS, LONGEST)
    except InvalidRequest as error:
        explained(error)
        return
    demand = estimate(request.body, len(text), LONGEST)
    assert demand.sequences >= 1
    assert 0 <= demand.tokens <= LONGEST * demand.sequences
    if isinstance(for_wire(body), EngineReply):
        return
    planned = plan(EngineRequest(request.id, request.endpoint, body, request.lane), ("simulated",), LONGEST, 0)
    if isinstance(planned, Plan):
        assert planned.sequences <= LIMITS.max_sequences
        planned = EngineReply(200, answer(planned, 0))
    outcome = judge(planned)
    assert isinstance(outcome, Finished)
    assert (outcome.http_status == 200) == (not outcome.error)


@given(some.constraints, st.sampled_from([LIMITS, OPEN]))
@examples(200)
def test_any_grammar_is_judged_in_no_time(constraint: dict[str, Any], limits: CostLimits) -> None:
    began = time.process_time()
    found = attempt(InvalidRequest, lambda: check_cost({"prompt": "x", **constraint}, limits, LONGEST))
    if isinstance(found, InvalidRequest):
        explained(found)
    assert time.process_time() - began < 2.0


@given(st.integers(100, 999) | st.just(200), some.engine_replies)
@examples(600)
def test_any_reply_of_an_engine_is_judged(status: int, body: bytes) -> None:
    outcome = judge(EngineReply(status, body))
    assert isinstance(outcome, (Finished, Postponed))
    if isinstance(outcome, Finished):
        outcome.finish_reason.encode()
        outcome.error.encode()
        json.dumps(outcome.usage)


@given(
    body=some.json_bodies,
    request_id=names,
    lane=st.sampled_from(LANES),
    endpoint=st.sampled_from(sorted(ENDPOINTS)),
    deadline=st.none() | st.integers(0, 10**16 - 1),
    tenant=st.none() | labels,
    session=st.none() | labels,
    reply=st.none() | names,
    stream=st.booleans(),
    meta=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=100),
)
@examples(200)
def test_what_is_prepared_is_decoded_to_the_same(
    body: dict[str, Any], request_id: str, reply: str | None, **rest: Any
) -> None:
    try:
        submission = prepare(Ask(body=body, **rest), request_id, reply)
    except InvalidRequest as error:
        explained(error)
        return
    sent = {name.encode(): value for name, value in submission.fields.items()}
    decoded = decode(sent, submission.lane, "1-1")
    assert encode_body(decoded.body)[0] == submission.fields["body"]
    assert (decoded.deadline_ms, decoded.stream) == (rest["deadline"], rest["stream"])
    for name in ("tenant", "session", "meta"):
        assert submission.fields.get(name, b"").decode() == (rest[name] or "")
    assert (decoded.id, decoded.reply) == (request_id, reply)
    assert submission.digest == digest(decoded) + digest_of_bytes(sent)


@given(some.json_bodies, some.seeds)
@examples(150)
def test_a_digest_does_not_depend_on_the_order_of_keys_and_blanks(body: dict[str, Any], seed: int) -> None:
    text = json.dumps(body)
    try:
        first = decode({b"body": text.encode(), b"endpoint": b"/pooling"}, Lane.HIGH, "1-1")
    except InvalidRequest:
        assume(False)
    other = json.dumps(shuffled(body, random.Random(seed)), indent=2)
    second = decode({b"body": other.encode(), b"endpoint": b"/pooling"}, Lane.LOW, "2-2")
    assert digest(first) == digest(second)
    changed = {**body, "a field that nobody draws": 1}
    third = decode({b"body": json.dumps(changed).encode(), b"endpoint": b"/pooling"}, Lane.HIGH, "1-1")
    assert digest(third) != digest(first)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same JSON value, its keys in another order."""
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if not isinstance(value, dict):
        return value
    items = [(name, shuffled(inner, chance)) for name, inner in value.items()]
    chance.shuffle(items)
    return dict(items)


@given(st.fixed_dictionaries({"body": some.values | some.json_bodies}, optional=dict.fromkeys(
    ("lane", "deadline", "ttl_ms", "endpoint", "tenant", "session", "stream", "traceparent", "meta"), some.values
)), some.values | names)  # fmt: skip
@examples(200)
def test_a_callers_request_is_encoded_or_refused(options: dict[str, Any], request_id: Any) -> None:
    try:
        submission = prepare(Ask(**options), request_id, "me")
    except InvalidRequest as error:
        explained(error)
    else:
        fields = {name.encode(): value for name, value in submission.fields.items()}
        assert decode(fields, submission.lane, "1-1").id == submission.id


def test_the_generators_reach_every_ending() -> None:
    """Else the tests above would say little."""
    ends = {"refused": 0, "runs": 0}
    for seed in range(2_000):
        entry = Entries(random.Random(seed), "c", lambda: some.NOW_MS).next()
        try:
            decode(dict(zip(entry.fields[::2], entry.fields[1::2], strict=True)), Lane(entry.lane), "1-1")
            ends["runs"] += 1
        except InvalidRequest as error:
            ends["refused"] += 1
            ends[f"{error.param} {error.code}"] = 1
    assert min(ends["runs"], ends["refused"]) > 400, ends
    assert len(ends) > 20, ends
