"""API keys in Redis, their allowances, the tokens reserved from these, and the requests that their callers left.

`GatewayBroker` takes a key as the caller sent it and returns its record and what is left to it; Redis counts, so all
gateways together keep to the limits. The command line adds, lists and revokes keys here. Only digests of keys are sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import structlog

from streamfleet.common.connection import Connection
from streamfleet.common.replies import mapping, streams
from streamfleet.gateway.api_keys import GatewayNames, KeyRecord, digest_of, id_of, read_record, with_rule
from streamfleet.gateway.broker.base import SharedKeys

log = structlog.get_logger(__name__)
CHANGES_CAP = 1_000


class Verdict(IntEnum):
    """Verdict on a caller; the return codes of gateway_admit.lua."""

    UNKNOWN = 0
    LET_IN = 1
    ENDED = 2
    NO_REQUEST_LEFT = 3
    NO_TOKEN_LEFT = 4


@dataclass(frozen=True, slots=True)
class Left:
    """Rest of an allowance.

    Attributes:
        limit: limit per minute; 0 for no limit.
        left: units left now; below 0 if more was used than was left.
        full_ms: ms until the allowance is full again.
    """

    limit: int
    left: int
    full_ms: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Outcome of a caller's admission.

    Attributes:
        verdict: LET_IN, or the reason for the refusal.
        record: record of its key; None for an unknown key.
        requests, tokens: rest of its allowances.
        wait_ms: ms after which another try can succeed.
    """

    verdict: Verdict
    record: KeyRecord | None = None
    requests: Left = Left(0, 0, 0)
    tokens: Left = Left(0, 0, 0)
    wait_ms: int = 0

    @property
    def unlimited(self) -> bool:
        """True if the caller was let in and has no limits."""
        return self.verdict is Verdict.LET_IN and not (self.requests.limit or self.tokens.limit)


class ReserveCode(IntEnum):
    """Outcome of reserving tokens; the return codes of gateway_reserve.lua."""

    TOO_FEW = 0
    TAKEN = 1
    TAKEN_BEFORE = 2
    SETTLED = 3


@dataclass(frozen=True, slots=True)
class Reserved:
    """Outcome of `reserve`.

    Attributes:
        code: the outcome.
        tokens: what is left.
        wait_ms: ms until another try can succeed.
        serial: serial of the reservation.
        taken: tokens that it took; what it took before if the code is TAKEN_BEFORE.
    """

    code: ReserveCode
    tokens: Left
    wait_ms: int
    serial: str
    taken: int


@dataclass(frozen=True, slots=True)
class Held:
    """Purpose of a reservation: one request, or several prompts of one call.

    Attributes:
        queue: queue of the request.
        id: id of the request; of several, the common beginning of their ids.
        prompts: 0 for one request; else the number of requests, with the ids ``<id>-0``, ``<id>-1``, …
        named: the caller gave the request a name, and may send it again.
        prompt: tokens of the prompts, all together.
        guess: tokens that all runs together count as, if nobody counts them.
    """

    queue: str
    id: str
    prompts: int = 0
    named: bool = False
    prompt: int = 0
    guess: int = 0

    @property
    def name(self) -> str:
        """Name of the reservation."""
        return f"{self.queue}/{self.id}"

    @property
    def ids(self) -> list[str]:
        """Ids of its requests."""
        return [f"{self.id}-{number}" for number in range(self.prompts)] if self.prompts else [self.id]


@dataclass(frozen=True, slots=True)
class Due:
    """A reservation that is due for a look.

    Attributes:
        held: purpose of the reservation.
        owner: id of the key that pays.
        serial: serial of the reservation.
        tokens: number of reserved tokens.
        age_ms: ms since its request was last sent.
    """

    held: Held
    owner: str
    serial: str
    tokens: int
    age_ms: int


