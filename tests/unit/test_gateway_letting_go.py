"""The request of a reader who takes nothing is let go; a content whose file may have been made is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from streamfleet.common.errors import BrokerUnavailable, InvalidRequest
from streamfleet.gateway.call import Call
from streamfleet.gateway.disconnect import DisconnectWatcher
from streamfleet.gateway.edge import SlowReader
from streamfleet.gateway.files.upload import receive_file
from streamfleet.gateway.open_calls import OpenCalls
from streamfleet.gateway.streaming import EventStream, Reading

FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\r\n--x--\r\n'
)


async def nobody_leaves() -> Any:
    await asyncio.Event().wait()


async def nothing_more() -> AsyncGenerator[bytes, None]:
    nothing: tuple[bytes, ...] = ()
    for data in nothing:
        yield data


async def test_a_request_whose_reader_takes_nothing_is_let_go() -> None:
    abandoned: list[str] = []
    call = SimpleNamespace(facts={}, began_s=0.0)
    reading = Reading(
        cast("Any", SimpleNamespace(call=call)),
        cast("Any", None),
        cast("Any", SimpleNamespace(id="r-1")),
        after=None,
        restart_events=False,
        wait_s=60,
        on_left=lambda: abandoned.append("r-1"),
    )

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise SlowReader

    loop = asyncio.get_running_loop()
    first: asyncio.Future[bytes] = loop.create_future()
    first.set_result(b"data: {}\n\n")
    with DisconnectWatcher(nobody_leaves, loop.create_future(), OpenCalls()) as watcher:
        stream = EventStream(reading, cast("Any", None), nothing_more(), first, watcher)
        with pytest.raises(SlowReader):
            await stream({"type": "http"}, nobody_leaves, send)
    assert abandoned == ["r-1"]


@pytest.mark.parametrize(
    ("error", "deleted"), [(BrokerUnavailable("its answer was lost"), 0), (InvalidRequest("no", "file"), 1)]
)
async def test_a_content_stays_where_its_file_may_have_been_made(error: Exception, deleted: int) -> None:
    aborted: list[bool] = []

    class Upload:
        def __init__(self) -> None:
            self.bytes = 2

        async def write(self, data: bytes) -> None:
            assert data

        async def close(self) -> None:
            pass

        async def abort(self) -> None:
            aborted.append(True)

    class Files:
        async def check_quota(self, *_: object) -> None:
            pass

        async def begin_upload(self, tenant: str, **_: object) -> Upload:
            assert tenant == "t"
            return Upload()

        async def add(self, *_: object) -> None:
            raise error

    messages = [{"type": "http.request", "body": FORM, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await nobody_leaves()

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    request = Request({"type": "http", "method": "POST", "headers": headers, "state": {"call": Call(0.0)}}, receive)
    with pytest.raises(type(error)):
        await receive_file(request, cast("Any", Files()), "t", 1_000)
    assert len(aborted) == deleted
