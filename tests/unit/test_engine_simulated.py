"""The simulated engine: deterministic answers, latencies of a profile, and faults on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.protocol import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, Lane
from streamfleet.worker.engine.base import EngineAborted, EngineDied, EngineRequest, EngineUnavailable, Partial
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST, SMOLLM2_135M_CPU
from tests.clocks import HandClock
from tests.waiting import eventually

INSTANT = float("inf")
EXACT = replace(SMOLLM2_135M_CPU, jitter=0.0)


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(**{"speed": INSTANT, **options})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def chat(identity: str = "r-1", lane: Lane = Lane.NORMAL, **body: Any) -> EngineRequest:
    body.setdefault("messages", [{"role": "user", "content": "Count to three please"}])
    return EngineRequest(identity, CHAT, body, lane)


async def test_answers_say_that_they_are_simulated() -> None:
    async with started(models=("SmolLM2",)) as engine:
        answer = json.loads((await engine.run(chat(model="SmolLM2", max_tokens=4, ignore_eos=True))).body)
    assert answer["model"] == "simulated"
    assert answer["system_fingerprint"] == "simulated"
    assert answer["choices"][0]["message"]["content"] == "[simulated] Count to three"
    assert answer["choices"][0]["finish_reason"] == "length"
    cached = {"prompt_tokens_details": {"cached_tokens": 0}}
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10, **cached}


async def test_the_same_seed_and_id_give_the_same_answer() -> None:
    async with started(seed=7, clock=HandClock()) as first, started(seed=7, clock=HandClock()) as second:
        for number in range(5):
            one, two = await first.run(chat(f"r-{number}")), await second.run(chat(f"r-{number}"))
            assert one.body == two.body
    async with started(seed=8, clock=HandClock()) as other:
        lengths = [json.loads((await other.run(chat(f"r-{n}"))).body)["usage"] for n in range(5)]
    assert len({usage["completion_tokens"] for usage in lengths}) > 1


async def test_several_choices_and_several_prompts() -> None:
    async with started() as engine:
        request = EngineRequest("r-1", COMPLETIONS, {"prompt": ["one", "two"], "n": 2, "max_tokens": 2}, Lane.LOW)
        answer = json.loads((await engine.run(request)).body)
    assert [choice["text"] for choice in answer["choices"]] == ["[simulated] one"] * 2 + ["[simulated] two"] * 2
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("stop", "texts", "tokens"),
    [
        ("three", ["[simulated] one two ", "[simulated] "], 4 + 2),
        (["e two", "e f"], ["[simulated] on", "[simulated] thre"], 3 + 3),
        (
            ["", "nowhere"],
            ["[simulated] one two three one two three", "[simulated] three four three four three four"],
            14,
        ),
        ("[", ["", ""], 2),
    ],
    ids=str,
)
async def test_an_answer_ends_before_its_stop(stop: Any, texts: list[str], tokens: int) -> None:
    body = {"prompt": ["one two three", "three four"], "max_tokens": 7, "ignore_eos": True, "stop": stop}
    async with started() as engine:
        answer = json.loads((await engine.run(EngineRequest("r-1", COMPLETIONS, body, Lane.LOW))).body)
    assert [choice["text"] for choice in answer["choices"]] == texts
    cut = [text.count(" ") < 6 for text in texts]
    assert [choice["finish_reason"] == "stop" for choice in answer["choices"]] == cut
    assert answer["usage"]["completion_tokens"] == tokens


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"response_format": SCHEMA}, "response_format"),
        (CHAT, {"logprobs": True, "top_logprobs": 2}, "logprobs"),
        (CHAT, {"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        (CHAT, {"stop": ["a"] * 5}, "stop"),
        (CHAT, {"stop": 7}, "stop"),
        (COMPLETIONS, {"prompt": "hi", "logprobs": 0}, "logprobs"),
        (COMPLETIONS, {"prompt": "hi", "echo": True}, "echo"),
        (RESPONSES, {"input": "hi", "text": {"format": SCHEMA}}, "text.format"),
        (RESPONSES, {"input": "hi", "tools": [{"type": "web_search"}]}, "tools"),
        (RESPONSES, {"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.role"),
        (RESPONSES, {"input": "hi", "instructions": 7}, "instructions"),
    ],
    ids=str,
)
async def test_what_it_cannot_do_is_refused(endpoint: str, body: dict[str, Any], param: str) -> None:
    messages = {"messages": [{"role": "user", "content": "hi"}]} if endpoint == CHAT else {}
    async with started() as engine:
        reply = await engine.run(EngineRequest("r-1", endpoint, messages | body, Lane.NORMAL))
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["param"] == param


async def test_fields_that_ask_for_nothing_are_taken() -> None:
    nothing: dict[str, Any] = {
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logprobs": False,
        "stop": None,
    }
    async with started() as engine:
        assert (await engine.run(chat(**nothing))).status == 200


async def test_a_response() -> None:
    said = [{"role": "user", "content": [{"type": "input_text", "text": "two"}]}]
    body = {"instructions": "one", "input": said, "max_output_tokens": 3}
    async with started() as engine:
        whole = json.loads((await engine.run(EngineRequest("r-1", RESPONSES, body, Lane.LOW))).body)
        ended = json.loads((await engine.run(EngineRequest("r-1", RESPONSES, {"input": "hi"}, Lane.LOW))).body)
    assert whole["output"][0]["content"][0]["text"] == "[simulated] one two"
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (whole["usage"]["output_tokens"], whole["usage"]["total_tokens"]) == (3, 5)
    assert (ended["status"], ended["incomplete_details"]) == ("completed", None)


async def test_a_streamed_response_tells_its_text_as_often_as_its_reader_gets_it() -> None:
    """The first token at once, and the rest at the end where the interval is longer than the answer takes."""
    body = {"input": "Say hi", "max_output_tokens": 50, "ignore_eos": True}
    counts = {}
    for every_s in (0.0, 3600.0):
        request, events = EngineRequest("r-1", RESPONSES, body, Lane.NORMAL, chunk_every_s=every_s), list[Any]()
        request.on_chunk = lambda line, events=events: events.append(json.loads(bytes(line)))
        async with started(profile=EXACT, speed=1, clock=HandClock()) as engine:
            reply = json.loads((await engine.run(request)).body)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == reply["output"][0]["content"][0]["text"]
        assert events[-1]["response"] == reply
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        counts[every_s] = len(deltas)
    assert counts[3600.0] == 2 < counts[0.0]


async def test_a_streamed_response_begins_anew() -> None:
    """As with vLLM: its events cannot go on with those of another run."""
    body = {"input": "Say hi", "max_output_tokens": 500}
    async with started(speed=1) as slow:
        partial = await interrupted(slow, EngineRequest("r-1", RESPONSES, body, Lane.NORMAL), 2)
        assert partial is not None
        streamed = EngineRequest("r-1", RESPONSES, body, Lane.NORMAL, on_chunk=lambda _: None, resume=partial)
        assert await interrupted(slow, streamed, 1) is None
    assert (streamed.resumed_tokens, streamed.continuable) == (0, False)


async def test_it_says_which_endpoints_it_serves() -> None:
    async with started(embeddings=False) as engine:
        for endpoint in (EMBEDDINGS, RERANK):
            assert endpoint not in engine.endpoints
            assert (await engine.run(EngineRequest("r-1", endpoint, {"input": "a"}, Lane.LOW))).status == 404
    assert {*engine.endpoints} == {CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS}


async def test_embeddings_have_unit_length_and_follow_the_text() -> None:
    body = {"input": ["a", "b", "a"], "dimensions": 8}
    async with started() as engine:
        answer = json.loads((await engine.run(EngineRequest("r-1", EMBEDDINGS, body, Lane.LOW))).body)
        packed = await engine.run(EngineRequest("r-2", EMBEDDINGS, {**body, "encoding_format": "base64"}, Lane.LOW))
    vectors = [item["embedding"] for item in answer["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1, abs=1e-4)
    assert isinstance(json.loads(packed.body)["data"][0]["embedding"], str)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages.0.role"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        (CHAT, {"messages": [{"role": "user"}], "model": 3}, "model"),
        (CHAT, {"messages": [{"role": "user"}], "n": True}, "n"),
        (CHAT, {"messages": [{"role": "user"}], "n": 129}, "n"),
        (CHAT, {"messages": [{"role": "user"}], "top_p": "x"}, "top_p"),
        (CHAT, {"messages": [{"role": "user"}], "max_tokens": 10**400}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 40_000}]}, "input_tokens"),
        (COMPLETIONS, {"prompt": 3}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", 3]}, "prompt"),
        (EMBEDDINGS, {}, "input"),
        (CHAT, {"messages": object()}, "body"),
    ],
)
async def test_bad_bodies_are_refused_by_field(endpoint: str, body: dict[str, Any], param: str) -> None:
    async with started() as engine:
        reply = await engine.run(EngineRequest("r-1", endpoint, body, Lane.NORMAL))
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["param"] == param


@pytest.mark.parametrize(("running", "tokens_per_s"), [(1, 46), (4, 136), (8, 228), (16, 290), (32, 349)])
async def test_it_is_as_fast_as_the_profile(running: int, tokens_per_s: float) -> None:
    time = HandClock()
    async with started(profile=replace(EXACT, prefill_s_per_token=0), speed=1, clock=time) as engine:
        began_s = time.seconds
        requests = [chat(f"r-{n}", max_tokens=50, ignore_eos=True) for n in range(running)]
        await asyncio.gather(*map(engine.run, requests))
        assert running * 50 / (time.seconds - began_s) == pytest.approx(tokens_per_s, rel=0.01)


def test_between_measurements_a_step_takes_something_between() -> None:
    steps = [SMOLLM2_135M_CPU.step_s(batch) for batch in range(1, 200)]
    assert steps == sorted(steps)
    assert GENERIC_FAST.step_s(1) < SMOLLM2_135M_CPU.step_s(1)
    assert replace(EXACT, throughput=((1, 10),)).step_s(5) == 0.1


async def test_a_first_token_takes_the_prompt_and_one_step() -> None:
    async with started(profile=EXACT, speed=1, clock=HandClock()) as engine:
        reply = await engine.run(chat(max_tokens=10, ignore_eos=True))
    assert reply.first_token_ms == pytest.approx((6 * 0.0014 + 1 / 46) * 1000, rel=0.01)


async def test_waiting_ones_go_in_by_lane() -> None:
    ended: list[str] = []

    async def run(engine: SimulatedEngine, request: EngineRequest) -> None:
        await engine.run(request)
        ended.append(request.id)

    async with started(profile=replace(EXACT, slots=1)) as engine:
        lanes = {"low": Lane.LOW, "normal": Lane.NORMAL, "critical": Lane.CRITICAL}
        await asyncio.gather(*(run(engine, chat(name, lane, max_tokens=3)) for name, lane in lanes.items()))
    assert ended == ["critical", "normal", "low"]


async def test_the_kv_cache_bounds_what_runs() -> None:
    most = 0
    async with started(profile=replace(EXACT, kv_tokens=50), speed=1, clock=HandClock()) as engine:

        async def run(identity: str) -> None:
            nonlocal most
            task = asyncio.create_task(engine.run(chat(identity, max_tokens=14, ignore_eos=True)))
            while not task.done():
                most = max(most, engine.running)
                await asyncio.sleep(0)

        await asyncio.gather(*(run(f"r-{n}") for n in range(6)))
    assert most == 2  # 6 + 14 tokens each


async def test_cancelling_frees_the_slot_at_once() -> None:
    async with started(profile=replace(EXACT, slots=1), speed=1) as engine:
        first = asyncio.create_task(engine.run(chat("r-1", max_tokens=5000, ignore_eos=True)))
        second = asyncio.create_task(engine.run(chat("r-2", max_tokens=5000)))
        await eventually(lambda: engine.running == 1)
        for task in (second, first):
            task.cancel()
        await asyncio.wait({first, second})
        assert engine.running == 0
        assert (await asyncio.wait_for(engine.run(chat("r-3", max_tokens=1)), 5)).status == 200


async def interrupted(engine: SimulatedEngine, request: EngineRequest, made: int) -> Partial | None:
    """Output that is kept of a request, interrupted after at least so many tokens."""
    task = asyncio.create_task(engine.run(request))
    await eventually(lambda: request.made >= made, 5, "it has made its tokens")
    task.cancel()
    await asyncio.wait({task})
    return request.partial


@pytest.mark.parametrize("body", [{}, {"n": 2}, {"stop": "three please Count"}])
async def test_an_interrupted_answer_goes_on(body: dict[str, Any]) -> None:
    body = {"max_tokens": 60, "ignore_eos": True, **body}
    async with started(clock=HandClock()) as engine:
        whole = json.loads((await engine.run(chat(**body))).body)
    async with started(profile=EXACT, speed=1) as slow:
        first = chat(**body)
        partial = await interrupted(slow, first, 3)
    assert partial is not None
    assert partial.tokens == first.made
    assert first.usage is not None
    assert first.usage["completion_tokens"] == first.made
    chunks: list[Any] = []
    async with started(clock=HandClock()) as other:
        second = replace(chat(**body), resume=partial, on_chunk=lambda line: chunks.append(json.loads(bytes(line))))
        answer = json.loads((await other.run(second)).body)
    assert second.resumed_tokens == partial.tokens
    assert {**answer, "created": 0} == {**whole, "created": 0}
    for choice in answer["choices"]:
        deltas = [each["delta"] for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]


async def test_what_is_taken_over_is_read_again_and_not_made_again() -> None:
    async with started(profile=EXACT, speed=1) as slow:
        partial = await interrupted(slow, chat(max_tokens=100, ignore_eos=True), 3)
    assert partial is not None
    async with started(profile=EXACT, speed=1, clock=HandClock()) as engine:
        began = engine._clock.monotonic()
        second = replace(chat(max_tokens=100, ignore_eos=True), resume=partial)
        reply = await engine.run(second)
        took_s = engine._clock.monotonic() - began
    step_s, prompt = EXACT.step_s(1), 6
    prefill_s = (prompt + partial.tokens) * EXACT.prefill_s_per_token
    assert took_s == pytest.approx(prefill_s + (100 - partial.tokens) * step_s)
    assert reply.first_token_ms == pytest.approx((prefill_s + step_s) * 1000)


@pytest.mark.parametrize(("kv_tokens", "cost"), [(46_592, 1 / 30), (10, 1.0)])
async def test_the_engine_that_was_interrupted_reads_its_prefix_cache(kv_tokens: int, cost: float) -> None:
    profile = replace(EXACT, kv_tokens=kv_tokens)
    async with started(profile=profile, speed=1) as engine:
        partial = await interrupted(engine, chat(max_tokens=100, ignore_eos=True), 10)
        assert partial is not None
        engine._clock = HandClock()
        reply = await engine.run(replace(chat(max_tokens=100, ignore_eos=True), resume=partial))
    prefill_s = (6 + partial.tokens) * EXACT.prefill_s_per_token * cost
    assert reply.first_token_ms == pytest.approx((prefill_s + EXACT.step_s(1)) * 1000)


async def test_an_answer_of_another_request_model_or_seed_begins_anew() -> None:
    async with started(profile=EXACT, speed=1, models=("a", "b")) as slow:
        partial = await interrupted(slow, chat(model="a"), 2)
    assert partial is not None
    beyond = replace(partial, state=partial.state.replace(b'"steps":', b'"steps":999'))
    async with started(models=("a", "b")) as engine, started(models=("a", "b"), seed=5) as other:
        tries = [
            (engine, chat(model="a"), partial),
            (engine, chat(model="b"), partial),
            (engine, chat(model="a", messages=[{"role": "user", "content": "Another"}]), partial),
            (other, chat(model="a"), partial),
            (engine, chat(model="a"), beyond),
        ]
        taken = []
        for on, request, resume in tries:
            request.resume = resume
            assert (await on.run(request)).status == 200
            taken.append(request.resumed_tokens)
    assert taken == [partial.tokens, 0, 0, 0, 0]


async def test_what_generates_nothing_cannot_be_continued() -> None:
    async with started() as engine:
        generates, embeds = chat(), EngineRequest("e-1", EMBEDDINGS, {"input": "x"}, Lane.LOW)
        for request in (generates, embeds):
            assert (await engine.run(request)).status == 200
    assert (generates.continuable, embeds.continuable) == (True, False)


async def test_one_that_waits_keeps_what_it_had() -> None:
    async with started(profile=replace(EXACT, slots=1), speed=1) as slow:
        partial = await interrupted(slow, chat(max_tokens=500, ignore_eos=True), 2)
        keeper = asyncio.create_task(slow.run(chat("keeper", max_tokens=500, ignore_eos=True)))
        await eventually(lambda: slow.running == 1, 5, "the engine is full")
        waiting = replace(chat(max_tokens=500, ignore_eos=True), resume=partial)
        assert await interrupted(slow, waiting, 1) == partial
        assert waiting.usage is None
        fresh = chat("fresh")
        assert await interrupted(slow, fresh, 0) is None
        keeper.cancel()
        await asyncio.wait({keeper})


async def test_faults_hit_as_often_as_told() -> None:
    async with started() as engine:
        engine.faults.unavailable, engine.faults.retry_after_ms = 1, 250
        with pytest.raises(EngineUnavailable) as busy:
            await engine.run(chat())
        assert busy.value.retry_after_ms == 250
        engine.faults.aborts = 1
        with pytest.raises(EngineAborted):
            await engine.run(chat())
        engine.faults.errors = 1
        assert (await engine.run(chat())).status == 500
        assert (await engine.run(chat())).status == 200


@pytest.mark.parametrize("fault", [SimulatedEngine.die, SimulatedEngine.hang], ids=["death", "hang"])
async def test_death_and_hang_end_what_runs(fault: Callable[[SimulatedEngine], None]) -> None:
    async with started(speed=1, watchdog_s=1) as engine:
        failed = asyncio.create_task(engine.failed())
        running = [asyncio.create_task(engine.run(chat(f"r-{n}", max_tokens=5000))) for n in range(3)]
        await eventually(lambda: engine.running == 3)
        fault(engine)
        outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
        assert [type(outcome) for outcome in outcomes] == [EngineDied] * 3
        assert await asyncio.wait_for(failed, 5)
        with pytest.raises(EngineDied):
            await engine.run(chat())


async def test_a_hang_that_passes_is_forgotten() -> None:
    async with started() as engine:
        engine.hang()
        waiting = asyncio.create_task(engine.run(chat()))
        await asyncio.sleep(0)
        engine.resume()
        assert (await asyncio.wait_for(waiting, 5)).status == 200


async def test_not_started_is_said() -> None:
    with pytest.raises(EngineDied, match="not started"):
        await SimulatedEngine().run(chat())
    with pytest.raises(ValueError, match="speed must be more than 0"):
        SimulatedEngine(speed=0)
