"""Logging: one event a line, JSON for machines, readable on a terminal, the request id bound wherever there is one."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, TextIO

import structlog

from streamfleet.common.records import Lease
from streamfleet.common.settings import LogSettings

_subject: ContextVar[Lease | None] = ContextVar("subject", default=None)


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Set up structlog, and the standard library's loggers to go through it, once for the process."""
    out = stream or sys.stderr
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not out.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _name_the_request,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    rendering: list[Any] = (
        [_plain_tracebacks(), structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def speak_of(lease: Lease) -> None:
    """From now on, whatever this task logs is about this request: it gets ``request_id``, ``entry`` and ``attempt``."""
    _subject.set(lease)


def spoken_of() -> Lease | None:
    """What this task's logs are about; None for no request."""
    return _subject.get()


def _name_the_request(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    # Spelt out where something is logged, which is hardly ever, and not for each request.
    lease = spoken_of()
    if lease is not None:
        event.setdefault("request_id", lease.request_id)
        event.setdefault("entry", lease.entry)
        event.setdefault("attempt", lease.attempt)
    return event


def _plain_tracebacks() -> structlog.processors.ExceptionRenderer:
    """Without local variables: they would carry request bodies and passwords into the log."""
    return structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
