"""Readers over HTTP while gateways, workers and Redis are killed: `python -m tests.fault.readers` (see --help).

Each reader asks with `stream`, and goes on at another gateway with what its API gives for that. At the end it has the
text of the stored result, or it was told that its text does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx

from streamfleet.common.message_events import STOP, text_of
from streamfleet.common.protocol import Lane
from streamfleet.common.results import Result
from tests.integration.gateway_process import GatewayProcess, add_key
from tests.integration.worker_process import Fleet, WorkerProcess, fleet_on
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

WORKERS, GATEWAYS, AT_ONCE, MIDDLE = 3, 2, 120, 10
TOKENS = 150
SETTINGS: dict[str, Any] = {
    "lease_ms": 2_000,
    "speed": 0.4,
    "checkpoint_tokens": 100,  # some go on elsewhere, and others begin anew
    "max_deliveries": 50,
    "result_ttl_ms": 3_600_000,
}
BETWEEN_S = (1.0, 3.0)
"""Shortest and longest time from one kill to the next."""
AGAIN_S, MOST_S = 0.2, 90.0


class Reader:
    """One caller, which asks until its answer has ended.

    Attributes:
        text: what came, over all of its connections.
        told: code of the error by which it heard that its text does not count; empty if it did not.
        cuts: number of connections that broke before the end.
        wrong: broken promises.
    """

    path: ClassVar[str] = "/v1/chat/completions"

    def __init__(self, number: int) -> None:
        self.number, self.id = number, ""
        self.text, self.told, self.ended, self.cuts = "", "", False, 0
        self.wrong: list[str] = []
        self._last = ""

    def in_the_middle(self) -> bool:
        """True if it has a part of its text."""
        return bool(self.text) and not (self.ended or self.told)

    def body(self) -> dict[str, Any]:
        """The request."""
        return {"messages": [{"role": "user", "content": f"Say {self.number}"}], "max_tokens": TOKENS}

    def again(self) -> tuple[str, dict[str, str]]:
        """Path and headers of a GET that goes on."""
        return f"/v1/streams/{self.id}", {"Last-Event-ID": self._last} if self._last else {}

    def take(self, event: dict[str, str]) -> None:
        """Add one event."""
        self._last = event.get("id", self._last)
        if event["data"] == "[DONE]":
            self.ended = True
            return
        data = json.loads(event["data"])
        if "error" in data:
            self.refused(data["error"])
            return
        for choice in data["choices"]:
            self.text += choice["delta"].get("content") or ""

    def answer(self, result: Result) -> str:
        """The text of its stored result."""
        return result.text

    def refused(self, error: dict[str, Any]) -> None:
        """An error ends the reading where it says that the text does not count; else the reader goes on."""
        if error["code"] in ("stream_restarted", "stream_incomplete"):
            self.told = error["code"]
        elif error["code"] not in ("queue_unavailable", "unavailable", "gateway_stopping", "engine_error"):
            self.wrong.append(f"an error: {error}")
            self.told = "error"

    async def read(self, http: httpx.AsyncClient) -> None:
        """Read on until the end, or a cut."""
        asked: dict[str, Any]
        if self.id:
            path, headers = self.again()
            asked = {"method": "GET", "url": path, "headers": headers}
        else:
            headers = {"Idempotency-Key": f"reader-{self.number}", "X-Streamfleet-On-Disconnect": "continue"}
            body = {**self.body(), "model": "simulated", "stream": True, "ignore_eos": True}
            asked = {"method": "POST", "url": self.path, "headers": headers, "json": body}
        async with http.stream(**asked) as answer:
            if answer.status_code == 204:
                self.ended = True
                return
            if answer.status_code != 200:  # it may name an id that is not in the queue, so the same is asked again
                self.refused(json.loads(await answer.aread())["error"])
                return
            self.id = answer.headers.get("x-streamfleet-id", self.id)
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(":")
                if line:
                    event[name] = value.strip()
                elif event:
                    self.take(event)
                    event = {}
                if self.ended or self.told:
                    return


class ResponseReader(Reader):
    """A caller of the Responses API, whose events are numbered without holes."""

    path = "/v1/responses"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._number = -1

    def body(self) -> dict[str, Any]:
        return {"input": f"Say {self.number}", "max_output_tokens": TOKENS}

    def again(self) -> tuple[str, dict[str, str]]:
        after = f"&starting_after={self._number}" if self._number >= 0 else ""
        return f"/v1/responses/resp_{self.id}?stream=true{after}", {}

    def take(self, event: dict[str, str]) -> None:
        data = json.loads(event["data"])
        if data["sequence_number"] != self._number + 1:
            self.wrong.append(f"number {data['sequence_number']} came after {self._number}")
        if data["type"] == "error":
            self.refused(data["error"])
            return
        self._number = data["sequence_number"]
        if data["type"] == "response.output_text.delta":
            self.text += data["delta"]
        self.ended = data["type"] in ("response.completed", "response.incomplete", "response.failed")

    def answer(self, result: Result) -> str:
        return "".join(part["text"] for item in (result.response or {})["output"] for part in item["content"])


class MessageReader(Reader):
    """A caller of Anthropic's Messages API, whose events have an order."""

    path = "/v1/messages"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._kinds: list[str] = []

    def take(self, event: dict[str, str]) -> None:
        self._last = event.get("id", self._last)
        data = json.loads(event["data"])
        if "error" in data:
            self.refused(data["error"])
            return
        if data["type"] != "content_block_delta" or data["type"] not in self._kinds[-1:]:
            self._kinds.append(data["type"])
        if self._kinds != KINDS[: len(self._kinds)]:
            self.wrong.append(f"events came as {self._kinds}")
        self.text += text_of(data)
        self.ended = data["type"] == STOP

    def refused(self, error: dict[str, Any]) -> None:
        if "code" not in error:
            broken = "begins anew" in error["message"] or "are not there" in error["message"]
            error = {**error, "code": "stream_restarted" if broken else "unavailable"}
            if error["type"] != "overloaded_error":
                self.wrong.append(f"an error: {error}")
        super().refused(error)

    def answer(self, result: Result) -> str:
        return "".join(block["text"] for block in (result.response or {})["content"])


