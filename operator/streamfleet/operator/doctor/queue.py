"""Checks of the queue's own keys, groups, workers and lanes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from streamfleet.common.broker.reconciling import Damage
from streamfleet.common.durations import in_words
from streamfleet.common.errors import SettingsError
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES
from streamfleet.common.queue_configuration import PROTOCOL, decode, differences
from streamfleet.common.settings import variable
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.doctor.check import Check, fail, ok, unknown, warn
from streamfleet.operator.lateness import Cause, lateness
from streamfleet.operator.mistyped import AT_ONCE, find_mistyped
from streamfleet.operator.repair import GROUPS, KINDS, key_check, shared_checks
from streamfleet.operator.snapshot import Snapshot

ROUNDS = 20
"""Number of SCAN calls, some hundreds of keys each: a useful sample in at most a second."""
MISTYPED_ROUNDS = 500
"""The same for names of streams: a million keys, in about a second."""
NAMED, MOST_NAMED = 3, 20
REPAIR = "`streamfleet audit` shows all of it, `streamfleet audit --repair` mends it"


async def shared_keys_check(broker: OperatorBroker) -> Check:
    """Check the types of the keys that all requests share."""
    wrong = await broker.check_keys(shared_checks(broker.keys), mend=False)
    if wrong:
        return fail("keys", _named(wrong), REPAIR)
    return ok("keys", "the keys that all requests share are of the right types")


async def sampled_keys_checks(broker: OperatorBroker) -> list[Check]:
    """Check a sample of keys: results and records must expire. Also lists other queues."""
    keys, whole = await broker.some_keys(ROUNDS)
    own = [key for key in keys if key.startswith(broker.keys.base)]
    checks = [check for key in own if (check := key_check(key, broker.keys, broker.limits)) is not None]
    wrong: list[Damage] = []
    for start in range(0, len(checks), 250):
        wrong += await broker.check_keys(checks[start : start + 250], mend=False)
    part = "" if whole else f", in a part of the {await broker.database_size()} keys there are"
    looked = f"{len(checks)} results, records and reply streams looked at{part}"
    lives = (
        warn("expiry", f"{looked}: {_named(wrong)}", REPAIR) if wrong else ok("expiry", f"{looked}: all will expire")
    )
    return [lives, _others(broker, keys, whole=whole)]


async def mistyped_check(broker: OperatorBroker) -> Check:
    """Look for streams that a mistyped XADD made, and for other queues that still wait for their first worker."""
    found, unserved, whole = await find_mistyped(broker.connection, broker.keys.base, MISTYPED_ROUNDS)
    looked = "all streams" if whole else f"the streams among {MISTYPED_ROUNDS * AT_ONCE} keys of each server"
    if unserved and not found:
        seen = "; ".join(unserved[:MOST_NAMED]) + _more(unserved, MOST_NAMED)
        bases, own = dict.fromkeys(line.rpartition(" ")[2] for line in unserved), f"{broker.keys.prefix}{{"
        named = [base.removeprefix(own).removesuffix("}:") for base in bases if base.startswith(own)]
        commands = [f"`streamfleet worker --queue {shlex.quote(name)}`" for name in named[:NAMED]]
        start = (
            ", ".join(commands) + _more(named)
            if named
            else "a worker with STREAMFLEET_KEY_PREFIX set to what is before `{`"
        )
        change = f"{start}; XADD to another queue's lane, if that was meant, and DEL these"
        return warn("mistyped", seen, change)
    if not found:
        return ok("mistyped", f"{looked} looked at: none has nearly the name of a lane")
    seen = "; ".join(found[:MOST_NAMED]) + _more(found, MOST_NAMED)
    change = "XADD to the lane that was meant, also what these hold (XRANGE shows it), and DEL them"
    return fail("mistyped", seen if whole else f"{seen} ({looked} looked at)", change)


async def groups_check(broker: OperatorBroker) -> Check:
    """Check that the lanes' groups exist, at the right position."""
    wrong = [found for found in await broker.compare(None, mend=False) if found.kind in GROUPS]
    if wrong:
        return fail("groups", _named(wrong), REPAIR)
    there = [lane for lane in LANES if await broker.has_group(lane)]
    if len(there) == len(LANES):
        return ok("groups", "all lanes have theirs")
    missing = ", ".join(lane for lane in LANES if lane not in there)
    return ok("groups", f"none yet on {missing}: the first worker of a queue makes them")


