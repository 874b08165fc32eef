"""Uploads to a gateway: large ones, and those that come to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateway_process import Stage
from tests.waiting import eventually

MEGABYTE = 1_048_576
LARGE = 64 * MEGABYTE


async def download(http: httpx.AsyncClient, file_id: str) -> None:
    size = 0
    async with http.stream("GET", f"/v1/files/{file_id}/content") as answer:
        async for block in answer.aiter_bytes():
            size += len(block)
    assert size == LARGE


async def peak_while(stage: Stage, work: Any) -> int:
    """The most memory that the gateway had meanwhile."""
    task = asyncio.ensure_future(work)
    most = 0
    while not task.done():
        most = max(most, stage.gateway.resident_bytes())
        await asyncio.wait([task], timeout=0.05)
    await task
    return most


def contents(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> set[Path]:
    """Returns the contents in the store."""
    folder = next(tmp_path_factory.getbasetemp().glob("batches*"))
    return {path for path in (folder / "files").rglob("*") if path.is_file()}


def send(connection: socket.socket, data: bytes) -> None:
    connection.settimeout(20)
    with contextlib.suppress(OSError):  # it is refused before all is sent
        connection.sendall(data)


async def begun(rows: Any) -> None:
    """Wait until an upload is under way."""
    await eventually(lambda: rows.zcard("{gateway}/loose"), 10, "an upload is under way")


async def quietly() -> None:
    """Nothing to wait for."""
