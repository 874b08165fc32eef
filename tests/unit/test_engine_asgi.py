"""Calling an ASGI application in process: whole answers, and hanging up."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from streamfleet.worker.engine import asgi
from streamfleet.worker.engine.asgi import NoResponse, Receive, Send, post

Scope = MutableMapping[str, Any]


async def test_a_response_in_pieces_comes_back_whole() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(scope)
        seen["message"] = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    response = await post(app, "/v1/x", {"X-Request-Id": "r-1"}, b'{"a":1}')
    assert (response.status, response.body) == (201, b"one two")
    assert (seen["method"], seen["path"], seen["asgi"]["spec_version"]) == ("POST", "/v1/x", "2.3")
    assert (b"x-request-id", b"r-1") in seen["headers"]
    assert (b"content-length", b"7") in seen["headers"]
    assert seen["message"] == {"type": "http.request", "body": b'{"a":1}', "more_body": False}


async def test_cancelling_tells_the_application_and_waits_for_it() -> None:
    waiting = asyncio.Event()
    heard: list[Any] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        waiting.set()
        heard.append(await receive())
        heard.append("cleaned up")

    call = asyncio.create_task(post(app, "/", {}, b""))
    await waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert heard == [{"type": "http.disconnect"}, "cleaned up"]


async def test_an_application_that_does_not_listen_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "DISCONNECT_GRACE_S", 0.01)
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    call = asyncio.create_task(post(app, "/", {}, b""))
    await waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(cancelled.wait(), 1)


async def test_a_complete_response_counts_though_the_application_raises_after_it() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500})
        await send({"type": "http.response.body", "body": b"{}"})
        raise RuntimeError("what made it answer 500")

    assert (await post(app, "/", {}, b"")).status == 500


async def test_no_response_says_so_with_its_cause() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise RuntimeError("midway")

    with pytest.raises(NoResponse, match="no response to POST /x") as caught:
        await post(app, "/x", {}, b"")
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_listening_after_the_response_ends() -> None:
    """As `listen_for_disconnect` of frameworks does: it must not wait for ever."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"done"})
        assert await receive() == {"type": "http.disconnect"}

    assert (await asyncio.wait_for(post(app, "/", {}, b""), 1)).body == b"done"
