"""Libraries that change what is logged, undone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pytest

from streamfleet.worker.engine.vllm_setup import log_levels_kept


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    handler = logging.NullHandler(logging.DEBUG)
    logging.root.addHandler(handler)
    yield handler
    logging.root.removeHandler(handler)


def silence(handler: logging.Handler) -> None:
    logging.disable(logging.INFO)
    logging.root.setLevel(logging.ERROR)
    handler.setLevel(logging.ERROR)


def fail(handler: logging.Handler) -> None:
    silence(handler)
    raise RuntimeError("it cannot start")


@pytest.mark.parametrize("library", [silence, fail])
def test_the_root_logger_is_as_it_was(handler: logging.Handler, library: Callable[[logging.Handler], None]) -> None:
    before = logging.root.level, logging.root.manager.disable
    with contextlib.suppress(RuntimeError), log_levels_kept():
        library(handler)
    assert (logging.root.level, logging.root.manager.disable) == before
    assert handler.level == logging.DEBUG
