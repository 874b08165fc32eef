"""API keys of the HTTP gateway: how they look, how they are stored, and what each may do. Pure, but for chance.

A key is 256 random bits, so its SHA-256 can be stored as it is: a slow, salted hash is for passwords, which can be
guessed. Nobody tries out 2**256 keys, and a hash that takes long would take it at every request.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamfleet.common.envelope import check_label
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import check_prefix
from streamfleet.common.protocol import LANES, Lane

USUAL_LANES: tuple[Lane, ...] = (Lane.HIGH, Lane.NORMAL, Lane.LOW)
"""Of a key that names none: what is critical is for whom somebody trusts with it."""
MOST_PER_MINUTE = 10**12
_KEY = re.compile(r"sf-[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{16}")


class GatewayNames:
    """Redis keys of all gateways with this prefix, beside those of the queues: each gateway sees all of them.

    A queue's keys go on with a colon behind the hash tag and these with a slash, so that no queue is in their way,
    whatever it is called, and no ACL rule for all queues (``{*}:*``) reaches API keys or signing secrets.

    Args:
        prefix: put before every key, as before those of the queues.

    Raises:
        InvalidRequest: the prefix is not usable.
    """

    def __init__(self, prefix: str = "") -> None:
        self.base = f"{check_prefix(prefix)}{{gateway}}/"
        self.keys = f"{self.base}keys"
        """Hash: SHA-256 of an API key, in hex, to its record, JSON."""
        self.key_changes = f"{self.base}key_changes"
        """Short stream of entries without content, one for each key that was changed or revoked: gateways then forget
        what they know of any."""

        self.reservations = f"{self.base}reservations"
        """Sorted set: names of unsettled reservations, by when a gateway looks at them next (epoch ms)."""

    def reservation(self, name: str) -> str:
        """Hash of the tokens that were reserved for one request."""
        return f"{self.base}reserved:{name}"

    def allowance(self, key_id: str) -> str:
        """Hash of what is left to a key; gone an hour after its last use."""
        return f"{self.base}left:{key_id}"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is known of an API key, beside its hash.

    Attributes:
        id: names it, and is no secret; also the beginning of the ids of its requests.
        name: for people.
        tenant: whose requests these are.
        lanes: where it may put them.
        requests_per_minute, tokens_per_minute: its limits; 0 for any number, None for the gateway's own.
        created_ms, expires_ms: epoch ms; None for a key that does not end.
        operator: may look at all requests, and act on them, under /ui.
    """

    id: str
    name: str
    tenant: str
    lanes: tuple[Lane, ...] = USUAL_LANES
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    created_ms: int = 0
    expires_ms: int | None = None
    operator: bool = False

    def encoded(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


def new_secret() -> str:
    """A key that nobody had before."""
    return f"sf-{secrets.token_urlsafe(32)}"


def looks_like_a_key(text: str) -> bool:
    """Whether it is worth asking Redis for it."""
    return _KEY.fullmatch(text) is not None


def digest_of(secret: str) -> str:
    """What is stored in place of a key, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def id_of(digest: str) -> str:
    """The id of the key with this digest."""
    return digest[:16]


def is_key_id(text: str) -> bool:
    """Whether a key may be called so."""
    return _ID.fullmatch(text) is not None


def make_record(
    digest: str,
    name: str,
    tenant: str,
    lanes: Sequence[Lane] = USUAL_LANES,
    limits: tuple[int | None, int | None] = (None, None),
    created_ms: int = 0,
    expires_ms: int | None = None,
    *,
    operator: bool = False,
) -> KeyRecord:
    """A key's record, checked.

    Args:
        digest: of the key.
        name, tenant, lanes: as in KeyRecord.
        limits: requests and tokens a minute.
        created_ms, expires_ms: epoch ms.
        operator: as in KeyRecord.

    Raises:
        InvalidRequest: a field is wrong; `param` names it.
    """
    for param, text in (("name", name), ("tenant", tenant)):
        if not text.strip():
            raise InvalidRequest("must not be empty", param)
        check_label(text, param)
    for param, limit in zip(("requests_per_minute", "tokens_per_minute"), limits, strict=True):
        if limit is not None and not 0 <= limit <= MOST_PER_MINUTE:
            raise InvalidRequest(f"must be 0 (any number) to {MOST_PER_MINUTE}", param)
    if not lanes:
        raise InvalidRequest(f"name at least one of {', '.join(LANES)}", "lanes")
    if expires_ms is not None and expires_ms <= created_ms:
        raise InvalidRequest("must lie in the future", "expires")
    ordered = tuple(lane for lane in LANES if lane in lanes)
    return KeyRecord(id_of(digest), name, tenant, ordered, *limits, created_ms, expires_ms, operator)


def read_record(digest: str, text: bytes) -> KeyRecord | None:
    """A record as it is stored; None where somebody wrote something else there."""
    try:
        value: Any = json.loads(text)
        return make_record(
            digest,
            str(value["name"]),
            str(value["tenant"]),
            tuple(Lane(lane) for lane in value["lanes"]),
            (_count(value.get("requests_per_minute")), _count(value.get("tokens_per_minute"))),
            _count(value.get("created_ms")) or 0,
            _count(value.get("expires_ms")),
            # Only what says so, and nothing else that counts as true.
            operator=value.get("operator") is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidRequest):
        return None


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
