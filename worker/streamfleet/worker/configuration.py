"""The queue's configuration as one worker follows it, and the length of the lease while it changes.

The configuration comes in through a broker: at the start, in the answer to each heartbeat, and at once when a notice
tells of a change. What Redis lacks is written; what changes goes on to the worker's parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.errors import NotPermitted, SettingsError, UnknownProtocol
from streamfleet.common.limits import QueueLimits
from streamfleet.common.queue_configuration import differences, encode, lacks
from streamfleet.common.settings import variable

log = structlog.get_logger(__name__)
HEARD_LEASES = 2
"""Leases after which each worker that is alive has heard of a change: heartbeats come once per lease."""


class Configuration:
    """The queue's configuration as this worker follows it. The lease thread changes it, the event loop reads it.

    Args:
        limits: the limits of this worker's environment; they hold until Redis tells others.
        environment: values that the environment names, as opposed to defaults.

    Attributes:
        limits: the limits in use.
    """

    def __init__(self, limits: QueueLimits, environment: Mapping[str, str] | None = None) -> None:
        self.limits = limits
        self._environment = environment or {}
        self._told = ""

    async def take(self, broker: WorkerBroker, fields: Mapping[str, str] | None) -> bool:
        """Follow what Redis tells; write what it lacks.

        Args:
            broker: follows as well.
            fields: the configuration; None if Redis refuses to read it, and then nothing changes.

        Returns:
            True if a limit has changed.

        Raises:
            NotPermitted, UnknownProtocol: it cannot serve this queue.
        """
        if fields is None:
            return False
        try:
            if lacks(fields):
                fields = await broker.agree()
            changed = broker.follow(fields)
        except (NotPermitted, UnknownProtocol):
            raise
        except SettingsError as error:
            return self._not_followed(str(error))
        self.limits, self._told = broker.limits, ""
        if changed:
            log.info("queue_configuration", **{name: f"{old} -> {new}" for name, (old, new) in changed.items()})
        return bool(changed)

    async def reread(self, broker: WorkerBroker) -> bool:
        """Read the configuration, and follow it as `take` does."""
        try:
            fields = await broker.configuration()
        except (NotPermitted, UnknownProtocol):
            raise
        except SettingsError as error:
            return self._not_followed(str(error))
        return await self.take(broker, fields)

    def _not_followed(self, reason: str) -> bool:
        if reason != self._told:
            self._told = reason
            log.warning("queue_configuration_not_followed", reason=reason)
        return False

    def warn(self) -> None:
        """Log each value of the environment that is not the queue's."""
        for name, (own, queue) in self._differences().items():
            log.warning(
                "setting_differs_from_queue",
                variable=variable(name),
                value=own,
                queue=queue,
                change=f"the queue's value holds: unset the variable, or `streamfleet queue set {name}={own}`",
            )

    def describe(self) -> dict[str, Any]:
        """The part of the worker's description that tells of the configuration."""
        said = {name: own for name, (own, _) in self._differences().items()}
        return {"environment": said} if said else {}

    def _differences(self) -> dict[str, tuple[str, str]]:
        return differences(self._environment, encode(self.limits))


class LeaseLength:
    """Length of the queue's lease, while the workers hear of a change one after the other.

    A worker that has not heard yet renews and reclaims by the former length. Until all have heard, leases are renewed
    by the shortest and reclaimed by the longest length, so that no request is taken from a worker that renews it.

    Args:
        lease_ms: length at the start.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._former: list[tuple[float, int]] = []

    def change(self, lease_ms: int, now: float) -> None:
        """Set the length, at this time in monotonic seconds."""
        if lease_ms != self._lease_ms:
            self._former.append((now + HEARD_LEASES * self._lease_ms / 1000, self._lease_ms))
            self._lease_ms = lease_ms

    def shortest_ms(self, now: float) -> int:
        """Length to renew by."""
        return min(self._in_use(now))

    def longest_ms(self, now: float) -> int:
        """Length to reclaim by."""
        return max(self._in_use(now))

    def _in_use(self, now: float) -> list[int]:
        self._former = [each for each in self._former if each[0] > now]
        return [self._lease_ms, *(lease_ms for _, lease_ms in self._former)]
