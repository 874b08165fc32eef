"""Constants that tests change: overlapping changes end with each constant's own value."""

from __future__ import annotations

from streamfleet.worker import complete
from tests.constants import LATE_RETRIES, QUICK_RETRIES, constants


def test_a_constant_has_its_own_value_again_after_changes_that_overlap() -> None:
    before = complete.RETRY_BASE_MS
    first, second = constants(QUICK_RETRIES), constants(LATE_RETRIES)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert LATE_RETRIES["worker.complete.RETRY_BASE_MS"] == complete.RETRY_BASE_MS
    second.__exit__(None, None, None)
    assert before == complete.RETRY_BASE_MS
