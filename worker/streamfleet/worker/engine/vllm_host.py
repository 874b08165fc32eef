"""The module that uses names of vLLM; `direct.py` has those that only save time.

It hosts vLLM's own OpenAI application in this process: chat templates, tools, structured outputs, logprobs, LoRA,
embeddings, exactly as `vllm serve`. These names moved between releases and will move again; `find_names` tells which
ones are missing. `tap` counts the requests inside and the tokens of each so far, and goes on with what an earlier run
of a request has generated; otherwise bodies and answers stay unchanged.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import importlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NoReturn, get_args, get_type_hints

import structlog

from streamfleet.common.protocol import CHAT, COMPLETIONS, ENDPOINTS, MESSAGES
from streamfleet.worker.engine import partial
from streamfleet.worker.engine.asgi import Application
from streamfleet.worker.engine.base import Capacity, EngineRequest, Partial
from streamfleet.worker.engine.deltas import Deltas
from streamfleet.worker.engine.orphan_guard import OWNER_VARIABLE
from streamfleet.worker.engine.watchdog import StepLogger, Watchdog

log = structlog.get_logger(__name__)

# Modules that have held each name, newest first.
_NAMES: dict[str, tuple[str, ...]] = {
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils", "vllm.utils"),
    "make_arg_parser": ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"),
    "validate_parsed_serve_args": ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"),
    "build_app": ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"),
    "init_app_state": (
        "vllm.entrypoints.launchers.api_server.app_state",
        "vllm.entrypoints.openai.api_server",
    ),
    "Logprob": ("vllm.logprobs",),
}

_ID_AT = 2
"""Position of ``request_id`` among the arguments of ``generate`` and ``encode``, after prompt and parameters."""

# Parameters with which another run can go on: they hold for each token alone, for prompt and output alike, or `_begin`
# corrects them. Any other (a seed, a presence penalty, a grammar, …) depends on where the output begins.
_CONTINUABLE = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "logit_bias",
        "allowed_token_ids",
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "logprobs",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "skip_reading_prefix_cache",
        "skip_clone",
        "output_kind",
        "output_text_buffer_length",
        "stream_interval",
        "_eos_token_id",
        "_all_stop_token_ids",
    }
)
_MOST_STOP_CHARACTERS = 1024
_MOST_LOGPROBS = 20
_MOST_LOGPROBS_KEPT = 10_000
MOST_TOKENS = 4
"""In one output of a stream: its number holds to the end, and tokens may come more slowly by then. Four save most: with
1, 2 and 4, a streamed answer of 64 tokens costs a worker 2.8, 2.0 and 1.6 ms."""
_CONTEXT_IDS = 16
"""Ids of the prompt that are decoded with those of the output: the first text depends on what is before it."""
Taken = tuple[list[int], str, list[dict[int, Any]]]
"""Ids, text and log probabilities of earlier runs."""


class VllmMoved(ImportError):
    """This release of vLLM has a name in a place that is not known here."""


class VllmArguments(ValueError):
    """vLLM does not accept these engine arguments; the message names the one at fault."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """A running vLLM engine and its description.

    Attributes:
        engine: vLLM's AsyncLLM.
        args: the parsed arguments of `vllm serve`.
    """

    engine: Any
    args: Any

    @property
    def dead(self) -> bool:
        """True if the engine core is gone."""
        return bool(self.engine.errored)

    @property
    def by_priority(self) -> bool:
        """True if it schedules by priority; otherwise it refuses requests that have one."""
        return str(getattr(self.args, "scheduling_policy", "")) == "priority"

    @property
    def reasons(self) -> bool:
        """True if a thinking budget can be obeyed; otherwise it is refused."""
        config = getattr(self.engine, "vllm_config", None)
        return bool(getattr(getattr(config, "reasoning_config", None), "enabled", False))

    @property
    def models(self) -> tuple[str, ...]:
        """Names that requests may ask for, LoRA adapters included."""
        served = self.args.served_model_name or [self.args.model]
        adapters = [module.name for module in self.args.lora_modules or []]
        return (*served, *adapters)

    @property
    def authorization(self) -> dict[str, str]:
        """The header that the application requires if vLLM was given a key, for calls from this process."""
        keys = [key for key in (self.args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]
        return {"Authorization": f"Bearer {keys[0]}"} if keys else {}

    def capacity(self) -> Capacity:
        """Capacity that the engine found at its start, all its cores together."""
        config = self.engine.vllm_config
        parallel = config.parallel_config
        cores = parallel.data_parallel_size
        if getattr(parallel, "data_parallel_external_lb", False) or getattr(parallel, "data_parallel_hybrid_lb", False):
            cores = parallel.data_parallel_size_local  # the others have front ends of their own
        return Capacity(
            slots=config.scheduler_config.max_num_seqs * cores,
            kv_tokens=_kv_tokens(config.cache_config, cores),
            max_model_len=config.model_config.max_model_len,
        )


@dataclass(slots=True)
class Generated:
    """Output of one sequence, in this run and in those that it goes on from.

    Attributes:
        prompt_ids: the prompt alone.
        params: vLLM's sampling parameters, as the request asks for them.
        ids, texts, logprobs: the output so far; no log probabilities if none were asked for.
        taken: what earlier runs have generated, until it is put before the first output of this one.
        finished: true if it has come to its own end.
    """

    prompt_ids: list[int]
    params: Any
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)
    taken: Taken | None = None
    finished: bool = False

    def add(self, output: Any) -> None:
        """Add an output; the first one begins with what was taken over, as if this run had generated it."""
        for choice in output.outputs:
            if self.taken is not None:
                ids, text, logprobs = self.taken
                self.taken = None
                choice.token_ids, choice.text = [*ids, *choice.token_ids], text + choice.text
                if choice.logprobs is not None:
                    choice.logprobs = [*logprobs, *choice.logprobs]
            self.ids += choice.token_ids
            self.texts.append(choice.text)
            self.logprobs += choice.logprobs or ()
            self.finished = choice.finish_reason not in (None, "abort")
        own = len(self.prompt_ids)
        if len(output.prompt_token_ids or ()) > own:
            output.prompt_token_ids = self.prompt_ids
            output.num_cached_tokens = min(output.num_cached_tokens or 0, own)
            output.num_cache_creation_tokens = min(output.num_cache_creation_tokens or 0, own)


@dataclass(slots=True)
class Progress:
    """Progress of one request, filled in while it runs.

    Attributes:
        request: the request; its ``made`` is kept current.
        first_token_ms: milliseconds from submission to first token; None if the engine does not tell.
        ids: the engine's ids of its parts, one for each prompt, for `abort`.
        prompt_tokens: sum over all parts, as far as the engine has told.
        generated: its output; None if no other run could go on from it.
        in_core: true once a part of it may have come to the engine core. `direct.py` sets it.
        in_loop: true if its prompt is rendered in the event loop. `direct.py` sets it.
        deltas: its chunks, if they are made of the engine's outputs. `direct.py` sets it.
    """

    request: EngineRequest
    first_token_ms: float | None = None
    ids: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    generated: Generated | None = None
    in_core: bool = False
    in_loop: bool = False
    deltas: Deltas | None = None


# The application's tasks for a request inherit the context, so no ids need to be matched.
current_progress: ContextVar[Progress | None] = ContextVar("streamfleet_progress", default=None)


def find_names() -> SimpleNamespace:
    """Returns everything used of vLLM, by name.

    Raises:
        ImportError: vLLM is not installed, or cannot be loaded; the message tells what to do.
        VllmMoved: a name is in none of the known places.
    """
    try:
        vllm = importlib.import_module("vllm")
    except ModuleNotFoundError as error:
        raise ImportError(_absent(error)) from error
    found, missing = {}, []
    for name, places in _NAMES.items():
        value = next((value for place in places if (value := look(place, name)) is not None), None)
        if value is None:
            missing.append(f"{name} (looked in {', '.join(places)})")
        found[name] = value
    if missing:
        release = getattr(vllm, "__version__", "unknown")
        raise VllmMoved(
            f"vLLM {release} does not have {'; '.join(missing)}: "
            "use a release that streamfleet's extras name, or add the place here"
        )
    return SimpleNamespace(**found)


def build(model: str, argv: Sequence[str], stat_logger: Any, reserve_percent: int = 0) -> Hosted:
    """Start the engine. Blocks for many seconds; the calling thread must outlive the engine.

    Args:
        model: folder or name of the model.
        argv: arguments as for `vllm serve`.
        stat_logger: gets vLLM's ``record`` call after every step.
        reserve_percent: if ``argv`` does not tell the most sequences, so many more than vLLM's own choice.

    Raises:
        VllmArguments: an argument is unknown or has a wrong value.
        VllmMoved: see `find_names`.
        Exception: any error of vLLM at its start.
    """
    names = find_names()
    args = _parse(names, model, argv)
    _make_room(names, args, reserve_percent)
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    try:
        engine = names.AsyncLLM.from_engine_args(
            names.AsyncEngineArgs.from_cli_args(args), stat_loggers=[lambda *_: stat_logger]
        )
    finally:
        # Processes that the worker starts later are not engine processes.
        del os.environ[OWNER_VARIABLE]
    return Hosted(engine, args)


async def open_application(hosted: Hosted, stack: AsyncExitStack) -> Application:
    """Returns vLLM's OpenAI application around the engine, and registers its clean-up on ``stack``."""
    names = find_names()
    tasks = await hosted.engine.get_supported_tasks()
    app = names.build_app(hosted.args, tasks, hosted.engine.model_config)
    await names.init_app_state(hosted.engine, app.state, hosted.args, tasks)
    app.state.server = SimpleNamespace(should_exit=False)  # vLLM sets it to tell uvicorn that the engine died
    await stack.enter_async_context(app.router.lifespan_context(app))
    _cache_variables(stack)
    application: Application = app
    return application


