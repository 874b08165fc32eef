"""Parts of `streamfleet demo`: its environment, what it says for want of a package, what its set-up installs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from standardwebhooks.webhooks import Webhook
from typer.testing import CliRunner

from streamfleet.cli.demo import model
from streamfleet.cli.demo.worker_process import environment
from streamfleet.cli.main import app
from tests.waiting import eventually_blocking

SECRET = "whsec_" + "c2VjcmV0" * 4


def test_settings_of_another_fleet_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAMFLEET_GATEWAY_KEYS", "REDIS_URL", "REDIS_URL_FILE", "BATCH_SIZE"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = environment("redis://ours", health_port="0")
    assert found["REDIS_URL"] == "redis://ours"
    assert found["STREAMFLEET_HEALTH_PORT"] == "0"
    assert found["LANG"] == "C.UTF-8"
    assert "theirs" not in found.values()


@pytest.fixture
def hook(repository: Path, tmp_path: Path) -> Iterator[str]:
    """Address of the example that receives webhooks; its secret is SECRET."""
    address = tmp_path / "address"
    command = [sys.executable, str(repository / "examples/webhook_receiver.py"), str(address), SECRET]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually_blocking(lambda: address.exists() and address.read_text().endswith("/hook"))
            yield address.read_text()
        finally:
            process.kill()


def test_the_example_takes_no_webhook_of_another_sender(hook: str) -> None:
    body, now = '{"type": "batch.completed", "data": {"id": "b"}}', datetime.now(UTC)
    right = Webhook(SECRET).sign("m", now, body)
    other = Webhook("whsec_" + "b3RoZXI=" * 4).sign("m", now, body)
    told = {"webhook-id": "m", "webhook-timestamp": str(int(now.timestamp()))}
    assert httpx.post(hook, content=body, headers={**told, "webhook-signature": right}).status_code == 204
    for changed, signature in ((body, other), (body + " ", right), (body, "v1"), ("\u00ff", right)):
        answer = httpx.post(hook, content=changed.encode("latin-1"), headers={**told, "webhook-signature": signature})
        assert answer.status_code == 401
    assert httpx.post(hook, content=body).status_code == 401


def test_it_makes_the_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streamfleet" / model.MODEL_NAME).mkdir(parents=True)
    (tmp_path / "streamfleet" / model.MODEL_NAME / "config.json").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = CliRunner().invoke(app, ["demo", "--model-only"])
    assert ended.stdout == f"{tmp_path}/streamfleet/{model.MODEL_NAME}\n"


def test_the_set_up_of_the_gateways_demo_installs_all_that_it_needs(repository: Path) -> None:
    """`make demo-gateway` sets up the profile `vllm` alone, which has the gateway's packages as vLLM needs them."""
    recipe = (repository / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo-gateway: setup-vllm ", recipe, re.MULTILINE)
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^a-z0-9-]", line)[0] for line in project["optional-dependencies"]["gateway"]} | {"openai"}
    pinned = {line.partition("==")[0] for line in (repository / "requirements/vllm.txt").read_text().splitlines()}
    assert needed <= pinned
