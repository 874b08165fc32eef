"""A gateway's metrics show streams, batches, files and Redis in their present state."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from streamfleet.common.connection import Connection
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.batch_records import BatchNames
from streamfleet.gateway.broker.batches import BatchBroker
from tests.integration.batch_lines import CHAT, line
from tests.integration.gateway_process import GatewayProcess, Stage, gateway_on
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

BODY = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8}
PREFIX = "streamfleet_gateway_"
ERRORS = tuple(f'file_store_errors_total{{reason="{each}"}}' for each in ("gone", "failed"))


@dataclass(frozen=True)
class Own:
    """A gateway without a worker, on a Redis that may be killed, with files that may be taken away."""

    server: RedisServer
    gateway: GatewayProcess
    files: Path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("own")
    settings = {"gateway_keys": "off", "gateway_files": f"file://{folder}/files", "gateway_max_connections": 77}
    with RedisServer(appendonly=True) as server, gateway_on(server.url, folder, **settings) as gateway:
        yield Own(server, gateway, folder / "files")


def of(gateway: GatewayProcess, *samples: str) -> list[float]:
    """Samples of a gateway's page, without what all their names begin with."""
    return [gateway.metric(f"{PREFIX}{sample}") for sample in samples]


# -- streams -----------------------------------------------------------------------------------------------


ENDS = tuple(f'streams_ended_total{{outcome="{each}"}}' for each in ("whole", "error", "left", "cut"))
LAG = ("stream_lag_seconds_count", "stream_lag_seconds_sum")


async def test_each_stream_counts_by_its_end_and_lags_a_little(stage: Stage) -> None:
    before = of(stage.gateway, *ENDS, *LAG)
    async with stage.client() as http:
        answer = await http.post(CHAT, json=BODY | {"stream": True, "max_tokens": 60, "ignore_eos": True})
        assert answer.text.endswith("data: [DONE]\n\n")
        lag = of(stage.gateway, *LAG)
        late = await http.get(f"/v1/streams/{answer.headers['x-streamfleet-id']}")
        assert late.text.endswith("data: [DONE]\n\n")
        assert of(stage.gateway, *LAG) == lag, "who reads later is no measure of the lag"
        whole, *others, count, total = (
            now - then for now, then in zip(of(stage.gateway, *ENDS, *LAG), before, strict=True)
        )
        assert (whole, others) == (2, [0, 0, 0])
        assert count >= 1
        assert 0 <= total / count < 5
        async with http.stream(
            "POST", CHAT, json=BODY | {"stream": True, "max_tokens": 500, "ignore_eos": True}
        ) as one:
            await anext(one.aiter_bytes())
    await eventually(lambda: of(stage.gateway, ENDS[2]) == [before[2] + 1], 5, "one reader left")


# -- files and batches -------------------------------------------------------------------------------------


async def test_lines_of_batches_are_counted(stage: Stage) -> None:
    data = "\n".join([line("one"), line("two"), "{}"]).encode()
    samples = (
        'batch_lines_total{outcome="completed"}',
        'batch_lines_total{outcome="failed"}',
    )
    before = of(stage.gateway, *samples)
    async with stage.client() as http:
        file = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", data)})
        asked = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "1h"}
        assert (await http.post("/v1/batches", json=asked)).status_code == 200

    def counted() -> bool:
        return [now - then for now, then in zip(of(stage.gateway, *samples), before, strict=True)] == [2, 1]

    await eventually(counted, 20, "the batch is through, and all of it counted")


# -- Redis, and batches that stand still -------------------------------------------------------------------


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[BatchBroker]:
    made = BatchBroker(Connection(redis_url), BatchNames(GatewayNames().base))
    yield made
    await made.connection.close()


async def test_open_batches_are_seen_with_their_progress(broker: BatchBroker, redis_url: str) -> None:
    names = broker.names
    async with redis.asyncio.Redis.from_url(redis_url) as rows:
        assert await broker.open_batches(10) == []
        waiting: dict[Any, Any] = {"status": "validating", "completed": "0"}
        running: dict[Any, Any] = {"status": "in_progress", "epoch": "1", "completed": "5", "failed": "1", "mark": "40"}
        await rows.hset(names.batch("batch_w"), mapping=waiting)
        await rows.hset(names.batch("batch_r"), mapping=running)
        await rows.zadd(names.open, {"batch_w": 1, "batch_r": 2, "batch_gone": 3})
        first = await broker.open_batches(10)
        assert [(each.id, each.status, each.begun) for each in first] == [
            ("batch_w", "validating", False),
            ("batch_r", "in_progress", True),
            ("batch_gone", "", False),
        ]
        await rows.hincrby(names.batch("batch_r"), "epoch", 1)
        assert (await broker.open_batches(10))[1].progress == first[1].progress, "another gateway took it"
        for field in ("completed", "failed", "mark"):
            before = (await broker.open_batches(10))[1].progress
            await rows.hincrby(names.batch("batch_r"), field, 1)
            assert (await broker.open_batches(10))[1].progress != before, field
        assert len(await broker.open_batches(2)) == 2


async def test_a_gateway_tells_of_a_batch_that_stands_still_and_of_a_redis_that_is_away(own: Own) -> None:
    """No worker is there: the batch waits. Then Redis goes and comes back."""
    server, gateway = own.server, own.gateway
    assert of(gateway, "connections_limit", "deadline_seconds") == [77, 600]
    await eventually(lambda: of(gateway, "redis_up") == [1], 10, "Redis was seen")
    assert of(gateway, "batch_stalled_seconds") == [0]
    async with gateway.http() as http:
        data = line("one").encode()
        file = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", data)})
        asked = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "1h"}
        assert (await http.post("/v1/batches", json=asked)).status_code == 200
    await eventually(lambda: of(gateway, "batch_stalled_seconds")[0] > 2, 20, "it stands still")
    assert of(gateway, 'batches_open{status="validating"}', 'batches_open{status="ended"}') == [1, 0]
    await asyncio.to_thread(server.kill)
    await eventually(lambda: of(gateway, "redis_up") == [0], 20, "Redis is missed")
    page = gateway.probe("/metrics").text
    assert "streamfleet_gateway_batches_open{" not in page, "nobody knows"
    assert "streamfleet_gateway_batch_stalled_seconds NaN" in page
    await asyncio.to_thread(server.restart)
    await eventually(lambda: of(gateway, "redis_up") == [1], 20, "Redis is back")
    assert of(gateway, 'batches_open{status="validating"}') == [1]
    assert json.loads(gateway.get("/health").text)["status"] == "healthy"


async def test_a_store_that_fails_and_a_content_that_is_gone_are_counted(own: Own) -> None:
    gateway = own.gateway
    async with gateway.http() as http:
        file = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")})
        before = of(gateway, *ERRORS)
        shutil.rmtree(own.files)
        assert (await http.get(f"/v1/files/{file.json()['id']}/content")).status_code == 404
        own.files.write_text("a file, where a folder should be")
        refused = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")})
        assert refused.status_code == 503
    gone, failed = (now - then for now, then in zip(of(gateway, *ERRORS), before, strict=True))
    assert gone == 1
    assert failed >= 1
