"""A reader whose connections are cut at any byte, and who goes on at another gateway, has the very text in the end."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.cutting_link import CuttingLink
from tests.integration.gateway_process import GatewayProcess, Stage
from tests.integration.test_gateway_streams import PATH, Event, Sse
from tests.integration.worker_process import WorkerProcess

CUTS = 20
PROMPT = "Zähl mit: 一二三 🦊 naïve 😀 край"


@pytest.fixture(scope="module")
def gateways(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Two to a queue of their own, whose worker streams UTF-8."""
    folders = [tmp_path_factory.mktemp(name) for name in ("cuts-one", "cuts-two")]
    worker = WorkerProcess(stage.url, folders[0], "outspoken", ["outspoken"], queue="cuts")
    processes = [GatewayProcess(stage.url, folder, gateway_models="simulated=cuts") for folder in folders]
    try:
        worker.ready_blocking()
        yield [process.ready() for process in processes]
    finally:
        worker.destroy()
        for process in processes:
            process.destroy()


async def read_until_cut(url: str, key: str, method: str, path: str, **asked: Any) -> tuple[list[Event], str]:
    """The events that came as a whole, and the id of the request."""
    headers = {"Authorization": f"Bearer {key}", **asked.pop("headers")}
    seen: list[Event] = []
    name = ""
    async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
            async with http.stream(method, path, headers=headers, **asked) as answer:
                if answer.status_code == 204:  # cut behind the last chunk: nothing is left
                    return [Event(data="[DONE]")], name
                assert answer.status_code == 200, await answer.aread()
                name = answer.headers["x-streamfleet-id"]
                sse = Sse(answer, seen)
                await sse.rest()
    return seen, name


async def test_a_reader_cut_at_random_has_the_text_of_the_result(stage: Stage, gateways: list[GatewayProcess]) -> None:
    """By turns over both gateways, by a repeated POST or by GET; every other cut is within a character."""
    chance = random.Random(6)
    key = {"Idempotency-Key": "cuts"}
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 600,
        "ignore_eos": True,
    }
    events: list[Event] = []
    links: list[CuttingLink] = []
    request_id = ""
    while not events or events[-1].data != "[DONE]":
        cutting = len(links) < CUTS
        gateway = gateways[len(links) % 2]
        # So that twenty cuts fall into the stream; the headers are in it.
        most_bytes = chance.randrange(700, 2_500) if cutting else 1 << 40
        link = CuttingLink(gateway.port, most_bytes, in_a_character=len(links) % 2 == 1)
        links.append(link)
        after = {"Last-Event-ID": events[-1].id} if events else {}
        async with link.open():
            if request_id and chance.random() < 0.5:
                asked: dict[str, Any] = {"method": "GET", "path": f"/v1/streams/{request_id}", "headers": after}
            else:
                headers = {**key, **after}
                asked = {"method": "POST", "path": PATH, "headers": headers, "json": {**body, "stream": True}}
            seen, name = await read_until_cut(link.url, stage.key, **asked)
        events += seen
        request_id = name or request_id
    async with gateways[0].http(stage.key) as http:
        whole = (await http.post(PATH, json=body, headers=key)).json()["choices"][0]["message"]["content"]
    cuts = [link.forwarded for link in links if link.cut]
    assert len(cuts) == CUTS
    assert sum(not cut.endswith(b"\n\n\r\n") for cut in cuts) > CUTS / 2, "most within an event"
    assert sum(cut[-1] >= 0xC0 for cut in cuts) >= CUTS / 3, "many within a character"
    assert "".join(event.text for event in events[:-1]) == whole
    assert "🦊" in whole
    assert len({event.id for event in events}) == len(events), "none came twice"