def _cache_variables(stack: AsyncExitStack) -> None:
    """Read vLLM's environment variables for the last time: it asks for one of them at each token, for 1.5 µs."""
    enable, disable = look("vllm.envs", "enable_envs_cache"), look("vllm.envs", "disable_envs_cache")
    if enable is not None:
        enable()
        if disable is not None:
            stack.callback(disable)


def endpoints_of(app: Any) -> tuple[str, ...]:
    """Paths of the application that requests may reach: vLLM adds the routes that its model supports."""
    return tuple(sorted(ENDPOINTS & {getattr(route, "path", "") for route in getattr(app, "routes", ())}))


def fields_of(app: Any) -> dict[str, list[str]]:
    """Names of the fields that vLLM's request models have, by endpoint; it ignores all others."""
    found: dict[str, list[str]] = {}
    for route in getattr(app, "routes", ()):
        if (path := getattr(route, "path", "")) not in ENDPOINTS:
            continue
        with contextlib.suppress(NameError, TypeError):  # a handler whose annotations cannot be read
            models = [
                model
                for hint in get_type_hints(getattr(route, "endpoint", None)).values()
                for model in _models_in(hint)
            ]
            fields = [each for model in models for each in model.model_fields.items()]
            found[path] = sorted({text for name, field in fields for text in (name, field.alias) if text})
    return {path: names for path, names in found.items() if names}


