"""An interrupted run of vLLM goes on. A small core stands in for vLLM's; the real one is in tests/contract."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from streamfleet.common.protocol import CHAT, RESPONSES, Lane
from streamfleet.worker.engine import vllm_host
from streamfleet.worker.engine.base import EngineRequest, Partial
from streamfleet.worker.engine.vllm_host import Hosted, Progress
from streamfleet.worker.engine.watchdog import StepLogger, Watchdog

PROMPT = list(b"SECRET, hi")
ANSWER = "é🌍 done and gone".encode()


@dataclass
class Logprob:
    """Stands in for vLLM's."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class Params:
    """Stands in for vLLM's SamplingParams."""

    max_tokens: int = len(ANSWER)
    min_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    logprobs: int | None = None
    temperature: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    skip_special_tokens: bool = True

    __struct_fields__ = ("max_tokens", "min_tokens", "stop", "logprobs", "temperature", "seed", "presence_penalty")

    def clone(self) -> Params:
        return replace(self)


class Core:
    """Generates an answer, one byte an output; a token is a byte, and its detokenizer hands on whole characters."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Params]] = []
        self.stop_after: int | None = None
        self.tokenizer = SimpleNamespace(decode=self.decode)
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 256)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(ids).decode("utf-8", "replace")

    async def generate(self, prompt: Any, params: Params, _id: str, **_: Any) -> AsyncIterator[Any]:
        self.asked.append((prompt, params))
        had = len(prompt["prompt_token_ids"]) - len(PROMPT)
        ends = had + params.max_tokens
        for at in range(had, ends if self.stop_after is None else self.stop_after):
            text = self.text(at + 1)[len(self.text(at)) :]
            entries = None if params.logprobs is None else [{ANSWER[at]: Logprob(-at / 3, 1, chr(ANSWER[at]))}]
            yield self.output(prompt, [ANSWER[at]], text, entries, "length" if at + 1 == ends else None)
        if self.stop_after is not None:
            yield self.output(prompt, [], "", None if params.logprobs is None else [], "abort")

    def encode(self) -> None: ...

    def text(self, tokens: int) -> str:
        return ANSWER[:tokens].decode("utf-8", "ignore")

    def output(self, prompt: Any, ids: list[int], text: str, logprobs: Any, finish_reason: str | None) -> Any:
        whole = prompt["prompt_token_ids"]
        choice = SimpleNamespace(token_ids=ids, text=text, logprobs=logprobs, finish_reason=finish_reason)
        return SimpleNamespace(
            outputs=[choice], prompt_token_ids=whole, num_cached_tokens=len(whole), num_cache_creation_tokens=0
        )


class Tapped:
    """The tap around a core, without an application."""

    def __init__(self) -> None:
        self.core = Core()
        self.generate = self.core.generate
        self.hosted = Hosted(self.core, SimpleNamespace(served_model_name=["m"], model="m", lora_modules=None))
        watchdog = Watchdog(60, lambda: 0.0)
        vllm_host.tap(self.hosted, watchdog, StepLogger(watchdog))

    async def run(
        self, request: EngineRequest, params: Params | None = None, after: int | None = None, **options: Any
    ) -> tuple[Progress, list[Any]]:
        """The outputs that the front end gets of a whole run, or of one that is aborted after so many tokens."""
        self.core.stop_after, progress = after, Progress(request)
        token = vllm_host.current_progress.set(progress)
        prompt = options.pop("prompt", {"type": "token", "prompt_token_ids": PROMPT, "cache_salt": "s"})
        try:
            outputs = self.core.generate(prompt, params or Params(), "r-1", **options)
            return progress, [output async for output in outputs]
        finally:
            vllm_host.current_progress.reset(token)

    async def partial(self, after: int, params: Params | None = None, **options: Any) -> Partial | None:
        """The Partial of a run that is aborted after so many tokens."""
        request = options.pop("request", None) or asks()
        progress, _ = await self.run(request, params, after, **options)
        return vllm_host.kept(self.hosted, progress)

    async def resumed(self, partial: Partial | None, params: Params | None = None, **options: Any) -> int:
        """Tokens that a run takes over; it is a whole one, and its core is asked for the rest alone."""
        request = options.pop("request", None) or asks(partial)
        progress, outputs = await self.run(request, params, **options)
        prompt, asked = self.core.asked[-1]
        had = len(prompt["prompt_token_ids"]) - len(PROMPT)
        assert had == request.resumed_tokens
        assert asked.max_tokens == (params or Params()).max_tokens - had
        choices = [choice for output in outputs for choice in output.outputs]
        assert [token for choice in choices for token in choice.token_ids] == list(ANSWER)
        assert "".join(choice.text for choice in choices) == ANSWER.decode()
        assert all(output.prompt_token_ids == PROMPT for output in outputs)
        assert (progress.prompt_tokens, request.made) == (len(PROMPT), len(ANSWER))
        return request.resumed_tokens


def asks(resume: Partial | None = None, **body: Any) -> EngineRequest:
    return EngineRequest("r-1", CHAT, {"messages": [], **body}, Lane.HIGH, resume=resume)


@pytest.fixture
def tapped(monkeypatch: pytest.MonkeyPatch) -> Tapped:
    monkeypatch.setattr(vllm_host, "find_names", lambda: SimpleNamespace(Logprob=Logprob))
    return Tapped()


# Tokens of the answer's beginnings that end with a whole character.
WHOLE = [0, 0, 2, 2, 2, 2, *range(6, len(ANSWER))]


@pytest.mark.parametrize("after", range(len(ANSWER)))
async def test_it_goes_on_after_the_last_whole_character(tapped: Tapped, after: int) -> None:
    partial = await tapped.partial(after)
    assert (partial.tokens if partial else 0) == WHOLE[after]
    assert await tapped.resumed(partial) == WHOLE[after]
    assert tapped.core.asked[-1][0]["cache_salt"] == "s"
    assert partial is None or b"SECRET" not in partial.state


async def test_it_goes_on_as_often_as_it_is_interrupted(tapped: Tapped) -> None:
    first = await tapped.partial(3)
    second = await tapped.partial(9, request=asks(first))
    assert (first and first.tokens, second and second.tokens) == (2, 9)
    assert await tapped.resumed(second) == 9


@pytest.mark.parametrize("after", range(2, 6))
async def test_what_was_kept_stays_while_the_next_run_has_no_whole_character(tapped: Tapped, after: int) -> None:
    first = await tapped.partial(2)
    assert first is not None
    assert await tapped.partial(after, request=asks(first)) == first
    assert vllm_host.kept(tapped.hosted, Progress(asks(first))) == first, "it has not even begun"


async def test_what_was_kept_stays_where_no_later_cut_is_found(tapped: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await tapped.partial(2)
    assert first is not None
    monkeypatch.setattr("streamfleet.worker.engine.partial.cut", lambda *_: 0)
    assert await tapped.partial(9, request=asks(first)) == first


async def test_a_finished_answer_is_no_part_of_one(tapped: Tapped) -> None:
    progress, _ = await tapped.run(asks())
    assert vllm_host.kept(tapped.hosted, progress) is None


async def test_log_probabilities_are_joined(tapped: Tapped) -> None:
    params = Params(logprobs=1)
    partial = await tapped.partial(8, params)
    _, outputs = await tapped.run(asks(partial), params)
    entries = [entry for output in outputs for choice in output.outputs for entry in choice.logprobs]
    assert entries == [{token: Logprob(-at / 3, 1, chr(token))} for at, token in enumerate(ANSWER)]
    assert await tapped.resumed(partial, Params(logprobs=None)) == 0, "kept ones that nobody asks for"


async def test_too_many_log_probabilities_begin_anew(tapped: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_host, "_MOST_LOGPROBS_KEPT", 8)
    assert await tapped.partial(8, Params(logprobs=1)) is not None
    assert await tapped.partial(9, Params(logprobs=1)) is None


async def test_limits_count_what_was_taken_over(tapped: Tapped) -> None:
    partial = await tapped.partial(8)
    for fewest, left in ((12, 4), (5, 0)):
        await tapped.run(asks(partial), Params(min_tokens=fewest))
        assert tapped.core.asked[-1][1].min_tokens == left
    asked = Params(max_tokens=8)
    await tapped.run(asks(partial), asked)
    assert tapped.core.asked[-1][1] is asked, "nothing is left to generate: it begins anew"


async def test_a_stop_string_is_not_cut(tapped: Tapped) -> None:
    params = Params(stop=["ne and", "x"])
    partial = await tapped.partial(len("é🌍 done a".encode()), params)
    assert partial is not None
    assert partial.tokens == len("é🌍 do".encode())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"params": Params(seed=3)}, id="seed"),
        pytest.param({"params": Params(presence_penalty=0.5)}, id="presence penalty"),
        pytest.param({"params": Params(logprobs=-1)}, id="all log probabilities"),
        pytest.param({"params": Params(logprobs=21)}, id="21 log probabilities"),
        pytest.param({"params": Params(stop=["x" * 1025])}, id="long stop string"),
        pytest.param({"prompt": {"type": "multimodal", "prompt_token_ids": PROMPT}}, id="image"),
        pytest.param(
            {"prompt": {"type": "token", "prompt_token_ids": [*PROMPT, *"🌍".encode()[:2]]}}, id="half a character"
        ),
        pytest.param({"request": EngineRequest("r-1", RESPONSES, {"input": "x"}, Lane.HIGH)}, id="responses"),
        pytest.param(
            {"request": EngineRequest("r-1", CHAT, {"tools": [{}]}, Lane.HIGH, on_chunk=print)}, id="streamed tools"
        ),
        pytest.param(
            {"request": EngineRequest("r-1", CHAT, {}, Lane.HIGH, on_chunk=print), "reasoning_parser_kwargs": {}},
            id="streamed reasoning",
        ),
    ],
)
async def test_what_cannot_go_on_begins_anew(tapped: Tapped, options: dict[str, Any]) -> None:
    plain, other = asks(), options.pop("request", None) or asks()
    assert await tapped.partial(8, request=plain) is not None
    assert await tapped.partial(8, request=other, **options) is None
    assert plain.continuable
    assert not other.continuable or options["prompt"]["type"] == "token", "the prompt's end is looked at later"


async def test_a_seed_without_chance_goes_on(tapped: Tapped) -> None:
    params = Params(seed=3, temperature=0)
    assert await tapped.resumed(await tapped.partial(8, params), params) == 8


async def test_unstreamed_tools_go_on(tapped: Tapped) -> None:
    partial = await tapped.partial(8, request=asks(tools=[{}]), reasoning_parser_kwargs={})
    assert await tapped.resumed(None, request=asks(partial, tools=[{}])) == 8


async def test_several_prompts_begin_anew(tapped: Tapped) -> None:
    tapped.core.stop_after, progress = 8, Progress(asks())
    token = vllm_host.current_progress.set(progress)
    for number in range(2):
        prompt = {"type": "token", "prompt_token_ids": PROMPT}
        assert len([each async for each in tapped.core.generate(prompt, Params(), f"r-{number}")]) == 9
    vllm_host.current_progress.reset(token)
    assert vllm_host.kept(tapped.hosted, progress) is None
    assert not progress.request.continuable


async def changed(tapped: Tapped, **fields: Any) -> Partial:
    partial = await tapped.partial(8)
    assert partial is not None
    return replace(partial, state=json.dumps({**json.loads(partial.state), **fields}).encode())


async def test_another_prompt_begins_anew(tapped: Tapped) -> None:
    """A template may write today's date into it."""
    partial = await tapped.partial(8)
    prompt = {"type": "token", "prompt_token_ids": [*PROMPT[:-1], 0]}
    request = asks(partial)
    await tapped.run(request, prompt=prompt)
    assert request.resumed_tokens == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": list(ANSWER[:4])},  # its decoding ends inside of a character: vLLM would answer with the prompt
        {"ids": [*ANSWER[:7], 256]},
        {"ids": [*ANSWER[:7], -1]},
        {"ids": []},
        {"ids": "x"},
        {"ids": None},
        {"logprobs": [1]},
        {"logprobs": [[[5]]]},
        {"logprobs": [[[5, 0.1, 1, "x"]]]},
        {"logprobs": None},
        {"model": "adapter"},
        {"engine": "simulated"},
        {"format": 2},
        {"prompt": None},
    ],
    ids=str,
)
async def test_a_state_that_does_not_fit_begins_anew(tapped: Tapped, fields: dict[str, Any]) -> None:
    assert await tapped.resumed(await changed(tapped)) == 8
    assert await tapped.resumed(await changed(tapped, **fields)) == 0


async def test_without_a_request_nothing_is_touched(tapped: Tapped) -> None:
    prompt, params = {"type": "token", "prompt_token_ids": PROMPT}, Params()
    assert len([each async for each in tapped.core.generate(prompt, params, "r-1")]) == len(ANSWER)
    assert tapped.core.asked[-1] == (prompt, params)


async def test_the_cache_counts_no_more_than_the_prompt(tapped: Tapped) -> None:
    _, outputs = await tapped.run(asks(await tapped.partial(8)))
    assert {output.num_cached_tokens for output in outputs} == {len(PROMPT)}
