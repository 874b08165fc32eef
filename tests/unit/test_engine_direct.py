"""Requests that call vLLM's serving objects, and those that must not. Small objects stand in for vLLM's; the real ones
are in tests/contract/test_both_ways.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamfleet.common import metrics
from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, Lane
from streamfleet.worker.engine import asgi, vllm, vllm_host
from streamfleet.worker.engine.asgi import Receive, Send
from streamfleet.worker.engine.base import EngineDied, EngineReply, EngineRequest
from streamfleet.worker.engine.vllm import VllmEngine

ASKED = {"messages": [{"role": "user", "content": "Hi"}]}


class Answer:
    """Stands in for the classes of a request and of its answer."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.__dict__.update(body)
        self.body, self.model_fields_set = body, set(body)

    @classmethod
    def model_validate(cls, body: dict[str, Any]) -> Answer:
        if body.get("temperature") == -1:
            raise ValueError("temperature")
        return cls(body)

    def model_dump_json(self, **_: bool) -> str:
        return json.dumps(self.body)


class Refusal:
    """Stands in for vLLM's ErrorResponse."""

    error = SimpleNamespace(code=418)

    def model_dump(self) -> dict[str, Any]:
        return {"error": {"message": "no", "code": 418}}


class Server:
    """Stands in for vLLM's engine and application: `does` is what its serving objects do with a request."""

    def __init__(self) -> None:
        self.errored = False
        self.by_application = 0
        self.sent: list[str] = []
        self.rendered: list[str] = []
        self.raws: list[Any] = []
        self.does: Callable[[Any], Any] = self.succeeds
        self.engine_core = SimpleNamespace(add_request_async=self._add)
        self.renderer = SimpleNamespace(
            render_chat=lambda: self.rendered.append("in the loop"),
            render_cmpl=lambda: self.rendered.append("in the loop"),
            render_chat_async=self._render_elsewhere,
            render_cmpl_async=self._render_elsewhere,
        )
        models = SimpleNamespace(model_name=lambda adapter: adapter or "m")
        self.state = SimpleNamespace(
            openai_serving_chat=SimpleNamespace(
                create_chat_completion=self._create,
                get_chat_request_role=lambda _request: "assistant",
                models=models,
                parser_cls=None,
            ),
            openai_serving_completion=SimpleNamespace(create_completion=self._create, models=models),
        )
        self.exception_handlers: dict[Any, Any] = {RuntimeError: self._told}
        self.routes = [SimpleNamespace(path=path) for path in (CHAT, COMPLETIONS)]
        self.args = SimpleNamespace(
            scheduling_policy="priority",
            served_model_name=["m"],
            model="m",
            lora_modules=None,
            api_key=None,
            middleware=[],
        )

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield None

    encode = generate

    def shutdown(self, timeout: float) -> None:
        assert timeout == 0

    async def succeeds(self, request: Answer) -> Any:
        await self.renderer.render_chat_async()
        await self.engine_core.add_request_async(request)
        return Answer({"id": request.body["request_id"], "priority": request.body["priority"]})

    async def _create(self, request: Answer, raw: Any) -> Any:
        self.raws.append(raw)
        return await self.does(request)

    async def _add(self, request: Answer) -> None:
        self.sent.append(request.body["request_id"])

    async def _render_elsewhere(self) -> None:
        self.rendered.append("in the thread")

    async def _told(self, request: Any, error: Exception) -> Any:
        assert request.app is self
        return SimpleNamespace(status_code=503 if "busy" in str(error) else 500, body=b'{"error": {"message": "told"}}')

    async def answered(self) -> None:
        self.by_application += 1

    async def __call__(self, _scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self.answered()
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b'{"by": "application"}'})


