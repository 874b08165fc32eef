"""The simulated engine behind plain HTTP, as `vllm serve` is for vLLM. `bare_server PORT`.

For a comparison without vLLM: the gateway adds the same, and a round takes seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from typing import Any

import uvicorn

from streamfleet.common.protocol import Lane
from streamfleet.worker.engine.base import EngineRequest, Text
from streamfleet.worker.engine.simulated import SimulatedEngine

_numbers = count(1)


class Server:
    """An ASGI application around an engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        kind = b"application/json"
        if not raw:  # /health, /v1/models
            await _begin(send, kind)
            await _send(send, json.dumps({"data": [{"id": name} for name in self._engine.models]}).encode(), more=False)
            return
        body = json.loads(raw)
        streams, usage = body.pop("stream", False), body.pop("stream_options", {})
        chunks: asyncio.Queue[bytes | Text | None] = asyncio.Queue()
        request = EngineRequest(str(next(_numbers)), scope["path"], body, Lane.NORMAL)
        if streams:
            request.on_chunk, request.tells_usage = chunks.put_nowait, usage.get("include_usage", False)
        running = asyncio.ensure_future(self._engine.run(request))
        if streams:
            running.add_done_callback(lambda _: chunks.put_nowait(None))
            await _begin(send, b"text/event-stream")
            while (chunk := await chunks.get()) is not None:
                await _send(send, b"data: " + bytes(chunk) + b"\n\n", more=True)
            await _send(send, b"data: [DONE]\n\n", more=False)
        else:
            answer = (await running).body
            await _begin(send, kind)
            await _send(send, answer, more=False)


async def _begin(send: Any, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


async def _send(send: Any, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _serve(port: int) -> None:
    engine = SimulatedEngine()
    await engine.start()
    config = uvicorn.Config(Server(engine), port=port, lifespan="off", access_log=False, log_level="error")
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
