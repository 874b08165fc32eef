"""Calls vLLM's serving objects for plain chats and completions, without the HTTP application around them.

The application costs 200 µs a request. The hops between the event loop and the renderer's thread cost as much again,
and let the first request of a burst wait until the loop is idle (docs/gpu.md). What is refused or fails before it is in
the engine core is left to the application, so that errors stay vLLM's own. A release that lacks one of the names here
loses this way, and no answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from streamfleet.common import metrics
from streamfleet.common.protocol import CHAT, COMPLETIONS
from streamfleet.worker.cost.shape import is_tokens
from streamfleet.worker.engine import asgi, vllm_host
from streamfleet.worker.engine.base import EngineRequest
from streamfleet.worker.engine.deltas import Deltas
from streamfleet.worker.engine.replies import error_reply
from streamfleet.worker.engine.sse_parser import SseParser

_CHAT_PROTOCOL = "vllm.entrypoints.openai.chat_completion.protocol"
_COMPLETION_PROTOCOL = "vllm.entrypoints.openai.completion.protocol"
_EMBED_PROTOCOL = "vllm.entrypoints.pooling.embed.protocol"
_CLASSES = {
    "ChatCompletionRequest": _CHAT_PROTOCOL,
    "ChatCompletionResponse": _CHAT_PROTOCOL,
    "ChatCompletionStreamResponse": _CHAT_PROTOCOL,
    "CompletionRequest": _COMPLETION_PROTOCOL,
    "CompletionResponse": _COMPLETION_PROTOCOL,
    "CompletionStreamResponse": _COMPLETION_PROTOCOL,
}
_PARTS = (
    "app.exception_handlers",
    "app.state.openai_serving_chat.create_chat_completion",
    "app.state.openai_serving_chat.get_chat_request_role",
    "app.state.openai_serving_chat.models.model_name",
    "app.state.openai_serving_chat.parser_cls",
    "app.state.openai_serving_completion.create_completion",
    "app.state.openai_serving_completion.models.model_name",
    "engine.engine_core.add_request_async",
    "engine.renderer.render_chat",
    "engine.renderer.render_chat_async",
    "engine.renderer.render_cmpl",
    "engine.renderer.render_cmpl_async",
)
"""All names inside vLLM that this way needs, of the releases 0.24 to 0.32."""

_PARSER = "vllm.parser.abstract_parser"
_OF_TEXT = frozenset(
    {
        *("add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt"),
        *("chat_template_kwargs", "continue_final_message", "frequency_penalty", "ignore_eos", "include_reasoning"),
        *("include_stop_str_in_output", "logit_bias", "max_completion_tokens", "max_tokens", "messages", "min_p"),
        *("min_tokens", "model", "parallel_tool_calls", "presence_penalty", "priority", "prompt", "reasoning_effort"),
        *("repetition_penalty", "request_id", "response_format", "seed", "session_id", "skip_special_tokens"),
        *("spaces_between_special_tokens", "stop", "stop_token_ids", "stream", "stream_interval", "stream_options"),
        *("structured_outputs", "temperature", "top_k", "top_logprobs", "top_p", "truncate_prompt_tokens"),
        *("truncation_side", "user"),
    }
)
"""Fields that change which text is generated, and nothing else of an answer."""

IN_LOOP_BYTES = 8192
"""Largest body whose prompt is rendered in the event loop. Longer ones go to vLLM's thread: its time-out for templates
holds only there."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A serving object's own: classes of a request, of its answer and of a chunk, and what they need."""

    request: Any
    answer: Any
    chunk: Any
    create: Callable[..., Awaitable[Any]]
    model_name: Callable[[Any], str]
    role: Callable[[Any], str] = lambda _: ""
    parser: Any = None

    def hands_out(self, asked: Any) -> bool:
        """True if the text that the model makes is the whole answer: one choice, nothing beside it or taken out."""
        given = {name: value for name, value in vars(asked).items() if name in asked.model_fields_set}
        prompt = given.get("prompt")
        if given.pop("n", 1) not in (None, 1) or not (prompt is None or isinstance(prompt, str) or is_tokens(prompt)):
            return False
        more = (value for name, value in given.items() if name not in _OF_TEXT)
        if not all(value is None or value is False or value in ([], "none") for value in more):
            return False
        return self.parser is None or (_leaves_text(self.parser) and asked.tool_choice == "none")


