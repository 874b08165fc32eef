"""Terminal and JSON output of dead webhooks and signing secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamfleet.common.durations import in_words
from streamfleet.gateway.webhook_messages import DeadWebhook
from streamfleet.gateway.webhooks.signing import read_secrets
from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.commands.plain import cell, one_line, plain


def table(letters: Sequence[DeadWebhook], now_ms: int) -> FittedTable:
    """A table of dead webhooks, a line each; without URLs, because their path and query may be secret."""
    columns = ("dead letter", "webhook-id", "type", "reason", "tries", "age", "error")
    result = FittedTable(*columns, right=("tries", "age"), fold=("webhook-id", "type", "error"))
    for letter in letters:
        result.add_row(
            letter.letter_id,
            cell(letter.webhook_id),
            cell(letter.message.type if letter.message else "-"),
            cell(letter.reason),
            str(letter.attempts),
            in_words(max(0.0, (now_ms - letter.written_ms) / 1000)),
            cell(letter.error),
        )
    return result


def page(letter: DeadWebhook) -> str:
    """All details of one dead webhook."""
    lines = [
        f"dead letter  {letter.letter_id}",
        f"webhook-id   {one_line(letter.webhook_id)}",
        f"reason       {one_line(letter.reason)}",
        f"tries        {letter.attempts}",
        f"last status  {letter.status or '-'}",
        f"error        {one_line(letter.error or '-')}",
    ]
    if letter.message is None:
        return "\n".join([*lines, "message      cannot be read: somebody changed it"])
    message = letter.message
    lines += [
        f"type         {one_line(message.type)}",
        f"tenant       {one_line(message.tenant or '-')}",
        f"url          {one_line(message.url)}",
        f"body         {plain(message.body)}",
    ]
    return "\n".join(lines)


def as_json_value(letter: DeadWebhook) -> dict[str, Any]:
    """A dead webhook as JSON values."""
    message = letter.message
    return {
        "letter_id": letter.letter_id,
        "webhook_id": letter.webhook_id,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "status": letter.status or None,
        "error": letter.error,
        "type": message.type if message else None,
        "tenant": message.tenant if message else None,
        "url": message.url if message else None,
        "body": message.body if message else None,
    }


def secret_rows(stored: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Properties of all tenants' secrets without the secrets themselves; a tenant's newest first."""
    return [
        {
            "tenant": tenant,
            "fingerprint": secret.fingerprint,
            "created_ms": secret.created_ms,
            "until_ms": secret.until_ms,
        }
        for tenant in sorted(stored)
        for secret in read_secrets(stored[tenant])
    ]


def secrets_table(rows: Sequence[Mapping[str, Any]], now_ms: int) -> FittedTable:
    """A table of secrets for people."""
    result = FittedTable("tenant", "fingerprint", "age", "signs for", fold=("tenant",))
    for row in rows:
        until = row["until_ms"]
        left = None if until is None else (until - now_ms) / 1000
        result.add_row(
            cell(row["tenant"] or "(no keys)"),
            row["fingerprint"],
            in_words(max(0.0, (now_ms - row["created_ms"]) / 1000)),
            "ever" if left is None else in_words(left) if left > 0 else "ended",
        )
    return result