class GatewayBroker(SharedKeys[GatewayNames]):
    """One method for each operation, each one script or one command.

    Args:
        connection, names, now_ms: as in SharedKeys.
        requests_per_minute, tokens_per_minute: limits of API keys without limits of their own; 0 for no limit.
    """

    def __init__(
        self,
        connection: Connection,
        names: GatewayNames,
        requests_per_minute: int = 0,
        tokens_per_minute: int = 0,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(connection, names, now_ms)
        self._defaults = (requests_per_minute, tokens_per_minute)

    async def admit(self, secret: str, requests: int = 1) -> Admission:
        """Look up a caller's key, and count its request.

        Args:
            secret: the key as the caller sent it.
            requests: number to count; 0 for a call that is free.
        """
        digest = digest_of(secret)
        keys = [self.names.keys, self.names.allowance(id_of(digest))]
        code, *rest = await self.connection.script(
            "gateway_admit", keys, [digest, requests, *self._defaults, self._clock()]
        )
        verdict = Verdict(code)
        record = read_record(digest, rest[0]) if rest else None
        if record is None:  # unknown key, or a record that cannot be read
            return Admission(Verdict.UNKNOWN)
        if verdict is Verdict.ENDED:
            return Admission(verdict, record)
        limits = self._limits(record)
        _, left, full_ms, tokens_left, tokens_full_ms, wait_ms = rest
        return Admission(
            verdict, record, Left(limits[0], left, full_ms), Left(limits[1], tokens_left, tokens_full_ms), wait_ms
        )

    async def reserve(
        self,
        key_id: str,
        per_minute: int,
        tokens: int,
        held: Held,
        look_ms: int,
        *,
        least: int | None = None,
        replaces: str = "",
    ) -> Reserved:
        """Reserve tokens of a key's allowance for one request.

        Args:
            key_id: id of the key that pays.
            per_minute: the key's limit, more than 0.
            tokens: number of tokens to reserve.
            held: purpose of the reservation.
            look_ms: ms after which a gateway checks the request's outcome.
            least: tokens that are enough; None for all. Where fewer than `tokens` are left, all that is left is taken.
            replaces: serial of a settled reservation of the same name whose request is forgotten; this one replaces
                it.
        """
        keys = [self.names.allowance(key_id), self.names.reservation(held.name), self.names.reservations]
        args = [per_minute, tokens, held.name, look_ms, replaces, secrets.token_hex(8), self._clock()]
        args.append(tokens if least is None else least)
        fields = {"owner": key_id, "named": int(held.named), "prompts": held.prompts}
        fields |= {"prompt": held.prompt, "guess": held.guess}
        words = [word for pair in fields.items() for word in pair]
        found = await self.connection.script("gateway_reserve", keys, [*args, *words])
        code, left, full_ms, wait_ms, serial, taken = found
        return Reserved(ReserveCode(code), Left(per_minute, left, full_ms), wait_ms, serial.decode(), taken)

    async def settle(self, key_id: str, held: Held, serial: str, used: int | None, remember_ms: int) -> bool:
        """Charge a key for the tokens that a request used, in place of those reserved for it.

        Args:
            key_id: id of the key that pays.
            held: purpose of the reservation.
            serial: serial of the reservation.
            used: tokens used; None if the request was refused.
            remember_ms: time for which a named request is remembered as settled.

        Returns:
            False if it was settled before, or another sender of the same request still needs the reservation.
        """
        names = self.names
        keys = [names.allowance(key_id), names.reservation(held.name), names.reservations, names.settled(key_id)]
        args = [held.name, "" if used is None else used, remember_ms, self._clock(), serial]
        return int(await self.connection.script("gateway_settle", keys, args)) == 1

    async def due(self, most: int, again_ms: int) -> list[Due]:
        """Reservations that are due for a look, `most` at most; no other gateway gets them within `again_ms`."""
        found = await self.connection.script("gateway_due", [self.names.reservations], [most, again_ms, self._clock()])
        names = [name.decode() for name in found]
        if not names:
            return []
        rows = await self.connection.pipeline([("HGETALL", self.names.reservation(name)) for name in names])
        now_ms = await self.now_ms()
        return [_due(name, mapping(row), now_ms) for name, row in zip(names, rows, strict=True)]

    async def look_in(self, name: str, ms: int) -> None:
        """Schedule a check of a reservation after `ms`, unless it is settled by then."""
        due_ms = await self.now_ms() + ms
        await self.connection.command("ZADD", self.names.reservations, "XX", due_ms, name)

    async def leave_try(self, fingerprint: str, request_id: str, ms: int) -> None:
        """Let the next equal try take over a request whose caller left, within `ms` or until `withdraw_try`."""
        key = self.names.left_tries(fingerprint)
        await self.connection.pipeline([("RPUSH", key, request_id), ("PEXPIRE", key, ms)])

    async def withdraw_try(self, fingerprint: str, request_id: str) -> bool:
        """Undo `leave_try`. False if the request was taken over."""
        return bool(await self.connection.command("LREM", self.names.left_tries(fingerprint), 1, request_id))

    async def take_try(self, fingerprint: str) -> str | None:
        """Take over the request that was left first; None if there is none. Nobody else gets it."""
        found = await self.connection.command("LPOP", self.names.left_tries(fingerprint))
        return None if found is None else str(found.decode())

    async def add(self, digest: str, record: KeyRecord) -> None:
        """Store a key's record; the key with this digest is valid from now on."""
        new = await self.connection.command("HSET", self.names.keys, digest, record.encoded())
        if not new:  # gateways do not cache unknown keys, so a new key needs no message
            await self._tell()

    async def records(self) -> list[KeyRecord]:
        """All keys, oldest first."""
        found = mapping(await self.connection.command("HGETALL", self.names.keys))
        records = [read_record(digest.decode(errors="replace"), text) for digest, text in found.items()]
        return sorted((each for each in records if each is not None), key=lambda each: (each.created_ms, each.id))

    async def read(self, digests: Sequence[str]) -> list[KeyRecord | None]:
        """Records of the keys with these digests; None where there is none."""
        found = await self.connection.pipeline([("HGET", self.names.keys, digest) for digest in digests])
        return [text and read_record(digest, text) for digest, text in zip(digests, found, strict=True)]

    async def set_rule(self, key_id: str, weight: float | None, max_running: int | None) -> KeyRecord | None:
        """Give a key other values of its tenant. None if there is no such key, or it was changed or revoked just now.

        Raises:
            InvalidRequest: a value is out of its range.
        """
        now_ms = await self.now_ms()
        return await self._change(key_id, lambda record: with_rule(record, weight, max_running, now_ms))

    async def end(self, key_id: str) -> KeyRecord | None:
        """Let nobody in with a key from now on; its record stays. None as of `set_rule`."""
        now_ms = await self.now_ms()
        return await self._change(key_id, lambda record: replace(record, expires_ms=now_ms))

    async def _change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord | None:
        found = mapping(await self.connection.command("HGETALL", self.names.keys))
        for digest, text in found.items():
            record = read_record(digest.decode(errors="replace"), text)
            if record is not None and record.id == key_id:
                changed = change(record)
                words = [digest, text, changed.encoded()]
                if not await self.connection.script("gateway_change", [self.names.keys], words):
                    return None
                await self._tell()
                return changed
        return None

    async def revoke(self, key_id: str) -> bool:
        """Delete a key, which is refused from now on. False if there is no key with this id."""
        found = await self.connection.command("HKEYS", self.names.keys)
        digests = [digest for digest in found if digest.startswith(key_id.encode())]
        if not digests:
            return False
        removed = await self.connection.command("HDEL", self.names.keys, *digests)
        await self._tell()
        await self.connection.command("DEL", self.names.allowance(key_id))
        return bool(removed)

    async def changes(self, last_id: str, block_ms: int) -> tuple[str, bool]:
        """Wait up to `block_ms` for a change of any key after `last_id` (``0-0``: all known changes). One caller at a
        time.

        Returns:
            The id to continue from, and True if there was a change.
        """
        words = ("XREAD", "COUNT", CHANGES_CAP, "BLOCK", block_ms, "STREAMS", self.names.key_changes, last_id)
        found = [row for _, rows in streams(await self.connection.block(block_ms / 1000, *words)) for row in rows]
        return (found[-1][0], True) if found else (last_id, False)

    async def _tell(self) -> None:
        # The message names no key. It may fail: the change is stored, and gateways reread keys within seconds.
        words = ("MAXLEN", "~", CHANGES_CAP, "*", "changed", "1")
        try:
            await self.connection.command("XADD", self.names.key_changes, *words)
        except Exception as error:  # noqa: BLE001 - see above
            log.warning("key_change_not_announced", error=str(error), so="they find out within seconds")

    def _limits(self, record: KeyRecord) -> tuple[int, int]:
        own = (record.requests_per_minute, record.tokens_per_minute)
        requests, tokens = (
            default if limit is None else limit for limit, default in zip(own, self._defaults, strict=True)
        )
        return requests, tokens


def _due(name: str, fields: Mapping[bytes, bytes], now_ms: int) -> Due:
    def number(field: bytes) -> int:
        text = fields.get(field, b"")
        return int(text) if text.isdigit() else 0

    queue, _, request_id = name.rpartition("/")
    held = Held(
        queue,
        request_id,
        prompts=number(b"prompts"),
        named=fields.get(b"named") == b"1",
        prompt=number(b"prompt"),
        guess=number(b"guess"),
    )
    owner, serial = (fields.get(field, b"").decode(errors="replace") for field in (b"owner", b"serial"))
    return Due(held, owner, serial, number(b"tokens"), max(0, now_ms - number(b"sent_ms")))
