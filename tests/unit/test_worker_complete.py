"""Outcomes on their way to Redis: batches, what a result says, delays, and odd ones that Redis refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, cast

import pytest

from streamfleet.common import metrics
from streamfleet.common.broker.types import CompleteCode, Completion, Lease, Retry, RetryCode
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane, Status
from streamfleet.worker.complete import MOST_AT_ONCE, RESPONSE_BYTES_AT_ONCE, Completer
from streamfleet.worker.engine.base import EngineRequest, Partial
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.outcome import Finished, Gone, HandedBack, Outcome, Postponed, expired
from streamfleet.worker.publishing import Publisher
from tests.clocks import HandClock
from tests.unit.worker_requests import CLAIMED_MS, in_flight_request


class Notebook:
    """In the broker's place: writes down what it is told; refuses what a test wants refused."""

    def __init__(self) -> None:
        self.completed: list[list[Completion]] = []
        self.retried: list[Retry] = []
        self.released: list[Lease] = []
        self.in_turn: list[Lease] = []
        self.gave_way: list[Lease] = []
        self.kept: dict[str, bytes] = {}
        self.named: dict[Lease, tuple[str, int]] = {}
        self.generated: dict[Lease, int] = {}
        self.has_room = True
        self.code = CompleteCode.PUBLISHED
        self.refuse = ""
        self.full = 0
        self.refused_calls = 0

    async def complete(self, worker: str, completions: Sequence[Completion]) -> list[CompleteCode]:
        assert worker == "w1"
        if self.full:
            self.full -= 1
            raise BrokerOutOfMemory("full, says the test")
        if self.refuse and any(self.refuse in str(item.values.get("response")) for item in completions):
            raise UnicodeEncodeError("utf-8", self.refuse, 0, 1, "refused by the test")
        self.completed.append(list(completions))
        return [self.code for _ in completions]

    async def retry_later(self, worker: str, retries: Sequence[Retry], max_deliveries: int) -> list[RetryCode]:
        assert (worker, max_deliveries) == ("w1", 5)
        if self.refused_calls:
            self.refused_calls -= 1
            raise ValueError("refused by the test")
        self.retried += retries
        return [RetryCode.DELAYED for _ in retries]

    async def keep(self, outputs: Mapping[str, bytes]) -> bool:
        self.kept |= outputs
        return self.has_room

    async def renew(self, worker: str, leases: Sequence[Lease], kept: Mapping[Lease, tuple[str, int]]) -> list[int]:
        assert (worker, list(kept)) == ("w1", leases)
        self.named |= kept
        return [1] * len(leases)

    async def release(
        self,
        worker: str,
        leases: Sequence[Lease],
        *,
        in_turn: bool,
        gave_way: bool,
        kept: Mapping[Lease, tuple[str, int]],
        generated: Mapping[Lease, int],
    ) -> int:
        assert worker == "w1"
        self.generated |= generated
        self.named |= kept
        self.released += leases
        self.in_turn += leases if in_turn else []
        self.gave_way += leases if gave_way else []
        return len(leases)


class Rig:
    def __init__(self) -> None:
        self.broker, self.in_flight, self.clock = Notebook(), InFlight(), HandClock()
        broker, unstreamed = cast("WorkerBroker", self.broker), cast("Publisher", None)
        self.completer = Completer(broker, "w1", self.in_flight, unstreamed, QueueLimits(), self.clock)

    async def write(self, *outcomes: tuple[InFlightRequest, Outcome]) -> None:
        """Hand all over, and see them written."""
        for one, outcome in outcomes:
            self.in_flight.add(one)
            self.completer.put(one, outcome)
        self.completer.close()
        await asyncio.wait_for(self.completer.run(), 5)

    def completions(self) -> list[Completion]:
        return [item for call in self.broker.completed for item in call]


def success(response: bytes = b"{}") -> Finished:
    return Finished(Status.SUCCEEDED, 200, response=response, finish_reason="stop", usage={"prompt_tokens": 2})


async def test_outcomes_that_wait_together_are_written_together() -> None:
    rig = Rig()
    await rig.write(*[(in_flight_request(number), success()) for number in range(MOST_AT_ONCE + 1)])
    assert [len(call) for call in rig.broker.completed] == [MOST_AT_ONCE, 1]
    assert len(rig.in_flight) == 0


