"""Runs all checks of `streamfleet doctor` in order; a check that fails to run does not stop the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from streamfleet.common.clock import Clock
from streamfleet.common.errors import BrokerUnavailable, InvalidRequest, NotPermitted
from streamfleet.common.protocol import LANES
from streamfleet.common.server_checks import read_info
from streamfleet.operator.access_rules import Role
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.doctor import queue
from streamfleet.operator.doctor.access import access_check, attempts, cannot_tell
from streamfleet.operator.doctor.check import Check, fail
from streamfleet.operator.doctor.server import WITH_SELECTORS, clock_check, int_or, ping_check, server_checks
from streamfleet.operator.snapshot import take_snapshot

PINGS = 21
QUESTIONS = 5
"""Number of times that the clock is read; the fastest answer counts."""


async def examine(
    broker: OperatorBroker, clock: Clock, *, password_given: bool, environment: Mapping[str, str] | None = None
) -> list[Check]:
    """Run all checks, in the order of their dependencies.

    Args:
        broker: the queue.
        clock: this machine's clock.
        password_given: True if REDIS_URL has a password.
        environment: values of the queue's configuration that this machine's environment names.

    Returns:
        The findings. If Redis does not answer, that is the only one, or the last.
    """
    found: list[Check] = []
    try:
        await broker.connection.ping()
        await broker.refresh_configuration()
        info = await _info(broker, found)
        found.append(await _access(broker, info, password_given=password_given))
        found.append(await _clock(broker, clock))
        found.append(ping_check([await _ping_ms(broker, clock) for _ in range(PINGS)]))
        await _look_at_queue(broker, found, environment or {})
    except BrokerUnavailable as error:
        found.append(fail("connection", str(error), "REDIS_URL, or Redis itself"))
    return found


async def _info(broker: OperatorBroker, found: list[Check]) -> Mapping[str, str]:
    try:
        info = read_info(await broker.connection.command("INFO"))
    except NotPermitted as error:
        found.append(queue.not_looked_at("server", str(error)))
        return {}
    found += server_checks(info, broker.limits.enqueue_replicas)
    return info


async def _access(broker: OperatorBroker, info: Mapping[str, str], *, password_given: bool) -> Check:
    release = tuple(int_or(part, 0) for part in info.get("redis_version", "0.0").split(".")[:2])
    if release < WITH_SELECTORS:
        return cannot_tell("this server has no ACL DRYRUN" if info else "its release is not known")
    try:
        wanted = {role: attempts(role, broker.keys, clustered=info.get("cluster_enabled", "0") == "1") for role in Role}
    except InvalidRequest as error:
        return cannot_tell(str(error))
    answer = await broker.permitted([words for commands in wanted.values() for words in commands])
    if answer is None:
        return cannot_tell("this user may not ask for it")
    user, each = answer[0], iter(answer[1])
    refused = {role: [words for words in commands if not next(each)] for role, commands in wanted.items()}
    return access_check(user, refused, open_door=not password_given)


async def _clock(broker: OperatorBroker, clock: Clock) -> Check:
    questions = [await _offset(broker, clock) for _ in range(QUESTIONS)]
    took_s, offset_s = min(questions)
    return clock_check(offset_s, took_s)


async def _offset(broker: OperatorBroker, clock: Clock) -> tuple[float, float]:
    """Duration of reading Redis's clock, and its offset in the middle of that time; seconds."""
    asked_ms, started = clock.now_ms(), clock.monotonic()
    theirs_ms = await broker.now_ms()
    took_s = clock.monotonic() - started
    return took_s, (theirs_ms - asked_ms) / 1000 - took_s / 2


async def _ping_ms(broker: OperatorBroker, clock: Clock) -> float:
    started = clock.monotonic()
    await broker.connection.ping()
    return (clock.monotonic() - started) * 1000


async def _look_at_queue(broker: OperatorBroker, found: list[Check], environment: Mapping[str, str]) -> None:
    async def snapshot_checks() -> list[Check]:
        snapshot = await take_snapshot(broker)
        try:
            fields = await broker.configuration()
            configuration = queue.configuration_check(fields, broker.limits, snapshot, environment)
        except NotPermitted as error:
            configuration = queue.not_looked_at("configuration", str(error))
        served = any([await broker.has_group(lane) for lane in LANES])
        return [queue.workers_check(snapshot, served=served), configuration, queue.lateness_check(snapshot)]

    async def alone(look: Callable[[OperatorBroker], Awaitable[Check]]) -> list[Check]:
        return [await look(broker)]

    looks: dict[str, Callable[[], Awaitable[list[Check]]]] = {
        "keys": lambda: alone(queue.shared_keys_check),
        "groups": lambda: alone(queue.groups_check),
        "expiry": lambda: queue.sampled_keys_checks(broker),
        "mistyped": lambda: alone(queue.mistyped_check),
        "workers": snapshot_checks,
        "functions": lambda: alone(queue.functions_check),
    }
    for name, look in looks.items():
        if any(check.name == "keys" and check.level == "fail" for check in found):
            return  # a key of a wrong type would fail all later checks
        try:
            found += await look()
        except NotPermitted as error:
            found.append(queue.not_looked_at(name, str(error)))
