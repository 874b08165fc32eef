"""A simulated engine: the latency of a measured one, and answers that are marked as simulated.

For tests, load tests and capacity planning. It batches continuously as vLLM does: requests join and leave
between steps, a step takes longer the more sequences it runs, and waiting requests enter by priority.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from streamfleet.common import message_events
from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.numbers import BYTES_PER_TOKEN
from streamfleet.common.protocol import CHAT, EMBEDDINGS, MESSAGES, RESPONSES
from streamfleet.common.response_events import TEXT_DELTA, events_of
from streamfleet.worker.engine import partial, simulated_api
from streamfleet.worker.engine.base import (
    Capacity,
    EngineAborted,
    EngineDied,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
    Partial,
    Text,
)
from streamfleet.worker.engine.replies import encode_body, error_reply, refuse_endpoint
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU, Profile
from streamfleet.worker.engine.watchdog import Watchdog

_CHECK_S = 0.05
BLOCK_TOKENS = 16
"""Tokens of a block of the prefix cache."""
_BLOCK_BYTES = BYTES_PER_TOKEN * BLOCK_TOKENS
_CACHED = 1 / 30  # time to read a token from the prefix cache, of reading it anew; on vLLM 106 ms for 1,500
_SHORTEST_SLEEP_S = 0.005  # below it, several steps go into one sleep: timers are no finer


@dataclass(slots=True)
class Faults:
    """Faults to inject; each count goes down by one with each request that it hits.

    Attributes:
        unavailable: number of requests to refuse, as a busy server does.
        retry_after_ms: Retry-After of these refusals.
        aborts: number of requests to drop, as an engine does that shuts down.
        errors: number of requests to answer with a 500.
    """

    unavailable: int = 0
    retry_after_ms: int | None = None
    aborts: int = 0
    errors: int = 0


@dataclass(slots=True)
class _Job:
    plan: simulated_api.Plan
    done: asyncio.Future[None]
    submitted_s: float
    steps_left: int
    chunks: _Chunks | _Events | None = None
    cached_tokens: int = 0
    first_token_ms: float | None = field(default=None)

    @property
    def made(self) -> int:
        """Output tokens so far, of all sequences."""
        return self.plan.tokens_after(self.plan.steps - self.steps_left)

    @property
    def texts(self) -> list[str]:
        """Each prompt, with what was generated of its first answer."""
        return simulated_api.texts_after(self.plan, self.plan.steps - self.steps_left)


class SimulatedEngine:
    """Answers at the speed of a profile. Deterministic for a seed and the same order of requests.

    Args:
        profile: speed and capacity.
        seed: seed of the jitter and of the lengths of answers.
        speed: factor over the profile's speed; ``float("inf")`` for no latency at all.
        models: names that requests may ask for. Answers always say ``simulated``.
        embeddings: true if it serves embeddings; a model that generates usually does not.
        watchdog_s: seconds without a step, with requests inside, after which it counts as hung.
        clock: source of time, also between steps.
    """

    kind: str = "simulated"

    def __init__(
        self,
        profile: Profile = SMOLLM2_135M_CPU,
        seed: int = 0,
        *,
        speed: float = 1.0,
        models: tuple[str, ...] = (simulated_api.MODEL,),
        embeddings: bool = True,
        watchdog_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be more than 0, not {speed}")
        self.models = models
        self.endpoints = tuple(each for each in simulated_api.SERVED if embeddings or each != EMBEDDINGS)
        self.faults = Faults()
        self._profile = profile
        self._seed = seed
        self._speed = speed
        self._clock = clock or SystemClock()
        self._chance = random.Random(seed)  # noqa: S311 - not for secrets
        self._watchdog = Watchdog(watchdog_s, self._clock.monotonic)
        self._waiting: list[tuple[int, int, _Job]] = []
        self._order = count()
        self._running: list[_Job] = []
        self._cache = PrefixCache()
        self._arrived = asyncio.Event()
        self._moving = asyncio.Event()
        self._moving.set()
        self._dead = asyncio.Event()
        self._reason: str | None = "the simulated engine is not started: await start() first"
        self._loop: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Number of sequences that run now."""
        return sum(job.plan.sequences for job in self._running)

    @property
    def kv_use(self) -> float:
        """Part of the KV cache that running requests have reserved, 0 to 1."""
        return min(1.0, self._kv_tokens() / self._profile.kv_tokens)

    async def start(self) -> None:
        """Open for requests, at once."""
        self._reason = None
        self._loop = asyncio.create_task(self._steps())

    async def run(self, request: EngineRequest) -> EngineReply:
        """Answer one request in simulated time. Cancelling the task removes it at once.

        Every answer can be continued: the same request has the same answer.

        Raises:
            EngineDied: after `die`.
            EngineUnavailable, EngineAborted: as `faults` asks.
        """
        if self._reason is not None:
            raise EngineDied(self._reason)
        plan = self._admit(request)
        if isinstance(plan, EngineReply):
            return plan
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        created_s = self._clock.now_ms() // 1000
        chunks: _Chunks | _Events | None = None
        if request.streams:
            chunks = (
                _Events(plan, created_s, self._clock)
                if request.endpoint in (RESPONSES, MESSAGES)
                else _Chunks(plan, created_s)
            )
        job = _Job(plan, done, self._clock.monotonic(), plan.steps - self._steps_taken_over(plan), chunks)
        request.resumed_tokens = request.made = job.made
        request.continuable = bool(plan.lengths) and not (request.streams and request.endpoint == RESPONSES)
        request.snapshot = lambda: self._snapshot(job)
        heappush(self._waiting, (request.priority, next(self._order), job))
        self._watchdog.entered()
        self._arrived.set()
        try:
            await done
        except asyncio.CancelledError:
            if job in self._running:
                request.used(plan.prompt_tokens, request.made)
            request.partial = request.snapshot()
            raise
        finally:
            self._watchdog.left()
            self._keep(job)
            self._drop(job)
        if self.faults.aborts > 0:
            self.faults.aborts -= 1
            raise EngineAborted("the simulated engine dropped the request")
        if chunks is not None:
            chunks.end(job.cached_tokens)
        answer = simulated_api.answer(plan, created_s, job.cached_tokens)
        return EngineReply(200, answer, job.first_token_ms)

    def capacity(self) -> Capacity:
        """Capacity of the profile."""
        return Capacity(self._profile.slots, self._profile.kv_tokens, self._profile.max_model_len)

    async def failed(self) -> str:
        """Return the reason once the engine is dead or hangs."""
        while self._reason is None:
            reason = self._watchdog.check()
            if reason is not None:
                self.die(reason)
                break
            await self._wait_dead()
        return self._reason or "the simulated engine died"

    async def stop(self) -> None:
        """End it, with all that runs in it."""
        self.die("the simulated engine was stopped")
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})

    def die(self, reason: str = "the simulated engine was told to die") -> None:
        """Fault: all requests inside fail, and new ones are refused."""
        self._reason = self._reason or reason
        self._dead.set()
        for job in [*self._running, *(job for *_, job in self._waiting)]:
            if not job.done.done():
                job.done.set_exception(EngineDied(self._reason))

    def hang(self) -> None:
        """Fault: no step from now on, and no error."""
        self._moving.clear()

    def resume(self) -> None:
        """End a hang."""
        self._moving.set()

    def _admit(self, request: EngineRequest) -> simulated_api.Plan | EngineReply:
        if self.faults.unavailable > 0:
            self.faults.unavailable -= 1
            raise EngineUnavailable("the simulated engine is busy", self.faults.retry_after_ms)
        if self.faults.errors > 0:
            self.faults.errors -= 1
            return error_reply(500, "the simulated engine failed on this request", None, "engine_error")
        encoded = encode_body(request.body)
        if isinstance(encoded, EngineReply):
            return encoded
        refusal = refuse_endpoint(request.endpoint)
        if refusal is None and request.endpoint == EMBEDDINGS and EMBEDDINGS not in self.endpoints:
            refusal = error_reply(404, "this model does not serve embeddings", "endpoint", "unknown_endpoint")
        return refusal or simulated_api.plan(request, self.models, self._profile.max_model_len, self._seed)

    def _identity(self, plan: simulated_api.Plan) -> dict[str, Any]:
        # With another seed, the same request has another answer.
        return {**partial.identity(self.kind, self._model(plan), plan.request), "lengths": list(plan.lengths)}

    def _snapshot(self, job: _Job) -> Partial | None:
        if job.steps_left <= 0 or not job.plan.request.continuable:
            return None
        return partial.pack(self._identity(job.plan), job.made, steps=job.plan.steps - job.steps_left)

    def _steps_taken_over(self, plan: simulated_api.Plan) -> int:
        """Returns the number of steps that earlier runs have made; 0 to begin anew."""
        if plan.request.resume is None or (plan.request.streams and plan.request.endpoint == RESPONSES):
            return 0
        steps = (partial.unpack(plan.request.resume, self._identity(plan)) or {}).get("steps")
        return steps if isinstance(steps, int) and 0 < steps < plan.steps else 0

    async def _wait_dead(self) -> None:
        try:
            await asyncio.wait_for(self._dead.wait(), _CHECK_S)
        except TimeoutError:
            return

    async def _steps(self) -> None:
        while True:
            if not self._running and not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await self._moving.wait()
            await self._step()
            self._watchdog.stepped()

    async def _step(self) -> None:
        joined = self._join()
        prefill_s = sum(map(self._read, joined)) * self._profile.prefill_s_per_token
        each_s = self._profile.step_s(max(1, self.running)) * max(0.1, self._chance.gauss(1, self._profile.jitter))
        steps = self._stride(each_s)
        await self._clock.sleep((prefill_s + steps * each_s) / self._speed)
        first_s = self._clock.monotonic() - (steps - 1) * each_s / self._speed  # a late timer makes the token late
        for job in joined:
            job.first_token_ms = max(0.0, (first_s - job.submitted_s) * 1000)
            if job.chunks is not None and job.steps_left < job.plan.steps and not job.done.done():
                job.chunks.make(job.plan.steps - job.steps_left)
        for job in list(self._running):
            if job.chunks is not None and not job.done.done():
                job.chunks.make(min(steps, job.steps_left))
            job.steps_left -= steps
            job.plan.request.made = job.made
            if job.steps_left <= 0:
                self._running.remove(job)
                if not job.done.done():
                    job.done.set_result(None)

    def _join(self) -> list[_Job]:
        """Let waiting requests in as far as they fit, most urgent first; none passes one that does not fit."""
        joined = []
        while self._waiting:
            job = self._waiting[0][2]
            fits = (
                self.running + job.plan.sequences <= self._profile.slots
                and self._kv_tokens() + job.plan.kv_tokens <= self._profile.kv_tokens
            )
            if self._running and not fits:
                break
            heappop(self._waiting)
            self._running.append(job)
            joined.append(job)
        return joined

    def _read(self, job: _Job) -> float:
        """Tokens to read before the first one; those that are in the prefix cache cost little."""
        tokens = job.plan.prompt_tokens + job.plan.request.resumed_tokens
        found = sum(self._cache.found(self._model(job.plan), text) for text in job.texts)
        cached, job.cached_tokens = min(found, tokens), min(found, job.plan.prompt_tokens)
        self._keep(job)
        return tokens - cached + cached * _CACHED

    def _keep(self, job: _Job) -> None:
        """Put what a job has read and generated into the prefix cache, beside what running jobs are to generate."""
        if job.plan.lengths:
            for text in job.texts:
                self._cache.add(self._model(job.plan), text)
            self._cache.shrink(self._profile.kv_tokens - sum(sum(each.plan.lengths) for each in self._running))

    def _model(self, plan: simulated_api.Plan) -> str:
        return str(plan.request.body.get("model") or self.models[0])

    def _kv_tokens(self) -> int:
        return sum(job.plan.kv_tokens for job in self._running)

    def _stride(self, each_s: float) -> int:
        """Number of steps to make in one sleep: never past the next request that ends."""
        left = min((job.steps_left for job in self._running), default=1)
        wall_s = each_s / self._speed
        return left if wall_s == 0 else max(1, min(left, int(_SHORTEST_SLEEP_S / wall_s)))

    def _drop(self, job: _Job) -> None:
        if job in self._running:
            self._running.remove(job)
        waiting = [entry for entry in self._waiting if entry[2] is not job]
        if len(waiting) != len(self._waiting):
            waiting.sort(key=lambda entry: entry[:2])  # a sorted list is a heap
            self._waiting = waiting


