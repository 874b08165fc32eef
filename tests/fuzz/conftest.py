"""Registers the long profile before the command line asks for it, and gives the long runs their time."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.fuzz.budget import LONG

LONG_RUN_S = 3_600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long run takes longer than a test usually may."""
    if settings.get_current_profile_name() == LONG:
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_RUN_S))
