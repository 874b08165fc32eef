"""The engines under contract: one of each for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.contract import subjects
from tests.contract.subjects import Subject


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def simulated_subject() -> AsyncIterator[Subject]:
    async with subjects.simulated() as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def openai_subject(repository: Path) -> AsyncIterator[Subject]:
    async with subjects.openai(repository) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_subject(smollm2: Path) -> AsyncIterator[Subject]:
    """Shared by the files, because a start takes 15 s. The last test of test_engines.py stops it."""
    async with subjects.vllm(smollm2) as started:
        yield started
