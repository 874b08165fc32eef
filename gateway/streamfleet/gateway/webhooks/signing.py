"""Secrets that sign webhooks: made, rotated, stored and read. Pure, except for random secrets.

A tenant's secrets are JSON in Redis, as they are: signing needs the secret itself, so a hash would not do. While a
secret is rotated, the former ones sign as well. The library that signs is not needed here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamfleet.common.errors import InvalidRequest

PREFIX = "whsec_"
SECRET_BYTES = 32
MOST_SECRETS = 5
"""Most secrets of one tenant at a time; each adds a signature to every webhook."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A signing secret.

    Attributes:
        text: `whsec_` and the key in base64.
        created_ms: epoch ms.
        until_ms: end of its use, epoch ms; None for the newest secret.
    """

    text: str
    created_ms: int
    until_ms: int | None = None

    @property
    def fingerprint(self) -> str:
        """A text that identifies the secret without revealing it."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


def new_secret() -> str:
    """Returns a random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def active_secrets(keys: Sequence[Secret], now_ms: int) -> list[Secret]:
    """Returns the secrets that sign now, newest first."""
    return [secret for secret in keys if secret.until_ms is None or secret.until_ms > now_ms]


def rotate(keys: Sequence[Secret], fresh: str, now_ms: int, overlap_ms: int) -> list[Secret]:
    """Returns a new secret followed by the others, each of which signs for at most `overlap_ms` more.

    Raises:
        InvalidRequest: too many secrets would sign.
    """
    end = now_ms + overlap_ms
    kept = [
        Secret(secret.text, secret.created_ms, end if secret.until_ms is None else min(secret.until_ms, end))
        for secret in active_secrets(keys, now_ms)
    ]
    left = active_secrets(kept, now_ms)
    if len(left) >= MOST_SECRETS:
        text = f"has {MOST_SECRETS} secrets that still sign; wait for one to end, or rotate with --overlap 0s"
        raise InvalidRequest(text, "tenant")
    return [Secret(fresh, now_ms), *left]


def encode_secrets(keys: Sequence[Secret]) -> bytes:
    """Returns secrets as they are stored."""
    return json.dumps([asdict(secret) for secret in keys], separators=(",", ":")).encode()


def read_secrets(text: bytes) -> list[Secret]:
    """Parses stored secrets; returns none if the text is not valid."""
    try:
        found: Any = json.loads(text)
        read = [
            Secret(
                str(each["text"]),
                int(each["created_ms"]),
                None if each["until_ms"] is None else int(each["until_ms"]),
            )
            for each in found
        ]
        return [secret for secret in read if base64.b64decode(secret.text.removeprefix(PREFIX), validate=True)]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return []
