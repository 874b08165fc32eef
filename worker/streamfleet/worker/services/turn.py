"""A turn of the services: one look of each, once in a round of the housekeeping.

After Redis's clock was set back, times that were written before lie ahead of it. The next turn sees that by the time of
the last one. Then the services look at all records, not at a part of them, and bring such times to now.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog

from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable
from streamfleet.common.replies import mapping

log = structlog.get_logger(__name__)
PART = 200
"""About so many fields of a hash are looked at in one turn."""
LAST, SCAN = "services", "scan:"
"""Fields of the hash `clock`: the last turn; and before the name of a hash, where its scan goes on."""


class Turn:
    """One turn of the services.

    Args:
        broker: the queue.
        now_ms: Redis's clock, epoch ms.
        clock: fields of the hash `clock` that are whole numbers.

    Attributes:
        set_back: the clock was set back since the last turn.
        scans: fields of that hash to write.
    """

    def __init__(self, broker: WorkerBroker, now_ms: int, clock: dict[str, int]) -> None:
        self.broker, self.keys, self.now_ms = broker, broker.keys, now_ms
        self.set_back = clock.get(LAST, 0) > now_ms
        self.scans = {name: value for name, value in clock.items() if name.startswith(SCAN)}

    async def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Replies to commands, in one round trip."""
        return await self.broker.connection.pipeline(commands) if commands else []

    async def scan(self, key: str) -> AsyncIterator[dict[bytes, bytes]]:
        """Parts of a hash, behind that of the last turn, or from the first one if the clock was set back.

        If it was not, one of them is enough.
        """
        name = SCAN + key.removeprefix(self.keys.base)
        place = 0 if self.set_back else self.scans.get(name, 0)
        while True:
            ((cursor, found),) = await self.ask(("HSCAN", key, place, "COUNT", PART))
            place = self.scans[name] = int(cursor)
            yield mapping(found)
            if place == 0:
                return


Service = Callable[[Turn], Awaitable[None]]
"""One service. Its state is in Redis."""


async def take_turn(broker: WorkerBroker, services: Sequence[Service]) -> None:
    """Run services one after another. An error of one is logged, and the others run all the same.

    Raises:
        BrokerUnavailable: Redis cannot be reached.
    """
    key, failed = broker.keys.clock, False
    (seconds, microseconds), reply = await broker.ask(("TIME",), ("HGETALL", key))
    now_ms = broker.limits.now_ms or int(seconds) * 1000 + int(microseconds) // 1000
    clock = {name.decode(errors="replace"): int(value) for name, value in mapping(reply).items() if value.isdigit()}
    turn = Turn(broker, now_ms, clock)
    for service in services:
        try:
            await service(turn)
        except BrokerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a key that was written by hand must not stop the housekeeping
            failed = True
            if not isinstance(error, BrokerOutOfMemory):  # requests tell that as they are refused
                log.warning("service_failed", service=service.__name__, error=str(error))
    ahead = [name for name, value in clock.items() if value > now_ms and name not in turn.scans]
    # Until all have looked at all records, each turn sees that the clock was set back.
    fields = turn.scans | ({} if failed and turn.set_back else dict.fromkeys([*ahead, LAST], now_ms))
    words = [word for item in fields.items() for word in item]
    with contextlib.suppress(BrokerOutOfMemory):
        await broker.ask(*[("HSET", key, *words)] * bool(words))
