"""Code that enqueues requests and reads results: clients, and batch files.

from streamfleet.producer import Client

async with Client("redis://localhost:6379/0") as fleet:
    handle = await fleet.enqueue({"messages": [{"role": "user", "content": "Say hi"}]}, lane="high")
    print((await handle.result(timeout=60)).text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamfleet.producer.ask import Ask, Options
    from streamfleet.producer.client import Client
    from streamfleet.producer.events import Chunk, Missed, Restarted, StreamBroken
    from streamfleet.producer.handle import Handle
    from streamfleet.producer.status import StatusView
    from streamfleet.producer.sync import SyncClient, SyncHandle

__all__ = [
    "Ask",
    "Chunk",
    "Client",
    "Handle",
    "Missed",
    "Options",
    "Restarted",
    "StatusView",
    "StreamBroken",
    "SyncClient",
    "SyncHandle",
]

_HOME = {
    "Ask": "ask",
    "Chunk": "events",
    "Client": "client",
    "Handle": "handle",
    "Missed": "events",
    "Options": "ask",
    "Restarted": "events",
    "StatusView": "status",
    "StreamBroken": "events",
    "SyncClient": "sync",
    "SyncHandle": "sync",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `streamfleet --help` starts fast.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
