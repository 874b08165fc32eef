"""Webhooks of a real gateway: a job with a callback URL ends, and its caller is told; bad URLs are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from streamfleet.common.connection import Connection
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.webhook_messages import WebhookNames
from streamfleet.gateway.webhooks.signing import Secret, encode_secrets, new_secret
from tests.integration.gateway_process import Stage, gateway_on, make_key, stage_in
from tests.integration.webhook_receiver import Receiver
from tests.waiting import eventually

SECRET = new_secret()
LOCAL = {f"gateway_webhooks_{name}": value for name, value in (("allow_private", 1), ("allow_http", 1), ("ports", 0))}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway that may call this machine; the tenant `everything` has a secret."""
    folder = tmp_path_factory.mktemp("webhooks")
    with stage_in(folder, gateway_files=f"file://{folder}/files", **LOCAL) as stage:
        asyncio.run(give_secret(stage.url, "everything"))
        yield stage


async def give_secret(url: str, tenant: str) -> None:
    broker = WebhookBroker(Connection(url), WebhookNames())
    await broker.set_secrets(tenant, b"", encode_secrets([Secret(SECRET, 1)]))
    await broker.close()


async def test_a_job_that_ends_is_told_to_its_caller(stage: Stage) -> None:
    async with Receiver().serving() as receiver, stage.client() as client:
        accepted = await client.post("/v1/batch/async", json={"prompts": ["a", "b"], "callback_url": receiver.url()})
        assert accepted.status_code in (200, 202), accepted.text
        job = accepted.json()["batch_id"]
        await eventually(lambda: receiver.came, 20, "the webhook came")
        (came,) = receiver.came
        event: Any = Webhook(SECRET).verify(came.body, dict(came.headers))
        state = (await client.get(f"/v1/batch/{job}")).json()
        assert state["status"] == "completed", "what the webhook says is so"
        counts = {"total": 2, "completed": 2, "failed": 0}
        told = {"batch_id": job, "id": job, "object": "job", "status": "completed", "request_counts": counts}
        assert (event["type"], event["data"]) == ("job.completed", told | {"outputs": state["outputs"]})
        assert all(text.startswith("[simulated] ") for text in state["outputs"])
        await eventually(lambda: stage.gateway.events("webhook_delivered"), 5, "it is logged")
        assert stage.gateway.metric('streamfleet_gateway_webhook_attempts_total{outcome="delivered"}') == 1
        assert receiver.url() not in stage.gateway.printed()


OF_BATCHES = {"id", "request_counts"}
OF_JOBS = {*OF_BATCHES, "batch_id", "outputs"}


@pytest.mark.parametrize("prompts", [["a", "b"], ["a"]], ids=["that succeeds", "of which nothing succeeds"])
async def test_a_webhook_has_the_values_of_the_stored_result(stage: Stage, prompts: list[str]) -> None:
    async with Receiver().serving() as receiver, stage.client() as client:
        more = {} if len(prompts) > 1 else {"logprobs": 1}  # the engine refuses it
        asked = {"prompts": prompts, "callback_url": receiver.url(), **more}
        job = (await client.post("/v1/batch/async", json=asked)).json()["batch_id"]
        line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", **more}}
        file = {"file": ("in.jsonl", json.dumps(line).encode())}
        uploaded = (await client.post("/v1/files", data={"purpose": "batch"}, files=file)).json()["id"]
        asked = {"input_file_id": uploaded, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = (await client.post("/v1/batches", json=asked | {"callback_url": receiver.url()})).json()["id"]
        await eventually(lambda: len(receiver.came) == 2, 20, "both webhooks came")
        came = {event["data"]["id"]: event for event in (json.loads(each.body) for each in receiver.came)}
        stored = [(await client.get(path)).json() for path in (f"/v1/batch/{job}", f"/v1/batches/{batch}")]
    for name, kept, fields in zip((job, batch), stored, (OF_JOBS, OF_BATCHES), strict=True):
        data = came[name]["data"]
        assert set(data) == fields | {"object", "status"}
        assert data.pop("status") == (kept.get("reason") or kept["status"])
        assert {field: data[field] for field in fields} == {field: kept[field] for field in fields}


async def test_large_outputs_are_told_by_a_link(stage: Stage) -> None:
    async with Receiver().serving() as receiver, stage.client() as client:
        body = {"prompts": ["word " * 100] * 40, "max_tokens": 200, "ignore_eos": True, "callback_url": receiver.url()}
        assert (await client.post("/v1/batch/async", json=body)).status_code == 202
        await eventually(lambda: receiver.came, 30, "the webhook came")
        (came,) = receiver.came
        data: Any = json.loads(came.body)["data"]
        assert (data["outputs"], data["outputs_url"]) == (None, f"/v1/batch/{data['batch_id']}")
        outputs = (await client.get(data["outputs_url"])).json()["outputs"]
        assert len(outputs) == 40
        assert len(json.dumps(outputs)) > len(came.body)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "http://0.0.0.0/",
        "file:///etc/passwd",
        "http://user:pass@127.0.0.1/",
        7,
    ],
)
async def test_a_callback_url_that_will_not_do_is_a_400_that_names_it(stage: Stage, url: object) -> None:
    async with stage.client() as client:
        refused = await client.post("/v1/batch/async", json={"prompts": ["a"], "callback_url": url})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "callback_url"), refused.text


async def test_a_tenant_without_a_secret_is_told_what_to_do(stage: Stage) -> None:
    key, _ = await asyncio.to_thread(make_key, stage.url, "another")
    async with stage.gateway.http(key) as client:
        refused = await client.post("/v1/batch/async", json={"prompts": ["a"], "callback_url": "http://127.0.0.1:9/"})
    assert refused.status_code == 400
    assert "secret create --tenant another" in json.dumps(refused.json())


async def test_by_default_nothing_private_is_called(stage: Stage, tmp_path: Path) -> None:
    with gateway_on(stage.url, tmp_path, gateway_files=f"file://{tmp_path}/files") as gateway:
        async with gateway.http(stage.key) as client, Receiver().serving() as receiver:
            for url in (
                receiver.url(),
                "https://127.0.0.1/",
                "https://10.0.0.1/",
                "https://localhost/",
                "https://[::1]/",
            ):
                refused = await client.post("/v1/batch/async", json={"prompts": ["a"], "callback_url": url})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "callback_url"), url
            assert receiver.connections == 0
