"""Logging: one event per line, JSON for machines, readable on a terminal; events of a request carry its id."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from streamfleet.common.broker.types import Lease

if TYPE_CHECKING:
    import structlog

    from streamfleet.common.settings import LogSettings

_subject: ContextVar[Lease | None] = ContextVar("subject", default=None)


class Logger:
    """Logger of a module that clients load: it loads structlog, a quarter of a client's start, with its first event."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), method)


def configure(settings: LogSettings, stream: TextIO | None = None, *, process: int | None = None) -> None:
    """Set up structlog once for the process, and route the standard library's loggers through it.

    Args:
        settings: form and level.
        stream: gets the lines; stderr if None.
        process: number of this process among several that write there; each line has it.
    """
    import structlog

    out = stream or sys.stderr
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not out.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _name_the_request,
        *([] if process is None else [partial(_name_the_process, process)]),
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


def bind_log_context(lease: Lease) -> None:
    """Add ``request_id``, ``entry`` and ``attempt`` of this request to all later log events of the current task."""
    _subject.set(lease)


def log_context() -> Lease | None:
    """Request of the current task's log events; None for no request."""
    return _subject.get()


def _name_the_request(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    # Formatted here, only when an event is logged, because most requests log nothing.
    lease = log_context()
    if lease is not None:
        event.setdefault("request_id", lease.request_id)
        event.setdefault("entry", lease.entry)
        event.setdefault("attempt", lease.attempt)
    return event


def _name_the_process(process: int, _: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {**event, "process": process}


def _plain_tracebacks() -> structlog.processors.ExceptionRenderer:
    """Renderer of tracebacks without local variables, which could hold request bodies and passwords."""
    import structlog

    return structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
