"""Keeps the operator's log levels: undoes changes that libraries make for the whole process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_levels_kept() -> Iterator[None]:
    """Context in which libraries may change the root logger; afterwards its level and handlers are restored.

    vLLM 0.32 silences everything up to INFO while it probes configurations, and does not undo this if a probe raises.
    model-hosting-container-standards, which its application loads, sets the root logger and its handlers to ERROR.
    """
    root = logging.getLogger()
    disabled, level = root.manager.disable, root.level
    handlers = [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        for handler, its_level in handlers:
            handler.setLevel(its_level)
