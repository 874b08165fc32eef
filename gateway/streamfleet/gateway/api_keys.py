"""API keys of the HTTP gateway: their format, storage and permissions. Pure, except for random keys.

A key is 256 random bits, so its SHA-256 can be stored as it is: a slow, salted hash is for passwords, which can be
guessed. 2**256 keys cannot be guessed, and a slow hash would slow down every request.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.envelope import check_label
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import gateway_base
from streamfleet.common.protocol import LANES, LEAST_WEIGHT, MOST_OF_A_TENANT, Lane

USUAL_LANES = LANES[1:]
"""Lanes of a key that names none; the most urgent one must be granted explicitly."""
MOST_PER_MINUTE = 10**12
_KEY = re.compile(r"sf-[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{16}")


class GatewayNames:
    """Redis keys that all gateways with this prefix share.

    Args:
        prefix: put before every key, as before those of the queues.

    Raises:
        InvalidRequest: the prefix is not usable.
    """

    def __init__(self, prefix: str = "") -> None:
        self.base = gateway_base(prefix)
        self.keys = f"{self.base}keys"
        """Hash: SHA-256 of an API key, in hex, to its record, JSON."""
        self.key_changes = f"{self.base}key_changes"
        """Short stream of entries without content, one for each changed or revoked key; gateways then
        clear their caches."""

        self.reservations = f"{self.base}reservations"
        """Sorted set: names of unsettled reservations by the time of their next check, epoch ms."""

    def left_tries(self, fingerprint: str) -> str:
        """List of equal requests whose callers left and may try again; expires soon after they are cancelled."""
        return f"{self.base}tries:{fingerprint}"

    def reservation(self, name: str) -> str:
        """Hash of one request's reservation of tokens."""
        return f"{self.base}reserved:{name}"

    def settled(self, key_id: str) -> str:
        """List of a key's reservations that are remembered as settled, the oldest first."""
        return f"{self.base}settled:{key_id}"

    def allowance(self, key_id: str) -> str:
        """Hash of a key's remaining allowances; expires an hour after its last use."""
        return f"{self.base}left:{key_id}"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Stored properties of an API key.

    Attributes:
        id: public id of the key; the ids of its requests begin with it.
        name: name for people.
        tenant: tenant of its requests.
        lanes: lanes that it may use.
        requests_per_minute, tokens_per_minute: its limits; 0 for no limit, None for the gateway's defaults.
        created_ms, expires_ms: epoch ms; None for a key that does not end.
        operator: it may view and manage all requests under /ui.
        weight, max_running: of the tenant, as `streamfleet tenants set` has them; None for none named.
        set_ms: when the key was given these, epoch ms; 0 if it names neither.
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
    weight: float | None = None
    max_running: int | None = None
    set_ms: int = 0

    @property
    def rule(self) -> TenantRule | None:
        """Weight and limit of its tenant; None if the key names neither."""
        if self.weight is None and self.max_running is None:
            return None
        return TenantRule(1.0 if self.weight is None else self.weight, self.max_running, self.id, self.set_ms)

    def encoded(self) -> str:
        """The record as it is stored, JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


def new_secret() -> str:
    """A new random API key."""
    return f"sf-{secrets.token_urlsafe(32)}"


def looks_like_a_key(text: str) -> bool:
    """True if the text has the format of an API key; only then it is looked up in Redis."""
    return _KEY.fullmatch(text) is not None


def digest_of(secret: str) -> str:
    """SHA-256 of a key in hex, which is stored in its place."""
    return hashlib.sha256(secret.encode()).hexdigest()


def id_of(digest: str) -> str:
    """The id of the key with this digest."""
    return digest[:16]


def is_key_id(text: str) -> bool:
    """True if the text has the format of a key's id."""
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
    """Create a key's record from checked values.

    Args:
        digest: digest of the key.
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


def with_rule(record: KeyRecord, weight: float | None, max_running: int | None, now_ms: int) -> KeyRecord:
    """The record with other values of its tenant.

    Args:
        record: the key's.
        weight, max_running: as in KeyRecord.
        now_ms: epoch ms, when they are given.

    Raises:
        InvalidRequest: a value is out of its range; `param` names it.
    """
    if weight is not None and not LEAST_WEIGHT <= weight <= MOST_OF_A_TENANT:
        raise InvalidRequest(f"must be {LEAST_WEIGHT:g} to {MOST_OF_A_TENANT}", "weight")
    if max_running is not None and not 1 <= max_running <= MOST_OF_A_TENANT:
        raise InvalidRequest(f"must be 1 to {MOST_OF_A_TENANT}", "max_running")
    named = weight is not None or max_running is not None
    return replace(record, weight=weight, max_running=max_running, set_ms=now_ms if named else 0)


def read_record(digest: str, text: bytes) -> KeyRecord | None:
    """Read a stored record; None if it is not valid."""
    try:
        value: Any = json.loads(text)
        record = make_record(
            digest,
            str(value["name"]),
            str(value["tenant"]),
            tuple(Lane(lane) for lane in value["lanes"]),
            (_count(value.get("requests_per_minute")), _count(value.get("tokens_per_minute"))),
            _count(value.get("created_ms")) or 0,
            _count(value.get("expires_ms")),
            # Exactly true, not another value that counts as true.
            operator=value.get("operator") is True,
        )
        weight, most, since = (value.get(name) for name in ("weight", "max_running", "set_ms"))
        return with_rule(record, None if weight is None else float(weight), _count(most), _count(since) or 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidRequest):
        return None


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
