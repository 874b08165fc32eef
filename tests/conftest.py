"""Fixtures for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfleet.cli.demo.model import model_folder

pytest_plugins = ["tests.servers", "tests.integration.worker_process", "tests.integration.gateway_process"]

REPOSITORY = Path(__file__).parent.parent


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a real engine run one after the other, in one process, however many there are: two engines at once
    would share memory and cores that each takes for its own."""
    for item in items:
        if item.path.is_relative_to(REPOSITORY / "tests" / "e2e") or item.path.parent.name == "contract":
            item.add_marker(pytest.mark.xdist_group("engine"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return REPOSITORY


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a folder that vLLM reads; made on first use."""
    return model_folder()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to be set in the shell that runs the tests must not decide their outcome."""
    for name in ("REDIS_URL", "REDIS_URL_FILE", "VLLM_URL", "BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS"):
        monkeypatch.delenv(name, raising=False)