def _leaves_text(parser: Any) -> bool:
    """True if a parser takes nothing out of a chat that has no tools: of vLLM's usual kind, for tools alone, by text.

    One that is based on an engine looks for calls although there are no tools.
    """
    usual, tools = vllm_host.look(_PARSER, "DelegatingParser"), getattr(parser, "tool_parser_cls", None)
    return (
        usual is not None
        and parser.parse is usual.parse
        and parser.reasoning_parser_cls is None
        and not getattr(tools, "engine_based_streaming", True)
    )


class Direct:
    """Answers requests with the serving objects of one application.

    Args:
        hosted: the engine.
        app: its application.

    Raises:
        VllmMoved: this release lacks a name.
    """

    def __init__(self, hosted: vllm_host.Hosted, app: Any) -> None:
        found = _find(hosted, app)
        self._app = app
        state = app.state
        chat, text = state.openai_serving_chat, state.openai_serving_completion
        self._ways = {
            CHAT: _Way(
                found["ChatCompletionRequest"],
                found["ChatCompletionResponse"],
                found["ChatCompletionStreamResponse"],
                chat.create_chat_completion,
                chat.models.model_name,
                chat.get_chat_request_role,
                chat.parser_cls,
            ),
            COMPLETIONS: _Way(
                found["CompletionRequest"],
                found["CompletionResponse"],
                found["CompletionStreamResponse"],
                text.create_completion,
                text.models.model_name,
            ),
        }
        _note_what_is_in_core(hosted.engine.engine_core)
        _render_in_loop(hosted.engine.renderer)

    async def answer(
        self, request: EngineRequest, body: bytes, parser: SseParser | None, progress: vllm_host.Progress
    ) -> asgi.Response | None:
        """Returns the answer to a request; None if it has not come to the core, and the application has to answer it.

        Args:
            request: a plain one (`not_plain`).
            body: what vLLM is asked, as JSON.
            parser: gets the parts of a streamed answer; None for one that is not streamed.
            progress: of the request; the same as in the context.

        Raises:
            Exception: a streamed answer broke off.
        """
        progress.in_loop = _is_short(body)
        response = await self._asked(request, body, parser, progress)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # vLLM makes an answer of it
            raise asyncio.CancelledError
        if response is None:
            progress.ids.clear()
            progress.in_loop, progress.deltas = False, None
        return response

    async def _asked(
        self, request: EngineRequest, body: bytes, parser: SseParser | None, progress: vllm_host.Progress
    ) -> asgi.Response | None:
        way, deltas = self._ways[request.endpoint], None
        try:
            asked = way.request.model_validate({**json.loads(body), "request_id": request.id})
            if parser is not None and not request.counts_along and way.hands_out(asked):
                asked.stream, asked.stream_options = False, None
                deltas = progress.deltas = Deltas(request, way.chunk, way.role(asked), way.model_name)
            got = await way.create(asked, self._raw(request))
            if parser is not None and hasattr(got, "aclose"):
                return await _streamed(got, parser)
        except Exception as error:
            if not progress.in_core:
                return None
            if parser is not None and deltas is None:
                raise
            return await handled(self._app, error)
        if isinstance(got, way.answer):
            if deltas is not None and request.tells_usage:
                deltas.end(got)
            return asgi.Response(200, got.model_dump_json().encode())
        return asgi.Response(got.error.code, json.dumps(got.model_dump()).encode()) if progress.in_core else None

    def _raw(self, request: EngineRequest) -> Any:
        """Returns a stand-in for the HTTP request, from which vLLM reads the trace; None if there is no trace."""
        if not request.traceparent:
            return None
        return SimpleNamespace(headers={"traceparent": request.traceparent}, state=SimpleNamespace(), app=self._app)


async def handled(app: Any, error: Exception) -> asgi.Response:
    """Returns the application's own answer to an error of its serving objects."""
    handlers: Mapping[Any, Any] = app.exception_handlers
    handler = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    if handler is None:
        raise error
    answer = await handler(SimpleNamespace(app=app, state=SimpleNamespace()), error)
    return asgi.Response(answer.status_code, bytes(answer.body))