KINDS = [
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop"),
]


class BackgroundReader(ResponseReader):
    """A caller that asks in the background, and polls."""

    async def read(self, http: httpx.AsyncClient) -> None:
        """Poll until the end, or a cut."""
        body = {**self.body(), "model": "simulated", "background": True, "ignore_eos": True}
        while not (self.ended or self.told):
            if self.id:
                answer = await http.get(f"{self.path}/resp_{self.id}")
            else:
                answer = await http.post(self.path, json=body, headers={"Idempotency-Key": f"reader-{self.number}"})
            data = answer.json()
            if answer.status_code != 200:
                self.refused(data["error"])
                return
            self.id = data["id"].removeprefix("resp_")
            self.ended = data["status"] not in ("queued", "in_progress")
            if self.ended:
                self.text = "".join(part["text"] for item in data["output"] for part in item["content"])
            else:
                await asyncio.sleep(AGAIN_S)


FORMS: tuple[type[Reader], ...] = (Reader, ResponseReader, MessageReader, BackgroundReader)


@dataclass
class Killed:
    """The processes of a run, each of which is killed and started again.

    Attributes:
        gateway_kind: class of the gateways.
        kills: number of kills by kind.
    """

    server: RedisServer
    fleet: Fleet
    folder: Path
    gateway_kind: type[GatewayProcess]
    gateways: list[GatewayProcess] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    _names: Iterator[int] = field(default_factory=itertools.count)

    async def start(self) -> None:
        """Start all, and wait until they answer."""
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.gateways = [self._gateway() for _ in range(GATEWAYS)]
        for worker in self.workers:
            await worker.ready()
        for gateway in self.gateways:
            await asyncio.to_thread(gateway.ready)

    def _worker(self) -> WorkerProcess:
        return self.fleet.start(f"w{next(self._names)}", **SETTINGS)

    def _gateway(self) -> GatewayProcess:
        folder = self.folder / f"g{next(self._names)}"
        folder.mkdir()
        return self.gateway_kind(self.server.url, folder, log_level="info")

    async def worker(self, chance: random.Random) -> None:
        """Kill a worker; another comes."""
        at = chance.randrange(WORKERS)
        self.workers[at].destroy()
        self.workers[at] = self._worker()
        await self.workers[at].ready()

    async def gateway(self, chance: random.Random) -> None:
        """Kill a gateway; the other one serves until another comes."""
        at = chance.randrange(GATEWAYS)
        self.gateways[at].destroy()
        self.gateways[at] = await asyncio.to_thread(self._gateway().ready)

    async def redis(self, chance: random.Random) -> None:
        """Kill Redis, which comes back with all that it had acknowledged."""
        self.server.kill()
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        await asyncio.to_thread(self.server.restart)

    async def for_ever(self, chance: random.Random, kinds: list[str], readers: list[Reader]) -> None:
        """Kill one of these after another, while readers are in the middle of their texts."""
        for kind in itertools.cycle(kinds):
            await asyncio.sleep(chance.uniform(*BETWEEN_S))
            await eventually(lambda: sum(map(Reader.in_the_middle, readers)) >= MIDDLE, MOST_S)
            kill: Callable[[random.Random], Awaitable[None]] = getattr(self, kind)
            await kill(chance)
            self.kills[kind] += 1

    def destroy(self) -> None:
        """End the gateways; the fleet ends its workers."""
        for gateway in self.gateways:
            gateway.destroy()


