"""A producer of the harness, as a process: does its steps in time, logs every id before and after it is accepted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streamfleet.common.errors import (
    BrokerOutOfMemory,
    BrokerUnavailable,
    RequestLost,
    StreamfleetError,
    UnknownRequest,
)
from streamfleet.producer import Client
from streamfleet.producer.handle import Handle
from tests.fault import mutations
from tests.fault.journal import Journal
from tests.fault.plan import Item, Step, steps_from_json
from tests.passwords import Credentials

AGAIN_S = 0.1
ANSWER_S = 5.0
AWAY = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError, asyncio.TimeoutError)


class Producer:
    """Does the steps of one producer.

    Args:
        url: Redis, through a proxy.
        journal: where every id is logged.
        name: its own name, and that of its reply stream where it makes entries by hand.
        queue: gets all its requests.
    """

    def __init__(self, url: str, journal: Journal, name: str, queue: str) -> None:
        self._url, self._journal, self._name, self._queue = url, journal, name, queue
        self._client = Client(queue=queue, patience_s=2.0)
        credentials = Credentials(Path(os.environ["STREAMFLEET_REDIS_URL_FILE"]).read_text)
        self._raw: Any = redis.asyncio.Redis.from_url(
            url, credential_provider=credentials, socket_timeout=None, retry=Retry(NoBackoff(), 0)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()

    async def work(self, steps: Sequence[Step]) -> None:
        """All steps in time, then wait for what was asked for."""
        began = time.monotonic()
        await self._open()
        for step in steps:
            await asyncio.sleep(max(0.0, began + step.at_s - time.monotonic()))
            if step.how == "xadd":
                for item in step.items:
                    await self._add_by_hand(item)
            else:
                await self._enqueue(step)
        self._journal.write("all_sent")
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self._journal.write("done")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(StreamfleetError):
            await self._client.close()
        await self._raw.aclose()

    async def _open(self) -> None:
        while True:
            try:
                await self._client.__aenter__()
                self._client.mailbox._untrimmed = -(10**9)  # the judge reads whole reply streams at the end
                return
            except BrokerUnavailable:
                await asyncio.sleep(AGAIN_S)

    # -- the real client -----------------------------------------------------------------------------------

    async def _enqueue(self, step: Step) -> None:
        groups = [[item] for item in step.items] if step.how == "one" else [list(step.items)]
        for items in groups:
            for item in items:
                self._intend(item, self._client.mailbox.name)
            handles = await self._accepted(items)
            if step.how == "again":
                handles = await self._accepted(items)
            for item, handle in zip(items, handles, strict=True):
                self._spawn(self._await(handle))
                if item.cancel_after_s is not None:
                    self._spawn(self._cancel(item))

    async def _accepted(self, items: Sequence[Item]) -> list[Handle]:
        asks = [_ask(item) for item in items]
        while True:
            try:
                handles = await self._client.enqueue_many(asks)
            except (BrokerUnavailable, BrokerOutOfMemory) as error:
                self._journal.write("refused", ids=[item.id for item in items], why=type(error).__name__)
                await asyncio.sleep(AGAIN_S)  # with ids of our own, sending all again is safe
                continue
            for item, handle in zip(items, handles, strict=True):
                self._journal.write("accepted", id=handle.id, nonce=item.nonce, existing=handle.existing)
            return handles

    async def _await(self, handle: Handle) -> None:
        try:
            result = await handle.result()
        except RequestLost:
            self._journal.write("told_lost", id=handle.id)
            return
        self._journal.write(
            "got", id=result.id, status=result.status, worker=result.worker or "", attempt=result.attempt
        )

    async def _cancel(self, item: Item) -> None:
        await asyncio.sleep(item.cancel_after_s or 0.0)
        while True:
            try:
                said = await self._client.cancel(item.id)
            except (BrokerUnavailable, BrokerOutOfMemory):
                await asyncio.sleep(AGAIN_S)
                continue
            except UnknownRequest:
                said = False
            self._journal.write("cancel", id=item.id, said=said)
            return

    # -- entries made by hand ------------------------------------------------------------------------------

    async def _add_by_hand(self, item: Item) -> None:
        if item.nonce not in self._seen:
            self._intend(item, self._name)
        self._seen.add(item.nonce)
        fields: dict[str, str] = {**item.fields, "reply": self._name, "meta": item.nonce}
        if item.id:
            fields["id"] = item.id
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    stream_id = await self._raw.xadd(f"{{{self._queue}}}:lane:{item.lane}", fields)
            except redis.exceptions.ResponseError as error:
                self._journal.write("refused", ids=[item.nonce], why=str(error)[:80])
                await asyncio.sleep(AGAIN_S)
                continue
            except AWAY as error:
                self._journal.write("unknown", nonce=item.nonce, why=type(error).__name__)
                await asyncio.sleep(AGAIN_S)
                if not item.id:
                    return  # sent again it would be another request
                continue
            name = item.id or f"{item.lane}:{stream_id.decode()}"
            self._journal.write("accepted", id=name, nonce=item.nonce)
            return

    def _intend(self, item: Item, reply: str) -> None:
        self._journal.write(
            "intent",
            nonce=item.nonce,
            id=item.id,
            kind=item.kind,
            reply=reply,
            ttl=int(item.fields["ttl"]) if "ttl" in item.fields else None,
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._journal.write("broke", why=repr(task.exception()))


def _ask(item: Item) -> dict[str, Any]:
    options: dict[str, Any] = {"body": json.loads(item.fields["body"]), "lane": item.lane, "id": item.id}
    if "ttl" in item.fields:
        options["ttl_ms"] = int(item.fields["ttl"])
    options |= {name: item.fields[name] for name in ("tenant", "session") if name in item.fields}
    return {**options, "meta": item.nonce}


def run(spec: dict[str, Any]) -> int:
    """Be a producer until told to leave; the exit status."""
    for name in [name for name in os.environ if name.startswith("STREAMFLEET_")]:
        del os.environ[name]
    os.environ.update(spec["env"])
    mutations.apply(spec.get("mutation", ""))
    return asyncio.run(_run(spec, steps_from_json(Path(spec["steps"]).read_text())))


async def _run(spec: dict[str, Any], steps: Sequence[Step]) -> int:
    journal = Journal(Path(spec["journal"]))
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    producer = Producer(spec["url"], journal, spec["name"], spec["queue"])
    work = asyncio.create_task(producer.work(steps))
    leaving = asyncio.create_task(leave.wait())
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            # Its reply stream is read from outside until the end: leaving would delete it.
            await leaving
        return 0
    finally:
        work.cancel()
        leaving.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)
        await producer.close()


if __name__ == "__main__":
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text())))