async def embed_tokens(app: Any, body: Mapping[str, Any], headers: Mapping[str, str]) -> asgi.Response | None:
    """Returns the vectors of prompts in tokens; None for any other body, which the application has to answer.

    The application tries each token as a message of every kind: 200,000 of them stop the event loop for seconds.
    """
    given, kind = body.get("input"), vllm_host.look(_EMBED_PROTOCOL, "EmbeddingCompletionRequest")
    serve = getattr(getattr(app, "state", None), "serving_embedding", None)
    lists = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    tokens = all(isinstance(each, list) and is_tokens(each) for each in lists)
    usual = "messages" not in body and body.get("encoding_format") in (None, "float", "base64")
    if not tokens or not usual or kind is None or serve is None:
        return None
    try:
        asked = kind.model_validate(body)
    except ValueError as error:  # of another field: there are few errors
        return asgi.Response(400, error_reply(400, str(error)[:500], None, "invalid_value").body)
    try:
        answer = await serve(asked, SimpleNamespace(headers=headers, state=SimpleNamespace(), app=app))
    except Exception as error:  # noqa: BLE001 - what the application has no answer to is raised again
        return await handled(app, error)
    return asgi.Response(answer.status_code, bytes(answer.body))


def opened(hosted: vllm_host.Hosted, app: Any) -> tuple[Direct | None, str]:
    """Returns the direct way into an application; else None, and why there is none."""
    if getattr(hosted.args, "middleware", None):
        return None, "--middleware has to see every request"
    if not {CHAT, COMPLETIONS} <= set(vllm_host.endpoints_of(app)):
        return None, "the model does not generate"
    try:
        return Direct(hosted, app), ""
    except vllm_host.VllmMoved as error:
        return None, str(error)


def not_plain(request: EngineRequest) -> metrics.ByApplication | None:
    """Returns why a request has to go through the application; None if it may be called directly.

    A template or media of the caller's own can take seconds to fail, and would fail twice.
    """
    body = request.body
    if request.endpoint == COMPLETIONS:
        return metrics.ByApplication.MEDIA if body.get("prompt_embeds") is not None else None
    if request.endpoint != CHAT:
        return metrics.ByApplication.ENDPOINT
    settings = body.get("chat_template_kwargs")
    if body.get("chat_template") is not None or (isinstance(settings, Mapping) and "chat_template" in settings):
        return metrics.ByApplication.TEMPLATE
    messages = body.get("messages")
    text = isinstance(messages, list) and all(map(_is_text, messages))
    return None if text else metrics.ByApplication.MEDIA


def _is_text(message: Any) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        return all(
            isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text") for part in content
        )
    return content is None or isinstance(content, str)


def _is_short(body: bytes) -> bool:
    """True if a body is short in UTF-8; in its escapes, most characters take twice as much."""
    return len(body) - 3 * body.count(b"\\u") <= IN_LOOP_BYTES


async def _streamed(parts: Any, parser: SseParser) -> asgi.Response:
    async with aclosing(parts):
        async for part in parts:
            parser.feed(part.encode())
    return asgi.Response(200, b"", streamed=True)


def _find(hosted: vllm_host.Hosted, app: Any) -> dict[str, Any]:
    found = {name: vllm_host.look(place, name) for name, place in _CLASSES.items()}
    missing = [f"{_CLASSES[name]}.{name}" for name, value in found.items() if value is None]
    root = SimpleNamespace(app=app, engine=hosted.engine)
    for path in _PARTS:
        try:
            attrgetter(path)(root)
        except AttributeError:
            missing.append(path)
    if missing:
        raise vllm_host.VllmMoved(f"this release of vLLM does not have {', '.join(missing)}")
    return found


def _note_what_is_in_core(core: Any) -> None:
    add = core.add_request_async

    async def add_request_async(*args: Any, **kwargs: Any) -> None:
        progress = vllm_host.current_progress.get()
        if progress is not None:
            progress.in_core = True  # before it is sent: what may have come there does not run again
        await add(*args, **kwargs)

    core.add_request_async = add_request_async


def _render_in_loop(renderer: Any) -> None:
    """Render short prompts where the request runs: it is in the core before the next one is rendered."""
    renderer.render_chat_async = _here(renderer.render_chat, renderer.render_chat_async)
    renderer.render_cmpl_async = _here(renderer.render_cmpl, renderer.render_cmpl_async)


def _here(render: Callable[..., Any], elsewhere: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def rendered(*args: Any, **kwargs: Any) -> Any:
        progress = vllm_host.current_progress.get()
        if progress is not None and progress.in_loop:
            return render(*args, **kwargs)
        return await elsewhere(*args, **kwargs)

    return rendered