async def follow(reader: Reader, killed: Killed, key: str, places: asyncio.Semaphore) -> None:
    """Let a reader read until it has ended, at any gateway that is alive."""
    async with places:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOST_S):
                for turn in itertools.count(reader.number):
                    gateway = killed.gateways[turn % GATEWAYS]
                    with contextlib.suppress(httpx.TransportError):
                        async with gateway.http(key) as http:
                            await reader.read(http)
                    if reader.ended or reader.told:
                        return
                    reader.cuts += 1
                    await asyncio.sleep(AGAIN_S)
        reader.wrong.append(f"no end within {MOST_S:g} s; {len(reader.text)} characters came")


def look(reader: Reader, result: Result | None) -> list[str]:
    """Returns what is wrong with a reader, given its stored result; empty if nothing is."""
    wrong = [*reader.wrong]
    if result is None or not result.ok:
        wrong.append("no result" if result is None else f"{result.status}: {result.error}")
    elif reader.told and result.attempt < 2:
        wrong.append(f"told {reader.told}, but no worker was lost with it")
    elif not reader.told and reader.text != reader.answer(result):
        wrong.append(f"it has {reader.text!r}, the result {reader.answer(result)!r}")
    return [f"{type(reader).__name__} {reader.number}: {each}" for each in wrong]


@dataclass
class Found:
    """Findings of a run: its readers, kills by kind, and broken promises, a line each."""

    readers: list[Reader]
    kills: Counter[str]
    violations: list[str]

    def __str__(self) -> str:
        cut, told = (sum(map(bool, each)) for each in zip(*((r.cuts, r.told) for r in self.readers), strict=True))
        kills = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.kills.items()))
        return f"{len(self.readers)} readers, {cut} cut, {told} told; kills: {kills}; {len(self.violations)} violations"


async def measure(count: int, seed: int, kinds: list[str], gateway_kind: type[GatewayProcess]) -> Found:
    """Let so many readers of each form read while those kinds of processes are killed."""
    numbers = itertools.count()
    readers = [form(next(numbers)) for _ in range(count) for form in FORMS]
    with RedisServer(newest(find_servers()), appendonly=True) as server, tempfile.TemporaryDirectory() as folder:
        async with fleet_on(server.url, Path(folder)) as fleet:
            killed = Killed(server, fleet, Path(folder), gateway_kind)
            try:
                key, _ = await add_key(server.url, "readers", lanes=tuple(Lane))
                await killed.start()
                killing = asyncio.create_task(killed.for_ever(random.Random(seed), kinds, readers))
                places = asyncio.Semaphore(AT_ONCE)
                await asyncio.gather(*(follow(reader, killed, key, places) for reader in readers))
                if killing.done():
                    killing.result()
                killing.cancel()
                await asyncio.wait((killing,))
                violations = await _judge(fleet, readers)
            finally:
                killed.destroy()
    return Found(readers, killed.kills, violations)


async def _judge(fleet: Fleet, readers: list[Reader]) -> list[str]:
    results = [await fleet.result(reader.id, MOST_S) if reader.id else None for reader in readers]
    violations = [line for each in zip(readers, results, strict=True) for line in look(*each)]
    await fleet.settled()
    return violations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.readers", description=__doc__)
    parser.add_argument("--readers", type=int, default=500, help="of each API (default 500: 5 minutes)")
    parser.add_argument("--seed", type=int, default=1, help="of moments and victims")
    args = parser.parse_args()
    found = asyncio.run(measure(args.readers, args.seed, ["worker", "gateway", "redis"], GatewayProcess))
    for line in found.violations[:20]:
        print(f"  {line}")
    print(found)
    return bool(found.violations)


if __name__ == "__main__":
    sys.exit(main())
