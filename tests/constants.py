"""Constants of the product with other values, for tests that cannot wait as long as a fleet does."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

Constants = Mapping[str, object]
"""Values by dotted names below `streamfleet`, of a module or a class, such as ``worker.complete.RETRY_MAX_MS``."""
PREFETCH, SPEED = "worker.admission.PREFETCH", "worker.engine.factory.SPEED"
BATCH_WINDOW = "gateway.batches.submitter.WINDOW"
UNREADY = "worker.containment.UNREADY_FAILURES"
QUICK_RETRIES: Constants = {"worker.complete.RETRY_BASE_MS": 20, "worker.complete.RETRY_MAX_MS": 100}
FAULT_RETRIES: Constants = {"worker.complete.RETRY_BASE_MS": 100, "worker.complete.RETRY_MAX_MS": 1_000}
LATE_RETRIES: Constants = {"worker.complete.RETRY_BASE_MS": 60_000, "worker.complete.RETRY_MAX_MS": 60_000}


def set_constants(values: Constants) -> None:
    """Set them in this process, for good."""
    for name, value in values.items():
        module, _, constant = name.rpartition(".")
        found = pkgutil.resolve_name(f"streamfleet.{module}")
        assert hasattr(found, constant), name
        setattr(found, constant, value)


_own: dict[str, object] = {}
_changed: Counter[str] = Counter()


@contextmanager
def constants(values: Constants) -> Iterator[None]:
    """Have them in this process for a while. Several may overlap: after the last, a constant has its own value."""
    for name, value in values.items():
        module, _, constant = name.rpartition(".")
        found = pkgutil.resolve_name(f"streamfleet.{module}")
        if not _changed[name]:
            _own[name] = getattr(found, constant)
        _changed[name] += 1
        setattr(found, constant, value)
    try:
        yield
    finally:
        for name in values:
            _changed[name] -= 1
            if not _changed[name]:
                set_constants({name: _own[name]})
