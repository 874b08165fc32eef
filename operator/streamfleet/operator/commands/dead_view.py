"""Terminal and JSON output of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamfleet.common.durations import in_words
from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.commands.plain import cell, plain
from streamfleet.operator.dead_letters import DeadLetter
from streamfleet.operator.json_view import letter_object
from streamfleet.operator.texts import reason_of


def table(letters: Sequence[DeadLetter], now_ms: int) -> FittedTable:
    """A table of dead letters, a line each."""
    columns = ("dead letter", "request", "status", "lane", "tries", "age", "reason")
    result = FittedTable(*columns, right=("tries", "age"), fold=("request", "reason"))
    for letter in letters:
        result.add_row(
            letter.letter_id,
            cell(letter.request_id),
            cell(letter.status),
            cell(letter.entry.partition(":")[0]),
            str(letter.attempts),
            in_words(max(0.0, (now_ms - letter.written_ms) / 1000)),
            cell(reason_of(letter.error)),
        )
    return result


def page(letter: DeadLetter) -> str:
    """All details of one dead letter."""
    lines = [
        f"dead letter  {letter.letter_id}",
        f"request      {plain(letter.request_id)}",
        f"status       {plain(letter.status)}",
        f"entry        {plain(letter.entry)}",
        f"tries        {letter.attempts}",
        f"error        {plain(reason_of(letter.error))}",
        f"code         {plain(letter.code or '-')}",
    ]
    if letter.workers:
        lines.append(f"lost with    {', '.join(plain(name) for name in letter.workers)}")
    if letter.truncated:
        lines.append("note         its fields were too large: they are cut short, and cannot be requeued")
    lines.append("fields")
    lines += [f"  {plain(name)}: {plain(value)}" for name, value in letter.original.items()]
    return "\n".join(lines)


def as_json_value(letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    """A dead letter as JSON values with all its fields; bytes that are not UTF-8 are written as ``\\xff``."""
    return {
        **letter_object(letter, now_ms),
        "fields": {plain(name): plain(value) for name, value in letter.original.items()},
    }