def _models_in(hint: Any) -> list[Any]:
    if hasattr(hint, "model_fields"):
        return [hint]
    return [model for part in get_args(hint) for model in _models_in(part)]


def loads_adapters() -> bool:
    """True if vLLM's plugins may load an adapter when the first request asks for it."""
    return os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").strip().lower() in {"1", "true"}  # as vLLM reads it


def tap(hosted: Hosted, watchdog: Watchdog, steps: StepLogger) -> None:
    """Wrap ``generate`` and ``encode`` of this one engine."""
    engine = hosted.engine
    engine.generate = _tapped(engine.generate, watchdog, hosted, steps)
    engine.encode = _tapped(engine.encode, watchdog)


def kept(hosted: Hosted, progress: Progress) -> Partial | None:
    """Returns what a request has generated, cut where another run can go on; None if that must begin anew."""
    request, generated = progress.request, progress.generated
    # What this run was to go on from still holds, unless it was of no use.
    earlier = request.resume if request.resumed_tokens or not progress.ids else None
    if generated is None or not generated.ids:
        return earlier
    decode = _decoder(hosted, generated)
    logprobs = generated.logprobs
    if generated.finished or decode is None or sum(map(len, logprobs)) > _MOST_LOGPROBS_KEPT:
        return earlier
    tokens = partial.cut(generated.ids, "".join(generated.texts), decode, generated.params.stop)
    if tokens <= request.resumed_tokens:
        return earlier
    return partial.pack(
        _identity(hosted, request),
        tokens,
        prompt=_digest(generated.prompt_ids),
        ids=generated.ids[:tokens],
        logprobs=[
            [[token, each.logprob, each.rank, each.decoded_token] for token, each in position.items()]
            for position in logprobs[:tokens]
        ],
    )


