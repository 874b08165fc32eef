"""Waits for a future on behalf of a caller who may leave, or whose key may end, in a process that may stop.

Sends an answer until its caller leaves.

`DisconnectWatcher` and `Streamed` take the receiving side of the ASGI connection. Nobody else may receive from it
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Scope, Send

from streamfleet.common.protocol import Lane
from streamfleet.gateway.call import Call
from streamfleet.gateway.errors import ApiError, gateway_stopping
from streamfleet.gateway.open_calls import OpenCall, OpenCalls

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]


class CallerLeft(Exception):
    """The connection is closed: nobody will read an answer."""


async def _wait_for_disconnect(receive: Receive) -> None:
    """Returns when the caller has left. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class DisconnectWatcher:
    """Watches for the caller's leaving, inside its `with`.

    Args:
        receive: of the ASGI connection.
        stopping_too: `Gateway.stopping`.
        calls: of the process; where keys are off, nothing is ever added to them.
        digest: of the caller's API key; empty where keys are off.
        lane: that its request uses; None for none.
    """

    def __init__(
        self,
        receive: Receive,
        stopping_too: asyncio.Future[None],
        calls: OpenCalls,
        digest: str = "",
        lane: Lane | None = None,
    ) -> None:
        self._receive, self._stopping, self._calls = receive, stopping_too, calls
        self._left: asyncio.Task[None] | None = None
        self._call = OpenCall(digest, lane, self._end) if digest else None
        self._error: ApiError | None = None

    def __enter__(self) -> DisconnectWatcher:
        self._left = asyncio.get_running_loop().create_task(_wait_for_disconnect(self._receive))
        if self._call is not None:
            self._calls.add(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        if self._left is not None:
            self._left.cancel()
        if self._call is not None:
            self._calls.remove(self._call)

    def _end(self, error: ApiError) -> None:
        self._error = self._error or error
        if self._left is not None:
            self._left.cancel()

    async def wait(self, task: asyncio.Future[T], timeout_s: float | None = None) -> bool:
        """Wait until the task is done; False if that takes longer than `timeout_s`. The task goes on in any case.

        Raises:
            CallerLeft: the caller left first.
            ApiError: the process stops first, or the caller's key ends.
        """
        if self._left is None:
            raise RuntimeError("used outside of its with")
        some: set[asyncio.Future[Any]] = {task, self._left, self._stopping}
        await asyncio.wait(some, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return True
        if self._error is not None:
            raise self._error
        if self._left.done():
            raise CallerLeft
        if self._stopping.done():
            raise gateway_stopping()
        return False


class Streamed(Response):
    """An answer in pieces, sent until it is complete or its caller leaves; cut where the caller's key ends.

    Starlette's class of this kind cancels a task when the caller leaves. That leaves cycles of objects behind, in which
    the answer stays in memory, and its file open, until the garbage collector runs.

    Args:
        pieces: of the body; closed at the end in any case.
        media_type, headers: of the answer.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._pieces = pieces
        super().__init__(headers=headers, media_type=media_type)
        if headers is None or "content-length" not in headers:
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, ended = scope.get("state", {}), list[ApiError]()
        call, abort = state.get("call") or Call(0.0), state.get("abort")

        def end(error: ApiError) -> None:
            ended.append(error)
            if abort is not None:  # its reader may take nothing, so that sending waits
                abort()

        leaving = asyncio.get_running_loop().create_task(_wait_for_disconnect(receive))
        try:
            with call.until_key_ends(end):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for piece in self._pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if ended:
                        raise ended[0]
                    if leaving.done():
                        return
                await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            await self._pieces.aclose()
