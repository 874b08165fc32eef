"""A gateway of several processes: one may be killed, all drain together, and its pages are those of all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamfleet.gateway.server import SLACK
from tests.integration.gateway_process import GatewayProcess, Stage, gateway_on, stage_in
from tests.waiting import eventually, eventually_blocking

STREAMS, TOKENS = 60, 150
PATH = "/v1/chat/completions"
BODY = {
    "model": "simulated",
    "messages": [{"role": "user", "content": "Count with me"}],
    "max_tokens": TOKENS,
    "ignore_eos": True,
}
RESTARTS = {"gateway.processes.RESTART_S": 0.5}
GOES_ON = {"X-Streamfleet-On-Disconnect": "continue"}


def children(gateway: GatewayProcess) -> list[int]:
    """Its processes, in no order."""
    return [
        int(pid) for pid in Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    ]


def up(gateway: GatewayProcess) -> set[int]:
    return {event["process"] for event in gateway.events("gateway_ready")}


def accepts(gateway: GatewayProcess) -> bool:
    with suppress(ConnectionRefusedError), gateway.raw():
        return True
    return False


@contextmanager
def two_on(url: str, folder: Path, **settings: object) -> Iterator[GatewayProcess]:
    """A gateway of two processes, both of which serve."""
    with gateway_on(url, folder, constants=RESTARTS, gateway_processes=2, **settings) as gateway:
        eventually_blocking(lambda: up(gateway) == {1, 2}, 20, "both serve")
        yield gateway


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Streams take some seconds."""
    with stage_in(tmp_path_factory.mktemp("processes"), speed=0.5) as stage:
        yield stage


@dataclass
class Reader:
    """A reader of a stream that comes back if its connection breaks.

    Attributes:
        text: what it has got.
        cut: True if its connection broke.
        whole: True at the end of the stream.
    """

    text: str = ""
    cut: bool = False
    whole: bool = False
    id: str = ""
    last: str = ""

    async def read(self, http: httpx.AsyncClient) -> None:
        try:
            async with http.stream("POST", PATH, json={**BODY, "stream": True}, headers=GOES_ON) as answer:
                self.id = answer.headers["x-streamfleet-id"]
                await self._take(answer)
        except httpx.TransportError:
            self.cut = True
            async with http.stream("GET", f"/v1/streams/{self.id}", headers={"Last-Event-ID": self.last}) as answer:
                await self._take(answer)

    async def _take(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, await answer.aread()
        seen = ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                seen = value
            elif value == "[DONE]":
                self.whole = True
            elif name == "data":
                choices = json.loads(value)["choices"]
                self.text += (choices[0]["delta"].get("content") or "") if choices else ""
                self.last = seen


async def test_the_death_of_a_process_is_seen_by_its_own_readers_alone(stage: Stage, tmp_path: Path) -> None:
    # Fewer connections than those of the dead and all that come then: what the dead had does not count.
    with two_on(stage.url, tmp_path, gateway_max_connections=STREAMS + STREAMS // 4) as gateway:
        async with gateway.http(stage.key) as http:
            text = (await http.post(PATH, json=BODY)).json()["choices"][0]["message"]["content"]
            readers = [Reader() for _ in range(STREAMS)]
            reading = asyncio.gather(*(reader.read(http) for reader in readers))
            await eventually(lambda: all(reader.last for reader in readers), 20, "all streams have begun")
            open_at = {
                place: gateway.metric(f'streamfleet_gateway_streams_open{{process="{place}"}}') for place in (1, 2)
            }
            assert sum(open_at.values()) == STREAMS
            assert max(open_at.values()) <= STREAMS * 0.8, "each has a good part; on a busy machine not half"
            os.kill(children(gateway)[0], signal.SIGKILL)
            await eventually(lambda: gateway.events("gateway_process_ended"), 5, "its end is noticed")
            dead = gateway.events("gateway_process_ended")[0]
            assert gateway.probe("/readyz").status == gateway.probe("/livez").status == 200
            await reading
            assert all(reader.whole and reader.text == text for reader in readers)
            assert sum(reader.cut for reader in readers) == open_at[dead["process"]]
            assert dead["status"] == -signal.SIGKILL
        await eventually(lambda: len(gateway.events("gateway_ready")) == 3, 20, "it is started again")
        page = gateway.probe("/metrics").text
        assert page.count("# HELP streamfleet_gateway_connections ") == 1
        assert all(f'streamfleet_gateway_connections{{process="{place}"}}' in page for place in (1, 2))


async def test_all_processes_drain_after_a_signal(stage: Stage, tmp_path: Path) -> None:
    with two_on(stage.url, tmp_path) as gateway:
        async with gateway.http(stage.key) as http:
            readers = [Reader() for _ in range(4 * SLACK)]
            reading = asyncio.gather(*(reader.read(http) for reader in readers))
            await eventually(lambda: all(reader.last for reader in readers), 20, "all streams have begun")
            for pid in (*children(gateway), gateway.process.pid):  # as a service manager does, and a terminal
                os.kill(pid, signal.SIGTERM)
            await eventually(lambda: len(gateway.events("gateway_draining")) == 2, 5, "both drain")
            assert gateway.probe("/readyz").status == 503
            await eventually(lambda: not accepts(gateway), 5, "nobody new is taken")
            await reading
        assert all(reader.whole and not reader.cut for reader in readers)
        assert await gateway.ended() == 0


async def test_a_second_signal_shortens_the_drain_of_all(stage: Stage, tmp_path: Path) -> None:
    with two_on(stage.url, tmp_path) as gateway:
        async with gateway.http(stage.key) as http:
            asked = [
                asyncio.ensure_future(http.post(PATH, json={**BODY, "max_tokens": 4_000})) for _ in range(4 * SLACK)
            ]
            await eventually(
                lambda: (
                    sum(gateway.metric(f'streamfleet_gateway_requests_open{{process="{p}"}}') for p in (1, 2))
                    == len(asked)
                ),
                20,
                "all wait",
            )
            for number in (1, 2):
                os.kill(gateway.process.pid, signal.SIGTERM)
                await eventually(lambda: len(gateway.events("gateway_draining")) == 2, 5, f"signal {number} has come")
            for answer in await asyncio.gather(*asked):
                assert answer.json()["error"]["code"] == "gateway_stopping"
        assert await gateway.ended() == 0


async def test_the_processes_do_not_outlive_their_parent(stage: Stage, tmp_path: Path) -> None:
    with two_on(stage.url, tmp_path) as gateway:
        pids = children(gateway)
        assert len(pids) == 2
        gateway.destroy()

        def alive(pid: int) -> bool:
            with suppress(FileNotFoundError):
                return "zombie" not in Path(f"/proc/{pid}/status").read_text()
            return False

        await eventually(lambda: not any(map(alive, pids)), 5, "they have ended")


async def test_an_error_at_the_start_ends_all_and_is_said_once(stage: Stage, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"gateway_processes": 2, "gateway_ui_redis_url": "nonsense"}
    gateway = GatewayProcess(stage.url, tmp_path, **wrong)
    assert await gateway.ended() == 2
    assert gateway.printed().count("STREAMFLEET_GATEWAY_UI_REDIS_URL") == 1


async def test_what_ends_a_child_before_it_serves_ends_all(stage: Stage, tmp_path: Path) -> None:
    dies = {"gateway.processes._CHILD": "raise SystemExit(3)"}
    gateway = GatewayProcess(stage.url, tmp_path, dies, gateway_processes=2)
    assert await gateway.ended() == 3