async def started(server: Server, monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
    async def open_application(_hosted: Any, _stack: AsyncExitStack) -> Any:
        return server

    monkeypatch.setattr(vllm_host, "build", lambda *_: vllm_host.Hosted(server, server.args))
    monkeypatch.setattr(vllm_host, "open_application", open_application)
    monkeypatch.setattr(vllm, "prepare_environment", lambda *_, **__: None)
    monkeypatch.setattr(vllm, "check_libraries", lambda: None)
    engine = VllmEngine("m", cpu=True)
    await engine.start()
    return engine


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def engine(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VllmEngine]:
    monkeypatch.setattr(vllm_host, "look", lambda _place, _name: Answer)
    engine = await started(server, monkeypatch)
    yield engine
    await engine.stop()


async def run(engine: VllmEngine, body: Any = ASKED, endpoint: str = CHAT, **more: Any) -> EngineReply:
    return await engine.run(EngineRequest("r-1", endpoint, body, Lane.HIGH, 1_790_000_000_000, **more))


async def test_a_plain_request_calls_the_serving_object(engine: VllmEngine, server: Server) -> None:
    reply = await run(engine)
    assert engine.kind == "vllm direct"
    assert (reply.status, json.loads(reply.body)["id"], server.by_application) == (200, "r-1", 0)
    assert json.loads(reply.body)["priority"] > 0
    assert (server.raws, server.rendered) == ([None], ["in the loop"])


async def test_a_trace_goes_along(engine: VllmEngine, server: Server) -> None:
    await run(engine, traceparent="00-1-2-01")
    assert server.raws[0].headers == {"traceparent": "00-1-2-01"}


@pytest.mark.parametrize(
    ("body", "endpoint", "reason"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, CHAT, "media"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}, 7]}]}, CHAT, "media"),
        ({"messages": "hi"}, CHAT, "media"),
        ({"prompt": None, "prompt_embeds": "AAAA"}, COMPLETIONS, "media"),
        ({**ASKED, "chat_template": "{{ x }}"}, CHAT, "template"),
        ({**ASKED, "chat_template_kwargs": {"chat_template": "{{ x }}"}}, CHAT, "template"),
        ({"input": "x"}, EMBEDDINGS, "endpoint"),
        ({**ASKED, "temperature": -1}, CHAT, "refused"),
    ],
)
async def test_what_is_not_plain_or_refused_goes_through_the_application(
    engine: VllmEngine, server: Server, body: Any, endpoint: str, reason: str
) -> None:
    before = counted(reason)
    reply = await run(engine, body, endpoint)
    assert json.loads(reply.body) == {"by": "application"}
    assert (server.by_application, server.sent) == (1, [])
    assert counted(reason) == before + 1


