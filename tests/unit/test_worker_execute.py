"""One request, one outcome, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.admission import Admission
from streamfleet.worker.credit import Demand
from streamfleet.worker.engine.base import (
    Capacity,
    EngineAborted,
    EngineDied,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
)
from streamfleet.worker.execute import Executor
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from streamfleet.worker.outcome import Finished, Gone, HandedBack, Outcome, Postponed
from tests.clocks import HandClock
from tests.constants import PREFETCH, constants
from tests.unit.worker_requests import CHAT, CLAIMED_MS, OK, ScriptedEngine, in_flight_request
from tests.waiting import eventually


class Rig:
    """An executor and what it works with."""

    def __init__(self, engine: ScriptedEngine, model: str = "") -> None:
        self.engine, self.clock, self.in_flight = engine, HandClock(), InFlight()
        with constants({PREFETCH: 0}):
            self.admission = Admission(engine, self.in_flight, load(WorkerSettings))
        unstreamed: Any = None
        self.executor = Executor(engine, self.admission, unstreamed, self.clock, QueueLimits(), model=model)

    async def run(self, one: InFlightRequest) -> Outcome:
        self.in_flight.add(one)
        return await asyncio.wait_for(self.executor.execute(one), 5)


async def answers(_: EngineRequest) -> EngineReply:
    return OK


async def hangs(_: EngineRequest) -> EngineReply:
    await asyncio.get_running_loop().create_future()
    return OK


def raising(error: BaseException) -> ScriptedEngine:
    async def fail(_: EngineRequest) -> EngineReply:
        raise error

    return ScriptedEngine(fail)


async def test_a_request_reaches_the_engine_and_its_answer_is_the_outcome() -> None:
    rig = Rig(ScriptedEngine(answers))
    one = in_flight_request(body={**CHAT, "stream": True, "max_tokens": 9}, deadline=str(CLAIMED_MS + 1_000).encode())
    outcome = await rig.run(one)
    assert isinstance(outcome, Finished)
    assert outcome.status is Status.SUCCEEDED
    (seen,) = rig.engine.seen
    assert seen == EngineRequest("r-1", "/v1/chat/completions", {**CHAT, "max_tokens": 9}, one.lease.lane, 1_001_000)
    assert one.started_at == rig.clock.seconds


@pytest.mark.parametrize(("body", "param"), [(b"no", "body"), ({**CHAT, "n": 33}, "n"), ({}, "body")])
async def test_what_is_refused_never_reaches_the_engine(body: object, param: str) -> None:
    rig = Rig(ScriptedEngine(answers))
    outcome = await rig.run(in_flight_request(body=body))
    assert isinstance(outcome, Finished)
    assert json.loads(outcome.error)["error"]["param"] == param
    assert rig.engine.seen == []
    assert rig.admission.expected == Demand(1, Demand().tokens)


async def test_demand_is_known_once_it_is_decoded() -> None:
    rig = Rig(ScriptedEngine(answers))
    one = in_flight_request(body={**CHAT, "max_tokens": 20, "n": 2})
    await rig.run(one)
    assert one.demand.sequences == 2
    assert 40 <= one.demand.tokens < 80
    assert rig.in_flight.changed.is_set()
    assert rig.admission.expected.tokens == one.demand.tokens


async def test_what_does_not_fit_once_it_is_decoded_goes_back_untried() -> None:
    rig = Rig(ScriptedEngine(hangs, Capacity(8, 1_000, 1_000)))
    first = asyncio.create_task(rig.run(in_flight_request(1, body={**CHAT, "max_tokens": 600})))
    await eventually(lambda: rig.engine.seen)
    expected = rig.admission.expected
    large, small = (
        in_flight_request(2, body={**CHAT, "max_tokens": 500}),
        in_flight_request(3, body={**CHAT, "max_tokens": 1}),
    )
    for each in (large, small):  # nothing passes the one that waits for room
        assert await rig.run(each) == HandedBack(in_turn=True)
        rig.in_flight.remove([each])
    assert [request.id for request in rig.engine.seen] == ["r-1"]
    assert rig.admission.expected == expected, "what comes again is counted once"
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first


async def test_an_image_counts_as_an_engine_reads_it_until_the_engine_has_counted_it() -> None:
    async def counts(_: EngineRequest) -> EngineReply:
        return EngineReply(200, b'{"choices":[{}],"usage":{"prompt_tokens":2600}}')

    rig = Rig(ScriptedEngine(counts, Capacity(8, 100_000, 100_000)))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}
    body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 10}
    requests = [in_flight_request(number, body=body) for number in range(100)]
    for each in requests:
        await rig.run(each)
        rig.in_flight.remove([each])
    assert 1_300 < requests[0].demand.tokens < 1_400
    assert 2_500 < requests[-1].demand.tokens < 2_700


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineUnavailable("busy", 70), Postponed("busy", 70)),
        (EngineUnavailable("cut", code="upstream_incomplete"), Postponed("cut", code="upstream_incomplete")),
        (EngineUnavailable("busy", 70, counted=False), HandedBack(in_turn=True, after_ms=70)),
        (EngineUnavailable("away", counted=False), HandedBack(in_turn=True)),
        (EngineAborted("gone"), Postponed("the engine aborted the request: gone")),
        (EngineDied("oops"), Postponed("the engine died while it ran the request: oops", engine_died=True)),
        (asyncio.CancelledError(), Postponed("the engine dropped the request")),
    ],
)
async def test_engine_faults_may_pass(error: BaseException, expected: Outcome) -> None:
    assert await Rig(raising(error)).run(in_flight_request()) == expected


@pytest.mark.parametrize("error", [ValueError("x"), RecursionError(), MemoryError()])
async def test_a_bug_ends_the_request_and_not_the_worker(error: Exception) -> None:
    outcome = await Rig(raising(error)).run(in_flight_request())
    assert isinstance(outcome, Finished)
    assert (outcome.status, outcome.http_status, outcome.engine_ok) == (Status.FAILED, 500, False)
    assert type(error).__name__ in outcome.error


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (StopReason.LOST, Gone()),
        (StopReason.RELEASED, HandedBack()),
        (
            StopReason.WORKER_FAILED,
            Postponed("the worker or its engine failed while it ran the request", engine_died=True),
        ),
    ],
)
async def test_a_stop_aborts_the_request_before_its_outcome_is_known(reason: StopReason, expected: Outcome) -> None:
    rig, one = Rig(ScriptedEngine(hangs)), in_flight_request()
    running = asyncio.create_task(rig.run(one))
    await eventually(lambda: rig.engine.seen)
    one.stop(reason)
    assert await running == expected
    assert rig.engine.aborted == ["r-1"]


async def test_a_cancelled_request_is_finished() -> None:
    rig, one = Rig(ScriptedEngine(hangs)), in_flight_request()
    running = asyncio.create_task(rig.run(one))
    await eventually(lambda: rig.engine.seen)
    one.stop(StopReason.CANCELLED)
    outcome = await running
    assert isinstance(outcome, Finished)
    assert outcome.status is Status.CANCELLED


async def test_a_stop_that_came_first_keeps_the_request_from_the_engine() -> None:
    rig, one = Rig(ScriptedEngine(hangs)), in_flight_request()
    one.stop(StopReason.LOST)
    assert await rig.run(one) == Gone()
    assert rig.engine.seen == []


async def test_a_deadline_aborts_the_request() -> None:
    rig = Rig(ScriptedEngine(hangs))
    outcome = await rig.run(in_flight_request(deadline=str(CLAIMED_MS + 30).encode()))
    assert isinstance(outcome, Finished)
    assert outcome.status is Status.EXPIRED
    assert rig.engine.aborted == ["r-1"]


async def test_a_deadline_counts_from_rediss_clock_at_the_claim() -> None:
    """Time that passed on this machine since then counts too; its wall clock does not."""
    rig, one = Rig(ScriptedEngine(answers)), in_flight_request(deadline=str(CLAIMED_MS + 2_000).encode())
    rig.clock.seconds += 1.9
    outcome = await rig.run(one)
    assert isinstance(outcome, Finished)
    assert outcome.status is Status.SUCCEEDED
    rig.clock.seconds += 0.2
    late = await rig.run(in_flight_request(2, deadline=str(CLAIMED_MS + 2_000).encode()))
    assert isinstance(late, Finished)
    assert (late.status, late.engine_ok) == (Status.EXPIRED, None)
    assert len(rig.engine.seen) == 1


async def test_an_answer_beats_a_stop_that_comes_at_the_same_moment() -> None:
    one = in_flight_request()

    async def answer_and_stop(_: EngineRequest) -> EngineReply:
        one.stop(StopReason.CANCELLED)
        return OK

    outcome = await Rig(ScriptedEngine(answer_and_stop)).run(one)
    assert isinstance(outcome, Finished)
    assert outcome.status is Status.SUCCEEDED


def answering(statuses: dict[str, int], endpoints: tuple[str, ...] = ()) -> ScriptedEngine:
    """An engine that answers each endpoint so; 404 for another."""

    async def answer(request: EngineRequest) -> EngineReply:
        status = statuses.get(request.endpoint, 404)
        return OK if status == 200 else EngineReply(status, b'{"error": {"message": "no"}}')

    engine = ScriptedEngine(answer)
    engine.endpoints = endpoints
    return engine


TEXT, TALK, EMBED = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("engine", "works", "asked"),
    [
        (answering({TEXT: 200}, (TALK, TEXT)), True, [TEXT]),
        (answering({EMBED: 200}, (EMBED, "/pooling")), True, [EMBED]),
        (answering({"/classify": 200}, ("/classify",)), True, ["/classify"]),
        (answering({TEXT: 500}, (TALK, TEXT)), False, [TEXT]),
        (answering({TEXT: 503}, (TALK, TEXT)), False, [TEXT]),
        (answering({TALK: 200}), True, [TEXT, TALK]),  # it does not tell what it serves
        (answering({EMBED: 200}), True, [TEXT, TALK, EMBED]),
        (answering({TALK: 500}), False, [TEXT, TALK]),
        (answering({}, (TALK, TEXT)), None, [TEXT, TALK]),
        (answering({TEXT: 400, TALK: 422}, (TALK, TEXT)), None, [TEXT, TALK]),
        (raising(EngineUnavailable("away")), False, [TEXT]),
        (raising(EngineUnavailable("full", busy=True)), None, [TEXT]),
        (raising(EngineUnavailable("away", counted=False)), None, [TEXT]),
        (raising(EngineAborted("dropped")), False, [TEXT]),
        (raising(EngineDied("gone")), False, [TEXT]),
        (raising(ValueError("a bug")), False, [TEXT]),
    ],
)
async def test_a_probe_asks_for_as_little_as_possible_and_tells_if_the_engine_works(
    engine: ScriptedEngine, works: bool | None, asked: list[str]
) -> None:
    assert await Rig(engine).executor.probe() is works
    assert [each.endpoint for each in engine.seen] == asked
    for each in engine.seen:
        assert each.body.get("max_tokens", 1) == 1
        assert len(json.dumps(each.body)) < 100
        assert each.lane is Lane.CRITICAL


async def test_a_probe_begins_where_the_last_success_was() -> None:
    engine = answering({TALK: 200, TEXT: 500})
    rig = Rig(engine)
    assert await rig.executor.probe() is False
    await rig.run(in_flight_request())
    assert await rig.executor.probe() is True
    assert engine.seen[-1].endpoint == TALK


async def test_a_refusal_tells_no_probe_where_to_begin() -> None:
    rig = Rig(answering({TEXT: 200}))
    await rig.run(in_flight_request())
    assert await rig.executor.probe() is True
    assert [each.endpoint for each in rig.engine.seen] == [TALK, TEXT]


@pytest.mark.parametrize("model", ["", "sql"])
async def test_a_probe_is_of_the_queues_own_model(model: str) -> None:
    rig = Rig(answering({TEXT: 200}), model)
    assert await rig.executor.probe() is True
    assert rig.engine.seen[0].body.get("model", "") == model


async def test_a_probe_that_is_cancelled_leaves_the_engine() -> None:
    engine = ScriptedEngine(hangs)
    probe = asyncio.create_task(Rig(engine).executor.probe())
    await eventually(lambda: engine.seen)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert engine.aborted == [engine.seen[0].id]
