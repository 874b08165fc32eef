"""Groups of tests that run in the same process, one after the other, where pytest-xdist runs several processes.

Not by its marks: xdist 3.8 writes a group behind a test's id, where pytest 9.2 does not read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling

ENGINES = (
    "tests/contract/",
    "tests/e2e/test_bench_front_end.py",
    "tests/e2e/test_compose.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_vllm",
    "tests/unit/test_engine_vllm.py",
)
"""Two engines at once would share memory and cores that each takes for its own. To import vLLM takes 4 s."""
MANIFESTS = ("tests/integration/test_k8s", "tests/unit/test_deploy_docs.py")
"""All render the same overlays and examples: once, not once for each file."""
COSTLY_FIXTURES = (
    "tests/e2e/test_packaging",
    "tests/integration/test_gateway",
    "tests/integration/test_webhooks_gateway",
)
"""Tests that start something for the whole session: once, not once in each process."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the next test to whoever is free, but those of a group to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order of their time limits, longest first: a long one that begins last keeps one process busy
    while the others have nothing left. Groups stay as they are; xdist begins with the largest."""
    return sorted(items, key=_minus_limit_s)


def _minus_limit_s(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout") if scope_of(item.nodeid) == item.nodeid else None
    return -float(limit.args[0]) if limit and limit.args else 0.0


def scope_of(nodeid: str) -> str:
    """The group that a test is of; its own id where it is of none."""
    if nodeid.startswith(ENGINES):
        return "engines"
    if nodeid.startswith(MANIFESTS):
        return "manifests"
    file, _, _ = nodeid.partition("::")
    return file if file.startswith(COSTLY_FIXTURES) else nodeid