@pytest.mark.parametrize("size", [8_000, 8_300])
@pytest.mark.parametrize("character", ["x", "é", "日"])
async def test_only_short_prompts_are_rendered_in_the_loop(
    engine: VllmEngine, server: Server, size: int, character: str
) -> None:
    text = character * ((size - 100) // (1 if character == "x" else 3))
    await run(engine, {"messages": [{"role": "user", "content": text}]})
    assert server.rendered == ["in the loop" if size < 8_192 else "in the thread"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("how", ["raises", "answers an error"])
async def test_what_fails_before_the_core_is_asked_of_the_application(
    engine: VllmEngine, server: Server, how: str, streams: bool
) -> None:
    async def fails(_request: Answer) -> Any:
        if how == "raises":
            raise RuntimeError("not yet")
        return Refusal()

    server.does = fails
    await run(engine, on_chunk=(lambda _line: None) if streams else None)
    assert server.by_application == 1


FAILURES: dict[str, Any] = {
    "raises": RuntimeError("broken"),
    "raises what nobody knows": LookupError("broken"),
    "is busy": RuntimeError("busy"),
    "answers an error": Refusal(),
}


async def fails_in_core(server: Server, failure: Any, request: Answer) -> Any:
    await server.engine_core.add_request_async(request)
    if isinstance(failure, Exception):
        raise failure
    return failure


@pytest.mark.parametrize("how", FAILURES)
async def test_what_fails_in_the_core_is_never_run_twice(engine: VllmEngine, server: Server, how: str) -> None:
    server.does = lambda request: fails_in_core(server, FAILURES[how], request)
    if how == "is busy":
        with pytest.raises(Exception, match="queue is full"):
            await run(engine)
    else:
        reply = await run(engine)
        assert reply.status == (418 if how == "answers an error" else 500)
        assert how != "raises what nobody knows" or b"vLLM gave no answer: broken" in reply.body
    assert (server.sent, server.by_application) == (["r-1"], 0)


async def test_a_stream_that_breaks_off_is_never_run_twice(engine: VllmEngine, server: Server) -> None:
    async def parts(request: Answer) -> AsyncIterator[str]:
        await server.engine_core.add_request_async(request)
        yield 'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
        raise RuntimeError("broken")

    async def streams(request: Answer) -> Any:
        return parts(request)

    server.does = streams
    chunks: list[bytes] = []
    reply = await run(engine, {**ASKED, "logprobs": True}, on_chunk=chunks.append)
    assert (reply.status, len(chunks)) == (500, 1)
    assert b"vLLM gave no answer: broken" in reply.body
    assert (server.sent, server.by_application) == (["r-1"], 0)


@pytest.mark.parametrize("where", ["before the core", "in the core"])
async def test_a_cancelled_request_is_neither_answered_nor_run_again(
    engine: VllmEngine, server: Server, where: str
) -> None:
    """vLLM makes an answer of its task's end."""
    inside = asyncio.Event()

    async def swallows(request: Answer) -> Any:
        if where == "in the core":
            await server.engine_core.add_request_async(request)
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Refusal()

    async def abort(_ids: Any) -> None:
        return None

    server.does, server.abort = swallows, abort  # type: ignore[attr-defined]
    task = asyncio.create_task(run(engine))
    await inside.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert server.by_application == 0


async def test_a_failed_engine_does_not_wait_for_who_ignores_its_end(
    engine: VllmEngine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "DISCONNECT_GRACE_S", 0.01)
    inside, over = asyncio.Event(), asyncio.Event()

    async def ignores(_request: Answer) -> Any:
        inside.set()
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    server.does = ignores
    task = asyncio.create_task(run(engine))
    await inside.wait()
    server.errored = True
    try:
        with pytest.raises(EngineDied, match="core died"):
            await asyncio.wait_for(task, 5)
    finally:
        over.set()


async def test_the_application_is_asked_as_if_nothing_had_been_tried(engine: VllmEngine, server: Server) -> None:
    seen: list[tuple[bool, list[str]]] = []

    async def refuses(_request: Answer) -> Any:
        progress = vllm_host.current_progress.get()
        assert progress is not None
        progress.ids.append("chatcmpl-r-1")
        return Refusal()

    async def answered() -> None:
        progress = vllm_host.current_progress.get()
        assert progress is not None
        seen.append((progress.in_loop, list(progress.ids)))

    server.does, server.answered = refuses, answered  # type: ignore[method-assign]
    await run(engine)
    assert seen == [(False, [])]


@pytest.mark.parametrize("missing", ["class", "part", "middleware", "embeddings alone"])
async def test_where_there_is_no_direct_way_the_application_serves(
    server: Server, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(vllm_host, "look", lambda _place, _name: None if missing == "class" else Answer)
    if missing == "part":
        del server.renderer.render_cmpl
    elif missing == "middleware":
        server.args.middleware = ["a.b"]
    elif missing == "embeddings alone":
        server.routes = [SimpleNamespace(path=EMBEDDINGS)]
    with capture_logs() as logs:
        engine = await started(server, monkeypatch)
    before = counted("no_other_way")
    assert json.loads((await run(engine)).body) == {"by": "application"}
    assert counted("no_other_way") == before + 1
    said = next(each for each in logs if each["event"] == "requests_reach_vllm")
    assert (engine.kind, said["way"]) == ("vllm by application", "by application")
    names = {"class": "ChatCompletionRequest", "part": "engine.renderer.render_cmpl", "middleware": "--middleware"}
    assert names.get(missing, "does not generate") in said["because"]
    await engine.stop()


def counted(reason: str) -> float:
    return float(metrics.BY_APPLICATION.labels(reason)._value.get())


TOKENS: list[Any] = [[1, 2, 3], [[1, 2], [3]], [[7] * 200] * 100]


@pytest.mark.parametrize("given", TOKENS, ids=["one", "two", "many"])
async def test_prompts_in_tokens_are_embedded_without_the_application(
    engine: VllmEngine, server: Server, given: Any
) -> None:
    """It would take each token for a message of every kind, for seconds."""

    async def embeds(asked: Answer, raw: Any) -> Any:
        server.raws.append(raw)
        return SimpleNamespace(status_code=200, body=json.dumps({"asked": asked.body}).encode())

    server.state.serving_embedding = embeds
    answer = await run(engine, {"model": "m", "input": given}, EMBEDDINGS)
    assert (answer.status, server.by_application) == (200, 0)
    asked = json.loads(answer.body)["asked"]
    assert (asked["input"], asked["priority"]) == (
        given,
        EngineRequest("r-1", CHAT, {}, Lane.HIGH, 1_790_000_000_000).priority,
    )
    assert server.raws[0].headers["X-Request-Id"] == "r-1"


@pytest.mark.parametrize(
    "body",
    [
        {"input": "text"},
        {"input": ["a", "b"]},
        {"input": [[1], "a"]},
        {"input": [[1, -1]]},
        {"input": [[]]},
        {"input": []},
        {"input": [[1]], "messages": []},
        {"input": [[1]], "encoding_format": "bytes"},
    ],
    ids=json.dumps,
)
async def test_all_other_embeddings_are_the_applications(
    engine: VllmEngine, server: Server, body: dict[str, Any]
) -> None:
    server.state.serving_embedding = None
    for embeds in (None, lambda *_: pytest.fail("it was asked")):
        server.state.serving_embedding = embeds
        assert json.loads((await run(engine, body, EMBEDDINGS)).body) == {"by": "application"}


async def test_errors_of_embedding_tokens_are_vllms_own(engine: VllmEngine, server: Server) -> None:
    async def fails(_asked: Answer, _raw: Any) -> Any:
        raise RuntimeError("no such adapter")

    server.state.serving_embedding = fails
    answer = await run(engine, {"input": [[1]]}, EMBEDDINGS)
    assert (answer.status, json.loads(answer.body)["error"]["message"]) == (500, "told")
    wrong = await run(engine, {"input": [[1]], "temperature": -1}, EMBEDDINGS)
    assert (wrong.status, json.loads(wrong.body)["error"]["message"]) == (400, "temperature")
    assert server.by_application == 0