class _Chunks:
    """The chunks of one streamed answer, in the order of its tokens; the words are those of a whole answer.

    Args:
        plan: what is answered.
        created_s: epoch seconds of the answer.
    """

    def __init__(self, plan: simulated_api.Plan, created_s: int) -> None:
        self._request: EngineRequest = plan.request
        self._on_chunk = plan.request.on_chunk or (lambda _: None)
        self._plan = plan
        self._chat = plan.request.endpoint == CHAT
        self._tokens = [text.split(" ") for text in simulated_api.texts(plan)]
        self._made = 0
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{plan.request.id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created_s,
            "model": simulated_api.MODEL,
            "system_fingerprint": simulated_api.MODEL,
        }

    def make(self, steps: int) -> None:
        """Hand on what so many more steps add to each choice, as one chunk a choice."""
        if self._made == 0 and self._chat:
            role = {"role": "assistant", "content": ""}
            self._hand_on([self._choice(index, role) for index in self._indexes], self._usage(0))
        first, self._made = self._made, self._made + steps
        for index in self._indexes:
            tokens = self._tokens[index][first : self._made]
            if tokens:
                text = (" " if first else "") + " ".join(tokens)
                if len(self._tokens) == 1 and not self._request.counts_along:
                    self._on_chunk(Text(text, self._chunk_of_text))
                else:
                    self._hand_on([self._choice(index, {"content": text} if self._chat else text)], self._usage(index))

    def end(self, cached_tokens: int) -> None:
        """Hand on how the answer ended, and how many of its prompt's tokens were cached."""
        for index in self._indexes:
            choice = self._choice(index, {} if self._chat else "", self._plan.finish_reasons[index])
            self._hand_on([choice], self._usage(index))
        if self._request.tells_usage:
            self._hand_on([], simulated_api.usage_of(self._plan, cached_tokens))

    @property
    def _indexes(self) -> range:
        return range(len(self._tokens))

    def _usage(self, index: int) -> dict[str, Any] | None:
        """Tokens of a choice so far, for callers that ask for them in each chunk."""
        return simulated_api.usage_so_far(self._plan, index, self._made) if self._request.counts_along else None

    def _choice(self, index: int, says: Any, finish_reason: str | None = None) -> dict[str, Any]:
        name = "delta" if self._chat else "text"
        return {"index": index, name: says, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        more = {} if usage is None else {"usage": usage}
        return json.dumps({**self._head, "choices": choices, **more}, separators=(",", ":")).encode("ascii")

    def _chunk_of_text(self, text: str) -> bytes:
        return self._chunk([self._choice(0, {"content": text} if self._chat else text)])

    def _hand_on(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> None:
        self._on_chunk(self._chunk(choices, usage))


class _Events:
    """The events of one streamed response or message, as often as a reader gets them.

    Args:
        plan: what is answered.
        created_s: epoch seconds of the answer.
        clock: source of time.
    """

    def __init__(self, plan: simulated_api.Plan, created_s: int, clock: Clock) -> None:
        self._plan, self._created_s, self._clock = plan, created_s, clock
        self._request = plan.request
        events, kinds = self._whole(), (TEXT_DELTA, message_events.DELTA)
        at = next(number for number, event in enumerate(events) if event["type"] in kinds)
        self._begin, self._delta = events[:at], events[at]
        self._after = len(events) - at - 1
        (text,) = simulated_api.texts(plan)
        self._tokens = text.split(" ")
        self._made = self._told = self._events = 0
        self._due_at = 0.0

    def make(self, steps: int) -> None:
        """Hand on what so many more steps add to the text."""
        if not self._made:
            self._hand_on(*self._begin)
        self._made += steps
        if self._clock.monotonic() >= self._due_at:
            self._tell()

    def end(self, cached_tokens: int) -> None:
        """Hand on the rest of the text, and the whole response."""
        self._tell()
        self._hand_on(*self._whole(cached_tokens)[-self._after :])

    def _whole(self, cached_tokens: int = 0) -> list[dict[str, Any]]:
        if self._request.endpoint == MESSAGES:
            return message_events.events_of(simulated_api.message(self._plan, cached_tokens))
        return events_of(simulated_api.response(self._plan, self._created_s, cached_tokens))

    def _tell(self) -> None:
        first, self._told = self._told, self._made
        if tokens := self._tokens[first : self._told]:
            text = (" " if first else "") + " ".join(tokens)
            delta = {"type": "text_delta", "text": text} if self._request.endpoint == MESSAGES else text
            self._hand_on({**self._delta, "delta": delta})
            self._due_at = self._clock.monotonic() + self._request.chunk_every_s

    def _hand_on(self, *events: dict[str, Any]) -> None:
        for event in events:
            number = {} if self._request.endpoint == MESSAGES else {"sequence_number": self._events}
            chunk = json.dumps({**event, **number}, separators=(",", ":"))
            self._events += 1
            if self._request.on_chunk is not None:
                self._request.on_chunk(chunk.encode("ascii"))


class PrefixCache:
    """Prefix cache: blocks of tokens, each found by all the text up to its end, as in vLLM. Pure.

    Texts are added as they are read and written; a prompt that begins like one of them has these tokens for free.
    Blocks that were not used for longest go first.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def found(self, model: str, text: str) -> int:
        """Tokens of a prompt that are here. Never all of them: the last one has to be computed for the next."""
        blocks = 0
        for block in _blocks(model, text, less=1):
            if block not in self._blocks:
                break
            self._use(block)
            blocks += 1
        return blocks * BLOCK_TOKENS

    def add(self, model: str, text: str) -> None:
        """Add a text that the engine has read or written."""
        # From its end: the beginning, which more texts share, has to outlive the rest.
        for block in reversed([*_blocks(model, text)]):
            self._use(block)

    def shrink(self, most_tokens: int) -> None:
        """Drop what exceeds so many tokens."""
        while len(self._blocks) > max(0, most_tokens // BLOCK_TOKENS):
            self._blocks.popitem(last=False)

    def _use(self, block: int) -> None:
        self._blocks[block] = None
        self._blocks.move_to_end(block)


def _blocks(model: str, text: str, less: int = 0) -> Iterator[int]:
    """Digests of the whole blocks in all bytes of a text but the last `less`; an adapter shares none with others."""
    raw, digest = text.encode("utf-8", "surrogatepass"), hash(model)
    for end in range(_BLOCK_BYTES, len(raw) - less + 1, _BLOCK_BYTES):
        digest = hash((digest, raw[end - _BLOCK_BYTES : end]))
        yield digest