def close_front(hosted: Hosted) -> None:
    """Stop reading the core's outputs, on the event loop: otherwise vLLM logs the end of the core as a crash."""
    handler = getattr(hosted.engine, "output_handler", None)
    if handler is not None:
        handler.cancel()


def shutdown(hosted: Hosted) -> None:
    """End the engine's processes at once. Blocks for a moment; any time-out but 0 would block for up to 16 s."""
    hosted.engine.shutdown(timeout=0)


def _tapped(
    method: Callable[..., Any], watchdog: Watchdog, hosted: Hosted | None = None, steps: StepLogger | None = None
) -> Callable[..., AsyncIterator[Any]]:
    """Returns the method with its requests counted; where ``hosted`` is given, they go on from earlier runs."""

    async def tapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        progress, generated, deltas = current_progress.get(), None, None
        if progress is not None and "request_id" in kwargs:
            progress.ids.append(kwargs["request_id"])
        elif progress is not None and len(args) > _ID_AT:
            progress.ids.append(args[_ID_AT])
            if hosted is not None and steps is not None:
                deltas = progress.deltas
                _stream(progress, *args[1:], token_s=steps.token_s, **kwargs)
                args = (*_begin(hosted, progress, *args[:_ID_AT], **kwargs), *args[_ID_AT:])
                generated = progress.generated
        first = True
        watchdog.entered()
        try:
            # Closed together with this generator; an inner one left to the garbage collector would abort its request
            # late.
            async with aclosing(method(*args, **kwargs)) as outputs:
                async for output in outputs:
                    if progress is not None:
                        _note(progress, output, first=first)
                    if generated is not None:
                        generated.add(output)
                    first = False
                    if deltas is None or deltas.add(output):
                        yield output
        finally:
            watchdog.left()

    return tapped


def _begin(hosted: Hosted, progress: Progress, prompt: Any, params: Any, **options: Any) -> tuple[Any, Any]:
    """Returns prompt and parameters of a run, with what an earlier run has generated at the end of the prompt.

    The front end gets the whole output all the same (`Generated.add`): text, log probabilities, parsers, token counts.
    """
    request = progress.request
    progress.generated, request.continuable = None, False
    if (
        len(progress.ids) > 1  # several prompts
        or request.endpoint not in (CHAT, COMPLETIONS, MESSAGES)
        or (request.streams and _parses(request, options))
        or not isinstance(prompt, dict)
        or prompt.get("type") != "token"  # not of text alone
        or not _continuable(params)
    ):
        return prompt, params
    request.continuable = True
    progress.generated = generated = Generated(prompt["prompt_token_ids"], params)
    state = partial.unpack(request.resume, _identity(hosted, request)) if request.resume is not None else None
    generated.taken = None if state is None else _taken_over(hosted, generated, state)
    if generated.taken is None:
        return prompt, params
    ids = generated.taken[0]
    request.resumed_tokens = request.made = len(ids)
    params = params.clone()
    params.max_tokens -= len(ids)
    params.min_tokens = max(0, params.min_tokens - len(ids))
    return {**prompt, "prompt_token_ids": [*generated.prompt_ids, *ids]}, params


