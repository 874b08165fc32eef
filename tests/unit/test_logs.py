"""Logs: one event a line, JSON for machines, the request id wherever there is one."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from streamfleet.common import logs
from streamfleet.common.settings import LogSettings


class Terminal(io.StringIO):
    """A terminal, and the text written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def configured(out: io.StringIO, **settings: str) -> Any:
    """A logger that writes there."""
    logs.configure(LogSettings(**settings), out)  # type: ignore[arg-type]
    return structlog.get_logger("test")


def lines_of(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_machines_get_one_json_object_a_line() -> None:
    out = io.StringIO()
    log = configured(out)
    log.info("request_done", tokens=5, text="two\nlines", odd=object)
    log.warning("second")
    first, second = lines_of(out)
    assert (first["event"], first["level"], first["tokens"], first["text"]) == ("request_done", "info", 5, "two\nlines")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("second", "warning")


def test_modules_that_clients_load_write_the_same_lines() -> None:
    out = io.StringIO()
    usual = configured(out)
    for log in (usual, logs.Logger("test")):
        log.warning("redis_moved", server="a")
    one, other = ({**line, "timestamp": ""} for line in lines_of(out))
    assert one == other


def test_the_bound_request_id_is_on_every_line_inside_and_on_none_after() -> None:
    out = io.StringIO()
    log = configured(out)
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        log.info("inside")
        logging.getLogger("somebody.else").warning("also %s", "inside")
    log.info("after")
    inside, theirs, after = lines_of(out)
    assert (inside["request_id"], theirs["request_id"], "request_id" in after) == ("r-1", "r-1", False)
    assert theirs["event"] == "also inside"


def test_the_level_is_kept_for_our_lines_and_those_of_libraries() -> None:
    out = io.StringIO()
    log = configured(out, log_level="warning")
    log.info("quiet")
    logging.getLogger("somebody.else").info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines_of(out)] == ["loud"]


def test_an_exception_is_on_one_line() -> None:
    out = io.StringIO()
    log = configured(out)
    try:
        float("broken")
    except ValueError:
        log.exception("failed")
    (line,) = lines_of(out)
    assert line["exception"][0]["exc_value"] == "could not convert string to float: 'broken'"


def test_people_get_words_on_a_terminal() -> None:
    out = Terminal()
    log = configured(out)
    log.info("request_done", tokens=5)
    assert "request_done" in out.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(out.getvalue())


@pytest.mark.parametrize(
    ("out", "settings", "is_json"),
    [
        (io.StringIO(), {"log_format": "console"}, False),
        (Terminal(), {"log_format": "json"}, True),
    ],
)
def test_the_format_may_be_chosen(out: io.StringIO, settings: dict[str, str], is_json: bool) -> None:
    log = configured(out, **settings)
    log.info("event")
    assert out.getvalue().startswith("{") is is_json


@pytest.mark.parametrize("shape", ["json", "console"])
def test_a_traceback_shows_no_local_variables(shape: str) -> None:
    out = io.StringIO()
    log = configured(out, log_format=shape)
    body = "se" + "cret"
    try:
        float(f"{len(body)} characters")
    except ValueError:
        log.exception("broke")
    assert "ValueError" in out.getvalue()
    assert body not in out.getvalue()
