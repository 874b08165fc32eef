"""The only module that uses names of vLLM.

It hosts vLLM's own OpenAI application in this process: chat templates, tools, structured outputs, logprobs, LoRA,
embeddings, exactly as `vllm serve`. These names moved between releases and will move again; `find_names` tells which
ones are missing. `tap` counts the requests inside, and the tokens of each so far; bodies and answers stay unchanged.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import structlog

from streamfleet.common.protocol import ENDPOINTS
from streamfleet.worker.engine.asgi import Application
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.engine.orphan_guard import OWNER_VARIABLE
from streamfleet.worker.engine.watchdog import Watchdog

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
}

_ID_AT = 2
"""Position of ``request_id`` among the arguments of ``generate`` and ``encode``."""


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
class Timing:
    """Progress of one request, filled in while it runs.

    Attributes:
        first_token_ms: milliseconds from submission to first token; None if the engine does not tell.
        ids: the engine's ids of its parts, one for each prompt, for `abort`.
        prompt_tokens, output_tokens: sums over all parts, as far as the engine has told.
    """

    first_token_ms: float | None = None
    ids: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0


# The application's tasks for a request inherit the context, so no ids need to be matched.
current_timing: ContextVar[Timing | None] = ContextVar("streamfleet_timing", default=None)


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
        value = next((value for place in places if (value := _look(place, name)) is not None), None)
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


def build(model: str, argv: Sequence[str], stat_logger: Any) -> Hosted:
    """Start the engine. Blocks for many seconds; the calling thread must outlive the engine.

    Args:
        model: folder or name of the model.
        argv: arguments as for `vllm serve`.
        stat_logger: gets vLLM's ``record`` call after every step.

    Raises:
        VllmArguments: an argument is unknown or has a wrong value.
        VllmMoved: see `find_names`.
        Exception: any error of vLLM at its start.
    """
    names = find_names()
    args = _parse(names, model, argv)
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
    application: Application = app
    return application


def endpoints_of(app: Any) -> tuple[str, ...]:
    """Paths of the application that requests may reach: vLLM adds the routes that its model supports."""
    return tuple(sorted(ENDPOINTS & {getattr(route, "path", "") for route in getattr(app, "routes", ())}))


def tap(engine: Any, watchdog: Watchdog) -> None:
    """Wrap ``engine.generate`` and ``engine.encode`` of this one object."""
    engine.generate = _tapped(engine.generate, watchdog)
    engine.encode = _tapped(engine.encode, watchdog)


def close_front(hosted: Hosted) -> None:
    """Stop reading the core's outputs, on the event loop: otherwise vLLM logs the end of the core as a crash."""
    handler = getattr(hosted.engine, "output_handler", None)
    if handler is not None:
        handler.cancel()


def shutdown(hosted: Hosted) -> None:
    """End the engine's processes at once. Blocks for a moment; any time-out but 0 would block for up to 16 s."""
    hosted.engine.shutdown(timeout=0)


def _tapped(method: Callable[..., Any], watchdog: Watchdog) -> Callable[..., AsyncIterator[Any]]:
    async def tapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        timing = current_timing.get()
        if timing is not None and "request_id" in kwargs:
            timing.ids.append(kwargs["request_id"])
        elif timing is not None and len(args) > _ID_AT:
            timing.ids.append(args[_ID_AT])
        first = True
        watchdog.entered()
        try:
            # Closed together with this generator; an inner one left to the garbage collector would abort its request
            # late.
            async with aclosing(method(*args, **kwargs)) as outputs:
                async for output in outputs:
                    if timing is not None:
                        _note(timing, output, first=first)
                    first = False
                    yield output
        finally:
            watchdog.left()

    return tapped


def _note(timing: Timing, output: Any, *, first: bool) -> None:
    if first:
        timing.prompt_tokens += len(getattr(output, "prompt_token_ids", None) or ())
    choices = getattr(output, "outputs", None)
    if isinstance(choices, list):  # of generated text: each output holds new tokens, a whole answer all of them
        timing.output_tokens += sum(len(getattr(choice, "token_ids", ())) for choice in choices)
    latency_s = getattr(getattr(output, "metrics", None), "first_token_latency", None)
    if timing.first_token_ms is None and isinstance(latency_s, (int, float)) and latency_s > 0:
        timing.first_token_ms = latency_s * 1000


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


def _look(place: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(place), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            return None
        raise


def _absent(error: ModuleNotFoundError) -> str:
    if error.name == "vllm":
        return "vLLM is not installed: pip install 'streamfleet[gpu]' (or [cpu]), or choose another engine"
    return f"vLLM is installed but not whole ({error}): install it again"