def _parses(request: EngineRequest, options: Mapping[str, Any]) -> bool:
    """True if a parser reads the output; not every one takes many tokens of a stream at once."""
    return bool(request.body.get("tools")) or options.get("reasoning_parser_kwargs") is not None


def _stream(progress: Progress, params: Any, engine_id: str, *_: Any, token_s: float, **options: Any) -> None:
    """Let vLLM yield new tokens where they are wanted, no more often than a reader gets a chunk: each costs 20 µs here.

    A caller's own `stream_interval` counts if it is shorter. A release that has none yields each token.
    """
    request = progress.request
    if progress.deltas is not None:
        params.output_kind = type(params.output_kind).DELTA
        progress.deltas.begin(engine_id, options.get("lora_request"))
    if request.streams and request.chunk_every_s and hasattr(params, "stream_interval"):
        most = min(MOST_TOKENS, max(1, round(request.chunk_every_s / token_s))) if token_s else MOST_TOKENS
        usual = most if token_s and not _parses(request, options) else 1
        params.stream_interval = min(most, params.stream_interval or usual)


def _continuable(params: Any) -> bool:
    """True if a run with these sampling parameters can go on from an earlier one as if it were the same."""
    others, plain = _others(params.__class__, without_chance=params.temperature == 0)
    return (
        others(params) == plain
        and sum(map(len, params.stop)) <= _MOST_STOP_CHARACTERS
        and 0 <= (params.logprobs or 0) <= _MOST_LOGPROBS
    )


@cache
def _others(kind: Any, *, without_chance: bool) -> tuple[Callable[[Any], Any], Any]:
    """Returns a function that reads what is not in `_CONTINUABLE`, and what it reads of plain parameters."""
    known = _CONTINUABLE | ({"seed"} if without_chance else set())
    others = attrgetter(*(name for name in kind.__struct_fields__ if name not in known))
    return others, others(kind())


def _decoder(hosted: Hosted, generated: Generated) -> Callable[[Sequence[int]], str] | None:
    """Returns the function from output ids to their text; None if the prompt ends inside of a character."""
    tokenizer, skip = hosted.engine.tokenizer, generated.params.skip_special_tokens
    context = generated.prompt_ids[-_CONTEXT_IDS:]
    before = tokenizer.decode(context, skip_special_tokens=skip)

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode([*context, *ids], skip_special_tokens=skip)
        return text[len(before) :]

    return decode if partial.complete(before) else None


def _taken_over(hosted: Hosted, generated: Generated, state: Mapping[str, Any]) -> Taken | None:
    """Returns ids, text and log probabilities to go on from; None if they do not fit this run."""
    params, decode, logprob = generated.params, _decoder(hosted, generated), find_names().Logprob
    try:
        ids = [int(token) for token in state["ids"]]
        logprobs = [{int(token): logprob(*each) for token, *each in position} for position in state["logprobs"]]
    except (KeyError, TypeError, ValueError):
        return None
    fits = (
        decode is not None
        and state.get("prompt") == _digest(generated.prompt_ids)
        and 0 < len(ids) < (params.max_tokens or 0)
        and 0 <= min(ids) <= max(ids) < hosted.engine.model_config.get_vocab_size()
        and len(logprobs) == (0 if params.logprobs is None else len(ids))
    )
    if not fits or decode is None:
        return None
    # As vLLM decodes it: from a text that ends inside of a character, its detokenizer hands out the whole prompt.
    whole = hosted.engine.tokenizer.decode(
        [*generated.prompt_ids, *ids], skip_special_tokens=params.skip_special_tokens
    )
    return (ids, decode(ids), logprobs) if partial.complete(whole) else None


