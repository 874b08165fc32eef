"""Fixtures for every test."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import redis.utils
from hypothesis import HealthCheck, settings

from streamfleet.cli.demo.model import model_folder
from tests import programs

# Every test process imports all tests, and tests start hundreds of processes: compile each module once for all of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# vLLM on CPU binds its threads to all cores but the last: engines that run at a time would share one of two.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# redis-py reads its version from a file for each connection, of which tests open tens of thousands.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

programs.on_path()
pytest_terminal_summary = programs.pytest_terminal_summary

pytest_plugins = ["tests.servers", "tests.integration.worker_process", "tests.integration.gateway_process"]

REPOSITORY = Path(__file__).parent.parent

# A busy machine is no finding. Each run draws other examples.
settings.register_profile(
    "bears stalls", settings(), max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bears stalls")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns the scheduler for several test processes (`make test`): see tests/scheduling.py."""
    from tests.scheduling import Scheduler

    return Scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the long tests first if several processes run tests, which must agree on the tests' names."""
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"an address in the name of a test, which differs from process to process: {unstable}")
    if "torch" in sys.modules:
        raise pytest.UsageError("a test module imports torch: six seconds of CPU in each process")
    if hasattr(config, "workerinput"):
        from tests.scheduling import longest_first

        items[:] = longest_first(items)


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
    """Settings in the shell that runs the tests must not decide their outcome."""
    for name in ("REDIS_URL", "REDIS_URL_FILE", "VLLM_URL", "BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS"):
        monkeypatch.delenv(name, raising=False)