def workers_check(snapshot: Snapshot, *, served: bool = True) -> Check:
    """Check that workers take requests. `served`: False if none has ever served the queue."""
    alive = [worker for worker in snapshot.workers if worker.alive]
    ready = [worker for worker in alive if worker.takes_requests]
    silent = [worker for worker in snapshot.workers if not worker.alive and worker.running]
    waits = snapshot.outstanding
    seen = f"{len(alive)} alive, {len(ready)} ready"
    bad = fail if waits and served else warn
    if not alive:
        since = "" if served else ", and none has ever served this queue"
        return bad("workers", f"{seen}; {waits} requests wait{since}", "start one with `streamfleet worker`")
    why = Counter(worker.why_not for worker in alive if not worker.takes_requests).most_common(NAMED)
    reasons = "; ".join(reason for reason, _ in why)
    if not ready:
        return bad("workers", f"{seen}: {reasons}", "`streamfleet workers`, and their logs")
    if silent:
        seen += f"; {len(silent)} silent with {sum(worker.running for worker in silent)} requests"
        return warn("workers", seen, "nothing: others take these over when the lease is over")
    if len(ready) < len(alive):
        return warn("workers", f"{seen}; the others: {reasons}", "`streamfleet workers`")
    return ok("workers", seen)


def configuration_check(
    fields: Mapping[str, str], limits: QueueLimits, snapshot: Snapshot, environment: Mapping[str, str]
) -> Check:
    """Check that the queue's configuration is valid, and that no environment says otherwise.

    Args:
        fields: the configuration.
        limits: limits to check it with.
        snapshot: the workers.
        environment: values of the configuration that this machine's environment names.
    """
    name, alive = "configuration", [worker for worker in snapshot.workers if worker.alive]
    try:
        decode(limits, fields)
    except SettingsError as error:
        wrong = "; ".join(str(error).splitlines())
        return fail(name, wrong, "`streamfleet queue show` shows all, `streamfleet queue set NAME=VALUE` changes one")
    said = {"this environment": environment, **{worker.name: worker.environment for worker in alive}}
    others = [
        f"{variable(setting)} is {value} in {where}, {queues} in the queue"
        for where, values in said.items()
        for setting, (value, queues) in differences(values, fields).items()
    ]
    if others:
        own = [shlex.quote(f"{setting}={value}") for setting, (value, _) in differences(environment, fields).items()]
        change = f", or `streamfleet queue set {' '.join(own)}`" if own else ""
        seen = "; ".join(others[:NAMED]) + _more(others)
        return warn(name, seen, f"the queue's value holds: unset the variable{change}")
    if PROTOCOL not in fields:
        return ok(name, "none yet: the first worker writes it")
    return ok(name, f"{len(alive)} workers follow it; protocol {fields[PROTOCOL]}")


def lateness_check(snapshot: Snapshot) -> Check:
    """Check for late lanes, and show the age of the oldest request."""
    ages = [lane.oldest_s for lane in snapshot.lanes if lane.oldest_s is not None]
    seen = f"{snapshot.outstanding} outstanding" + (f", the oldest came {in_words(max(ages))} ago" if ages else "")
    found = [each for each in lateness(snapshot) if each.late or each.cause is Cause.PAUSED]
    if not found:
        return ok("lanes", seen)
    told = "; ".join(f"{each.lane}: {each.line()}" for each in found)
    return warn("lanes", f"{seen}; {told}", "`streamfleet backlog --watch`, and docs/operate.md, A lane is late")


def _others(broker: OperatorBroker, keys: Sequence[str], *, whole: bool) -> Check:
    prefix = broker.keys.prefix
    names = sorted({key.removeprefix(prefix)[1:].partition("}")[0] for key in keys} - {broker.keys.queue})
    if not names:
        seen = "no other queue has this prefix" if whole else "no other queue was met in a part of the database"
        return ok("other queues", seen)
    shown = ", ".join(names[: 3 * NAMED]) + (", …" if len(names) > 3 * NAMED else "")
    return ok("other queues", f"{shown}: they share this server's memory and time")


def _named(wrong: Sequence[Damage]) -> str:
    told = [f"{finding.name}: {KINDS[finding.kind][0].format(detail=finding.detail)}" for finding in wrong[:NAMED]]
    return "; ".join(told) + _more(wrong)


def _more(found: Sequence[object], named: int = NAMED) -> str:
    return f" and {len(found) - named} more" if len(found) > named else ""


def not_looked_at(name: str, why: str) -> Check:
    """Finding for data that Redis refuses to show."""
    return unknown(name, why, "a user with the operator's rules: `streamfleet acl --role operator`")