def _identity(hosted: Hosted, request: EngineRequest) -> dict[str, Any]:
    return partial.identity("vllm", str(request.body.get("model") or hosted.models[0]), request)


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(array.array("q", ids).tobytes()).hexdigest()


def _note(progress: Progress, output: Any, *, first: bool) -> None:
    if first:
        prompt_ids = getattr(output, "prompt_token_ids", None) or ()
        progress.prompt_tokens += len(prompt_ids) - progress.request.resumed_tokens
    choices = getattr(output, "outputs", None)
    if isinstance(choices, list):  # of generated text: each output holds new tokens, a whole answer all of them
        progress.request.made += sum(len(getattr(choice, "token_ids", ())) for choice in choices)
    latency_s = getattr(getattr(output, "metrics", None), "first_token_latency", None)
    if progress.first_token_ms is None and isinstance(latency_s, (int, float)) and latency_s > 0:
        progress.first_token_ms = latency_s * 1000


def _parse(names: SimpleNamespace, model: str, argv: Sequence[str]) -> Any:
    parser = names.make_arg_parser(names.FlexibleArgumentParser(prog="vllm"))

    def refuse(message: str) -> NoReturn:
        raise VllmArguments(f"vLLM does not take these engine arguments: {message}")

    parser.error = refuse
    try:
        args = parser.parse_args([model, *argv])
        args.model = args.model_tag
        names.validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        if isinstance(error, VllmArguments):
            raise
        raise VllmArguments(f"vLLM does not take these engine arguments: {error}") from error
    return args


def _make_room(names: SimpleNamespace, args: Any, reserve_percent: int) -> None:
    """Raise two limits of vLLM's own choice, unless the arguments tell them.

    The most sequences grow by the reserve. Without chunked prefill, a step must hold a whole prompt and a token of each
    running sequence: otherwise a long answer that goes on waits, and all behind it, until others end.
    """
    whole = args.enable_chunked_prefill is False and args.max_num_batched_tokens is None
    if not whole and not reserve_percent:
        return
    chosen = names.AsyncEngineArgs.from_cli_args(args).create_engine_config()
    if args.max_num_seqs is None:
        sequences = chosen.scheduler_config.max_num_seqs
        args.max_num_seqs = sequences + sequences * reserve_percent // 100
    if whole:
        least = chosen.model_config.max_model_len + args.max_num_seqs
        args.max_num_batched_tokens = max(chosen.scheduler_config.max_num_batched_tokens, least)


def _kv_tokens(cache: Any, cores: int) -> int | None:
    """Tokens of the KV caches of all cores; None if the model has none."""
    told = getattr(cache, "kv_cache_size_tokens", None)  # of one core, by vLLM's own function
    if told:
        return int(told * cores)
    blocks, block_size = cache.num_gpu_blocks or 0, cache.block_size or 0  # of all cores, added up
    if blocks <= cores or not block_size:  # a core without a KV cache has one empty block
        return None
    log.warning("kv_capacity_by_blocks", reason="vLLM does not tell it; too much for models of several kinds of layers")
    return int(blocks * block_size)


def look(place: str, name: str) -> Any:
    """Returns what a module of vLLM has under a name; None if it, or the module, is not there."""
    try:
        return getattr(importlib.import_module(place), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            return None
        raise


def _absent(error: ModuleNotFoundError) -> str:
    if error.name == "vllm":
        return "vLLM is not installed: pip install '.[gpu]' (or [cpu]) in a clone, or choose another engine"
    return f"vLLM is installed but not whole ({error}): install it again"
