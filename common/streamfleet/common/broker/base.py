"""Base of the brokers of each role: the connection, the keys and limits, the consumer groups, Redis's clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import redis.exceptions

from streamfleet.common.connection import ANSWER_TIMEOUT_S, Connection, MissingGroup, another_type
from streamfleet.common.errors import SettingsError, UnknownRequest, openai_error
from streamfleet.common.keys import GROUP, Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES
from streamfleet.common.queue_configuration import check_protocol, decode, differences, encode
from streamfleet.common.replies import description, descriptions, mapping, recorded, texts
from streamfleet.common.results import Result, decode_result
from streamfleet.common.settings_queue import QueueSettings

T = TypeVar("T")
RESULTS_AT_ONCE = 32
"""Results read in one round trip: they may be large, and all of them have to come within one time-out."""
VANISHED_BYTES = 131_072
"""Bytes of records that one call may read to end vanished requests."""
NEVER_SEEN = 2
"""Code of the script `cancel`."""


class BrokerBase:
    """One queue on one Redis, with the verbs that several roles share.

    Every method raises BrokerUnavailable if Redis cannot be reached within the connection's patience, BrokerOutOfMemory
    if a new request does not fit into Redis, and NotPermitted if the Redis user lacks a permission.
    """

    def __init__(self, connection: Connection, keys: Keys, limits: QueueLimits | None = None) -> None:
        self.connection = connection
        connection.home(keys.base)
        self.keys = keys
        self._shared = keys.shared()
        self._followed: Mapping[str, str] = {}
        self.configure(limits or QueueLimits())

    @classmethod
    def open(
        cls,
        settings: QueueSettings,
        patience_s: float | None = 5.0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Self:
        """Returns the broker of the queue that the settings name, on a new connection; sends nothing yet.

        Raises:
            SettingsError: the Redis URL cannot be read.
        """
        connection = Connection.open(settings, patience_s, answer_timeout_s)
        return cls(connection, Keys(settings.queue, settings.key_prefix), settings.limits())

    @classmethod
    def of(cls, other: BrokerBase) -> Self:
        """Returns the broker of another role on the same connection; closing one closes both."""
        return cls(other.connection, other.keys, other.limits)

    def configure(self, limits: QueueLimits) -> None:
        """Use these limits from now on."""
        self.limits = limits
        self._config = limits.encoded(self.keys.base)

    async def close(self) -> None:
        await self.connection.close()

    async def now_ms(self) -> int:
        """Redis's clock, epoch ms; ages and deadlines are measured by it."""
        seconds, microseconds = await self.connection.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def configuration(self) -> dict[str, str]:
        """The queue's configuration, by name of the setting; empty before the first worker has written it.

        Raises:
            UnknownProtocol: this version does not know the queue's protocol.
            SettingsError: the key was overwritten with another type.
        """
        try:
            return self._checked(await self.connection.command("HGETALL", self.keys.meta))
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise SettingsError(str(another_type(self.connection.address))) from error
            raise

    def follow(self, fields: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Use this configuration from now on; what it lacks stays as it is.

        Returns:
            The values that changed, by name: before and after.

        Raises:
            SettingsError: a value breaks the rules of its setting; nothing changes.
        """
        if fields == self._followed:
            return {}
        limits = decode(self.limits, fields)
        changed = differences(encode(self.limits), encode(limits))
        self._followed = dict(fields)
        if changed:
            self.configure(limits)
        return changed

    async def _write_configuration(self, how: str, values: Mapping[str, str]) -> dict[str, str]:
        words = [word for item in values.items() for word in item]
        keys = [self.keys.meta, self.keys.lane_states, self.keys.cancels]
        return self._checked(await self.connection.script("configure", keys, [self.limits.notices_cap, how, *words]))

    def _checked(self, reply: Any) -> dict[str, str]:
        """The configuration in a reply, if this version knows the queue's protocol."""
        fields = texts(reply)
        check_protocol(fields, self.keys.queue)
        return fields

    async def ensure_groups(self) -> None:
        """Create missing streams and groups of the lanes; groups start at 0, never at ``$``."""
        for key in (*self.keys.lanes, self.keys.wake):
            if await self._has_group(key):
                continue
            try:
                await self._expect_again(key)
                await self.connection.command("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM")
            except redis.exceptions.ResponseError as error:
                if "WRONGTYPE" in str(error):
                    raise another_type(self.connection.address) from error
                if "BUSYGROUP" not in str(error):
                    raise

    async def workers(self) -> dict[str, dict[str, Any]]:
        """Workers that are alive, or were lately: name to description."""
        return descriptions(await self._look("HGETALL", self.keys.workers))

    async def worker(self, name: str) -> dict[str, Any] | None:
        """Description that a worker gave of itself; None for an unknown worker."""
        text = await self._look("HGET", self.keys.workers, name)
        return None if text is None else description(text)

    async def result(self, request_id: str) -> Result | None:
        """A request's result; None before it has one, and after the result has expired."""
        return (await self.results([request_id]))[0]

    async def results(self, request_ids: Sequence[str]) -> list[Result | None]:
        """Results of several requests, in the order asked for."""
        replies: list[Any] = []
        for first in range(0, len(request_ids), RESULTS_AT_ONCE):
            some = request_ids[first : first + RESULTS_AT_ONCE]
            replies += await self.connection.pipeline([("HGETALL", self.keys.result(each)) for each in some])
        return [
            decode_result(request_id, mapping(reply)) for request_id, reply in zip(request_ids, replies, strict=True)
        ]

    async def cancel(
        self, request_id: str, reason: str = "cancelled by the caller", before_ms: int | None = None
    ) -> bool:
        """Cancel a request, queued or running. False if it had already ended in another way.

        One by plain XADD under an id of its own has no record: the lanes are looked through for it, in bounded calls.

        Args:
            request_id: its id, or ``<lane>:<stream id>`` of one without.
            reason: message of the error in its result.
            before_ms: ms for which a request of this id that the queue has not seen yet is cancelled when it comes.

        Raises:
            UnknownRequest: the queue has never seen it, and `before_ms` is not given; nothing was changed.
            NotPermitted: this user may not write results, as in the role of a producer; nothing was changed.
        """
        record = await self.connection.command("GET", self.keys.request(request_id))
        entry, reply = recorded(record)
        keys = [
            *self._shared,
            self.keys.result(request_id),
            self.keys.reply(reply) if reply else self.keys.result(request_id),
            self.keys.tokens(request_id),
        ]
        error = openai_error(reason, "cancelled", None, "cancelled")
        known = "" if record is None else entry or request_id
        life_ms = "" if before_ms is None else min(before_ms, self.limits.record_ttl_ms)
        said: int | bytes = b""
        while isinstance(said, bytes):  # where to look on
            args = [self._config, request_id, reply, error, known, said, life_ms]
            said = await self.connection.script("cancel", keys, args)
        if said == NEVER_SEEN:
            raise UnknownRequest(request_id)
        if said:
            return True
        result = await self.result(request_id)
        return result is not None and result.status == "cancelled"

    async def end_vanished(self, request_ids: Sequence[str], mend: bool) -> list[str]:
        """End recorded requests whose entry is gone, so that nobody waits for them. Returns their ids."""
        left, gone = list(request_ids), []
        while left:
            codes = await self._end_vanished(left, mend)
            gone += [name for name, code in zip(left, codes, strict=False) if code]
            left = left[len(codes) :]
        return gone

    async def _end_vanished(self, request_ids: Sequence[str], mend: bool) -> list[int]:
        records = await self.connection.pipeline([("GET", self.keys.request(name)) for name in request_ids])
        keys, args = list(self._shared), [self._config, int(mend), VANISHED_BYTES]
        for name, record in zip(request_ids, records, strict=True):
            reply = (record or b"").decode(errors="replace").split(" ", 2)[2:]
            told = reply[0] if reply else ""
            keys += (self.keys.request(name), self.keys.result(name))
            keys += (self.keys.reply(told) if told else self.keys.result(name), self.keys.tokens(name))
            args += (name, told)
        return list(await self.connection.script("vanish", keys, args))

    async def _has_group(self, key: str) -> bool:
        try:
            await self._look("XPENDING", key, GROUP)
        except MissingGroup:
            return False
        return True

    async def _expect_again(self, key: str) -> None:
        """After a lane's group is recreated, its entries are delivered again; remember which were staged before."""
        if key == self.keys.wake:
            return
        lane, states = LANES[self.keys.lanes.index(key)], self.keys.lane_states
        if staged := await self._look("HGET", states, f"staged:{lane}"):
            await self._look("HSET", states, f"again:{lane}", staged)

    async def _ask(self, key: str, most: int, *fields: str | int) -> None:
        """Add a request to a stream that workers read; works at the memory limit too, because workers free memory."""
        await self.connection.script("ask", [key, self.keys.reply("")], [most, *fields])

    async def _look(self, *words: Any) -> Any:
        """Send a command on a shared key; reports a key that was overwritten with another type."""
        try:
            return await self.connection.command(*words)
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise another_type(self.connection.address) from error
            raise

    async def _look_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The same for several commands in one round trip; replies in their order."""
        try:
            return await self.connection.pipeline(commands)
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise another_type(self.connection.address) from error
            raise

    async def _with_groups(self, operation: Callable[[], Awaitable[T]]) -> T:
        try:
            return await operation()
        except MissingGroup:
            await self.ensure_groups()
            return await operation()
