"""One model, several queues: `python examples/many_queues.py` spreads requests over the masters of a Redis Cluster.

A queue lives on one master. Several queues live on several, if their names are chosen so:

    python examples/many_queues.py names chat 3      # three queues' names, each on a master of its own
    STREAMFLEET_QUEUE=chat-b streamfleet worker …     # workers: so many to each queue
    python examples/many_queues.py ask chat-a chat-b chat-f

What it costs: each queue orders its own requests and no others, and a worker serves one queue.
"""

import asyncio
import hashlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Self

from redis import Redis
from redis.crc import key_slot

from streamfleet.producer import Client, Handle


def queue_for(name: str, queues: Sequence[str]) -> str:
    """The queue of a request's id, or of its tenant: always the same one, whichever process asks.

    Each queue draws a number for the name, and the largest wins. So a queue that is added takes its share from all the
    others alike, and what stays keeps its queue.
    """
    return max(queues, key=lambda queue: hashlib.sha256(f"{queue}\n{name}".encode()).digest())


def slot_of(queue: str, prefix: str = "") -> int:
    """Hash slot of a queue's keys; the same as `CLUSTER KEYSLOT {queue}:`."""
    return int(key_slot(f"{prefix}{{{queue}}}:".encode()))


def names_apart(stem: str, number: int, ranges: Sequence[tuple[int, int, str]]) -> list[str]:
    """`number` queue names, spread over the masters as evenly as possible.

    Args:
        stem: beginning of the names; chat gives chat-a, chat-b and so on.
        number: number of names.
        ranges: first slot, last slot and master, as from CLUSTER SLOTS.
    """
    masters = dict.fromkeys(master for _, _, master in ranges)
    if not masters:
        raise ValueError("the cluster says of no slot who holds it: is it up? See CLUSTER INFO")
    most = -(-number // len(masters))
    taken: dict[str, int] = dict.fromkeys(masters, 0)
    names = []
    for ending in endings():
        name = f"{stem}-{ending}"
        slot = slot_of(name)
        master = next((owner for first, last, owner in ranges if first <= slot <= last), None)
        if master is not None and taken[master] < most:
            taken[master] += 1
            names.append(name)
        if len(names) == number:
            return names
    return names


def endings() -> Iterator[str]:
    """a to z, then numbers."""
    yield from "abcdefghijklmnopqrstuvwxyz"
    yield from (str(number) for number in count(1))


def slot_ranges(host: str, port: int) -> list[tuple[int, int, str]]:
    """First slot, last slot and master of each range, asked from any node of the cluster."""
    with Redis(host=host, port=port, decode_responses=True) as node:
        rows: list[Any] = node.execute_command("CLUSTER SLOTS")
        found = rows if isinstance(rows, list) else [(*ends, value["primary"]) for ends, value in rows.items()]
        return [(int(row[0]), int(row[1]), f"{row[2][0]}:{row[2][1]}") for row in found]


class ManyQueues:
    """Clients of several queues as one. An asynchronous context manager.

    Args:
        queues: their names; every process that enqueues must have the same.
        url: Redis URL; default: REDIS_URL.
    """

    def __init__(self, queues: Sequence[str], url: str | None = None) -> None:
        self._clients = {queue: Client(url, queue) for queue in queues}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            for client in self._clients.values():
                await opened.enter_async_context(client)
            self._open = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def client_of(self, request_id: str) -> Client:
        """The client of a request's queue, for its result, status or cancellation."""
        return self._clients[queue_for(request_id, list(self._clients))]

    async def enqueue(self, body: Mapping[str, Any], **options: Any) -> Handle:
        """As `Client.enqueue`. A request without an id gets one, which determines its queue."""
        request_id = options.pop("id", None) or uuid.uuid4().hex
        return await self.client_of(request_id).enqueue(body, id=request_id, **options)

    async def results(self, handles: Iterable[Handle], timeout: float) -> AsyncIterator[Any]:
        """Yield results of all queues as they arrive."""
        waiting = [asyncio.ensure_future(handle.result(timeout=timeout)) for handle in handles]
        for done in asyncio.as_completed(waiting):
            yield await done


async def ask(queues: Sequence[str]) -> None:
    """Enqueue a few requests, and print the queue of each."""
    async with ManyQueues(queues) as fleet:
        body = {"messages": [{"role": "user", "content": "Name a city."}], "max_tokens": 16}
        handles = [await fleet.enqueue(body, id=f"city-{number}") for number in range(9)]
        async for result in fleet.results(handles, timeout=120):
            print(queue_for(result.id, queues), result.id, result.status, result.text)


def main(words: Sequence[str]) -> int:
    """Run the command that the first lines of this file show."""
    if len(words) == 3 and words[0] == "names" and words[2].isdecimal():
        node = os.environ.get("REDIS_URL", "redis://localhost:6379").rpartition("/")[2].rpartition("@")[2].split(",")[0]
        host, _, port = node.partition(":")
        print("\n".join(names_apart(words[1], int(words[2]), slot_ranges(host, int(port or 6379)))))
        return 0
    if len(words) > 1 and words[0] == "ask":
        asyncio.run(ask(words[1:]))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
