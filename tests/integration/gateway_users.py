"""Users of a gateway whose Redis goes away under them: one waits, one reads a stream, one has a batch."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.integration.batch_lines import both, ended, line, names, start, write
from tests.integration.gateway_process import GatewayProcess
from tests.integration.test_gateway_streams import PATH, Event, Sse
from tests.integration.worker_process import chat
from tests.waiting import eventually

LINES = 150
SECONDS = 4.0
AGAIN = (429, 503)


@dataclass
class Users:
    """They come back as a client would: with the same Idempotency-Key, and behind the last event that they have.

    Attributes:
        gateway: whom they ask.
        name: what their requests are called.
        refusals: what they were told when they were to come back.
        events: of the stream since it last began anew.
        missed: chunks that Redis lost meanwhile, as the stream has told.
    """

    gateway: GatewayProcess
    name: str
    refusals: list[httpx.Response] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    missed: int = 0

    async def waiting(self) -> httpx.Response:
        """The answer of one who waits for all of it."""
        async with self.gateway.http(timeout_s=60) as http:
            while True:
                headers = {"Idempotency-Key": f"{self.name} waits"}
                answer = await http.post(PATH, json=chat(SECONDS, model="simulated"), headers=headers)
                if answer.status_code not in AGAIN:
                    return answer
                await self._later(answer)

    async def reading(self) -> str:
        """The text that somebody has who reads tokens."""
        body = chat(SECONDS, model="simulated", stream=True)
        async with self.gateway.http(timeout_s=60) as http:
            while not (self.events and self.events[-1].data == "[DONE]"):
                headers = {"Idempotency-Key": f"{self.name} reads", "X-Streamfleet-Restarts": "event"}
                if self.events:
                    headers["Last-Event-ID"] = self.events[-1].id
                async with http.stream("POST", PATH, json=body, headers=headers) as answer:
                    if answer.status_code in AGAIN:
                        await answer.aread()
                        await self._later(answer)
                        continue
                    assert answer.status_code == 200, await answer.aread()
                    await self._read(Sse(answer))
        return "".join(event.text for event in self.events[:-1])

    async def _read(self, sse: Sse) -> None:
        async for event in sse.events():
            if event.event == "restart":
                self.events.clear()
                self.missed = 0
            elif event.event == "missed":
                self.missed += json.loads(event.data)["chunks"]
            elif '"error"' in event.data:
                break  # to be asked for again
            else:
                self.events.append(event)

    async def batch(self, folder: Path) -> tuple[list[str], list[str], Any]:
        """custom_ids that were sent, those that came back, and the batch, once it has ended."""
        wanted = [f"{self.name}-{number}" for number in range(LINES)]
        async with self._sdk() as sdk:
            batch = await start(sdk, write(folder, [line(each, 40) for each in wanted]))
            done = await ended(sdk, batch.id, 60)
            output, errors = await both(sdk, done)
        return sorted(wanted), names(output + errors), done

    def _sdk(self) -> openai.AsyncOpenAI:
        """Tries again by itself, as OpenAI's clients do."""
        return openai.AsyncOpenAI(base_url=f"{self.gateway.url}/v1", api_key="none", max_retries=10)

    async def _later(self, answer: httpx.Response) -> None:
        self.refusals.append(answer)
        wait_s = float(answer.headers["retry-after"])
        loop = asyncio.get_running_loop()
        until = loop.time() + min(1.0, wait_s)
        await eventually(lambda: loop.time() >= until, 5, "it is time to ask again")


async def status_of(gateway: GatewayProcess, path: str) -> int:
    """Returns the status of one of the gateway's own pages."""
    return (await asyncio.to_thread(gateway.get, path)).status
