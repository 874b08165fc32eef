"""How dead letters look on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from streamfleet.producer.letters import DeadLetter
from streamfleet.producer.when import in_words

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def table(letters: Sequence[DeadLetter], now_ms: int) -> Table:
    """Several, a line each."""
    result = Table(header_style="bold")
    for name in ("dead letter", "request", "status", "lane"):
        result.add_column(name, no_wrap=True)
    result.add_column("tries", justify="right")
    result.add_column("age", justify="right", no_wrap=True)
    result.add_column("reason", overflow="ellipsis")
    for letter in letters:
        result.add_row(
            letter.letter_id,
            escape(letter.request_id),
            letter.status,
            letter.entry.partition(":")[0],
            str(letter.attempts),
            in_words(max(0.0, (now_ms - letter.written_ms) / 1000)),
            escape(reason(letter)),
        )
    return result


def page(letter: DeadLetter) -> str:
    """One, with everything about it."""
    lines = [
        f"dead letter  {letter.letter_id}",
        f"request      {letter.request_id}",
        f"status       {letter.status}",
        f"entry        {letter.entry}",
        f"tries        {letter.attempts}",
        f"error        {reason(letter)}",
        f"code         {letter.code or '-'}",
    ]
    if letter.workers:
        lines.append(f"lost with    {', '.join(_text(name.encode()) for name in letter.workers)}")
    if letter.truncated:
        lines.append("note         its fields were too large: they are cut short, and cannot be requeued")
    lines.append("fields")
    lines += [f"  {_text(name)}: {_text(value)}" for name, value in letter.original.items()]
    return "\n".join(lines)


def as_json_value(letter: DeadLetter) -> dict[str, Any]:
    """One, for programs; bytes that are no UTF-8 are written as ``\\xff``."""
    return {
        "letter_id": letter.letter_id,
        "request_id": letter.request_id,
        "status": letter.status,
        "entry": letter.entry,
        "attempts": letter.attempts,
        "workers": list(letter.workers),
        "error": letter.error,
        "truncated": letter.truncated,
        "fields": {_text(name): _text(value) for name, value in letter.original.items()},
    }


def reason(letter: DeadLetter) -> str:
    """Why it ended, naming the field at fault."""
    message, param = letter.error.get("message", "no message"), letter.error.get("param")
    return f"{param}: {message}" if param else str(message)


def _text(value: bytes) -> str:
    """Bytes of anybody's as text that a terminal shows and does not obey."""
    text = value.decode(errors="backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