async def test_large_responses_are_written_in_calls_of_bounded_size() -> None:
    rig = Rig()
    await rig.write(
        *[(in_flight_request(number), success(b"x" * (RESPONSE_BYTES_AT_ONCE // 2))) for number in range(3)]
    )
    assert [len(call) for call in rig.broker.completed] == [2, 1]


async def test_each_kind_of_outcome_takes_its_way() -> None:
    rig, requests = Rig(), [in_flight_request(number) for number in range(6)]
    outcomes: list[Outcome] = [success(), Postponed("busy"), HandedBack(), Gone(), HandedBack(in_turn=True)]
    outcomes.append(HandedBack(gave_way=True, lost_tokens=7))
    await rig.write(*zip(requests, outcomes, strict=True))
    assert [item.lease for item in rig.completions()] == [requests[0].lease]
    assert [item.lease for item in rig.broker.retried] == [requests[1].lease]
    assert rig.broker.released == [requests[2].lease, requests[5].lease, requests[4].lease]
    assert rig.broker.in_turn == [requests[4].lease]
    assert rig.broker.gave_way == [requests[5].lease]
    assert len(rig.in_flight) == 0


async def test_output_is_kept_before_its_request_goes_back() -> None:
    rig, (one, other) = Rig(), (in_flight_request(1), in_flight_request(2))
    one.claim = replace(one.claim, kept="a former run")
    await rig.write((one, HandedBack(gave_way=True, partial=Partial(7, b"state"))), (other, HandedBack(gave_way=True)))
    ((run, output),) = rig.broker.kept.items()
    assert Partial.decode(output) == Partial(7, b"state")
    assert rig.broker.named == {one.lease: (run, len(output))}


async def test_an_output_has_one_key_however_often_its_outcome_is_written() -> None:
    """Nothing counts what further tries would leave."""
    rig, one = Rig(), in_flight_request()
    rig.broker.refused_calls = 1
    await rig.write((one, Postponed("busy", partial=Partial(7, b"state"))))
    assert [item.lease for item in rig.broker.retried] == [one.lease]
    ((run, output),) = rig.broker.kept.items()
    assert rig.broker.named == {one.lease: (run, len(output))}


async def test_what_a_run_has_generated_is_told_when_its_request_goes_back() -> None:
    """Its tenant stays charged for it, once."""
    rig, one, other = Rig(), in_flight_request(1), in_flight_request(2)
    one.asked = EngineRequest("r", "/v1/completions", {}, Lane.NORMAL)
    one.asked.made, one.asked.resumed_tokens = 9, 2
    await rig.write((one, HandedBack()), (other, HandedBack()))
    assert rig.broker.generated == {one.lease: 7}


async def test_output_for_which_redis_has_no_room_is_lost_and_its_former_part_stays() -> None:
    rig, one = Rig(), in_flight_request()
    rig.broker.has_room = False
    one.claim = replace(one.claim, kept="a former run")
    await rig.write((one, HandedBack(partial=Partial(7, b"state"))))
    assert (rig.broker.released, rig.broker.named) == ([one.lease], {})


async def test_what_nobody_counted_is_told_with_the_outcome_and_not_in_the_result() -> None:
    rig, one = Rig(), in_flight_request()
    await rig.write((one, replace(expired("while it was running"), held=70.0)))
    (item,) = rig.completions()
    assert item.held == 70.0
    assert "held" not in item.values


async def test_what_a_failed_attempt_is_charged_is_told_with_its_retry() -> None:
    rig = Rig()
    await rig.write((in_flight_request(1), Postponed("time-out", held=70.0)), (in_flight_request(2), Postponed("busy")))
    assert [item.held for item in rig.broker.retried] == [70.0, None]


async def test_a_result_tells_what_its_run_went_on_with() -> None:
    rig, one = Rig(), in_flight_request()
    await rig.write((one, Finished(**{**vars_of(success()), "resumed_tokens": 7})))
    assert rig.completions()[0].values["resumed_tokens"] == 7


async def test_a_result_says_who_when_and_how_long() -> None:
    rig = Rig()
    one = in_flight_request(tenant=b"acme", meta=b'{"a":1}', traceparent=b"00-1", session=b"s", reply=b"me")
    one.started_at = 100.25
    rig.clock.seconds = 101.0
    await rig.write((one, Finished(**{**vars_of(success()), "first_token_ms": 12.34})))
    (item,) = rig.completions()
    assert (item.status, item.reply, item.error) == (Status.SUCCEEDED, "me", "")
    assert item.values == {
        "http_status": 200,
        "enqueued_ms": CLAIMED_MS - 500,
        "finished_ms": CLAIMED_MS + 1_000,
        "queued_ms": 500,
        "waited_ms": "250.0",
        "first_token_ms": "12.3",
        "total_ms": "1500.0",
        "response": b"{}",
        "finish_reason": "stop",
        "usage": '{"prompt_tokens":2}',
        "tenant": b"acme",
        "session": b"s",
        "traceparent": b"00-1",
        "meta": b'{"a":1}',
    }


def vars_of(outcome: Finished) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in Finished.__dataclass_fields__}


async def test_a_failure_carries_its_error_and_no_response() -> None:
    rig = Rig()
    await rig.write((in_flight_request(reply=b"not a name"), Finished(Status.FAILED, 400, error='{"error":{}}')))
    (item,) = rig.completions()
    assert (item.error, item.values["error"], item.reply) == ('{"error":{}}', '{"error":{}}', "")
    assert "response" not in item.values


async def test_one_outcome_that_redis_refuses_spoils_no_other() -> None:
    rig, requests = Rig(), [in_flight_request(number) for number in range(3)]
    rig.broker.refuse = "odd"
    responses = [b"{}", b'"odd"', b"{}"]
    await rig.write(*[(one, success(response)) for one, response in zip(requests, responses, strict=True)])
    assert [item.status for item in rig.completions()] == [Status.SUCCEEDED, Status.FAILED, Status.SUCCEEDED]
    assert "could not be stored" in rig.completions()[1].error
    assert len(rig.in_flight) == 0


async def test_a_full_redis_fails_no_good_answer() -> None:
    rig = Rig()
    rig.broker.full = 3
    await rig.write((in_flight_request(), success()))
    assert [item.status for item in rig.completions()] == [Status.SUCCEEDED]
    assert rig.clock.seconds == 103.0


@pytest.mark.parametrize(
    ("attempt", "outcome", "shortest", "longest"),
    [
        (1, Postponed("busy"), 250, 500),
        (3, Postponed("busy"), 1_000, 2_000),
        (9, Postponed("busy"), 15_000, 30_000),
        (1, Postponed("busy", retry_after_ms=700), 700, 700),
        (1, Postponed("busy", retry_after_ms=0), 250, 500),
        (1, Postponed("busy", retry_after_ms=86_400_000), 30_000, 30_000),
        (3, Postponed("died", engine_died=True), 0, 0),
        (1, Postponed("cut", code="upstream_incomplete"), 250, 500),
    ],
)
async def test_delays(attempt: int, outcome: Postponed, shortest: int, longest: int) -> None:
    rig = Rig()
    await rig.write((in_flight_request(attempt=attempt), outcome))
    (retry,) = rig.broker.retried
    assert shortest <= retry.delay_ms <= longest
    error = json.loads(retry.error)["error"]
    assert (error["message"], error["code"]) == (outcome.reason, outcome.code)


async def test_an_enumeration_of_numbers_is_written_as_a_number() -> None:
    """vLLM answers with http.HTTPStatus, which commands cannot carry."""
    rig = Rig()
    await rig.write((in_flight_request(), Finished(**{**vars_of(success()), "http_status": HTTPStatus.BAD_REQUEST})))
    (item,) = rig.completions()
    assert type(item.values["http_status"]) is int


@pytest.mark.parametrize(
    ("code", "reason"), [(CompleteCode.LOST, "lease_lost"), (CompleteCode.ENDED_BEFORE, "ended_before")]
)
async def test_tokens_of_an_answer_that_was_not_published_are_wasted(
    monkeypatch: pytest.MonkeyPatch, code: CompleteCode, reason: str
) -> None:
    rig, counted = Rig(), metrics.of(metrics.TOKENS_WASTED, reason)
    before = counted._value.get()

    async def refused(_worker: str, completions: Sequence[Completion]) -> list[CompleteCode]:
        return [code for _ in completions]

    monkeypatch.setattr(rig.broker, "complete", refused)
    outcome = success()
    outcome.usage = {"completion_tokens": 12}
    await rig.write((in_flight_request(), outcome))
    assert counted._value.get() - before == 12
