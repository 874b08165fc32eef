"""Checks of the server from INFO, and of the connection from clocks and pings. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

from streamfleet.common.server_checks import Finding, findings
from streamfleet.operator.doctor.check import Check, fail, ok, warn

WITH_SELECTORS = (7, 0)
NEARLY_FULL, FULL = 0.80, 0.95
SLOW_PING_MS, DEAD_SLOW_PING_MS = 20.0, 1_000.0
SKEW_S, BAD_SKEW_S = 0.5, 30.0
LAGGING_S = 10


def server_checks(info: Mapping[str, str], replicas: int) -> list[Check]:
    """All findings from INFO.

    Args:
        info: names and values of INFO.
        replicas: number of replicas that enqueueing waits for.
    """
    wrong = {finding.event: finding for finding in findings(info, replicas)}
    return [
        _version(info, wrong.get("redis_is_too_old")),
        _policy(info, wrong.get("redis_may_evict")),
        _memory(info),
        _persistence(info, wrong.get("redis_has_no_aof")),
        _writing(info),
        _replication(info, wrong.get("redis_is_a_replica"), wrong.get("redis_has_too_few_replicas")),
    ]


def clock_check(offset_s: float, round_trip_s: float) -> Check:
    """Finding about the difference of the clocks.

    Args:
        offset_s: Redis's clock minus this machine's, in the middle of the round trip, seconds.
        round_trip_s: duration of the round trip; the error of the offset is at most half of it.
    """
    sure_s = max(0.0, abs(offset_s) - round_trip_s / 2)
    way = "ahead of" if offset_s > 0 else "behind"
    seen = f"Redis is {abs(offset_s) * 1000:.0f} ms {way} this machine (± {round_trip_s * 500:.1f} ms)"
    if sure_s < SKEW_S:
        return ok("clock", seen)
    change = "NTP on both machines; until then send ttl in place of deadline: it needs no clock of yours"
    return (fail if sure_s >= BAD_SKEW_S else warn)("clock", seen, change)


def ping_check(pings_ms: Sequence[float]) -> Check:
    """Finding about the round-trip times of PING, in milliseconds."""
    median = statistics.median(pings_ms)
    seen = f"{median:.2f} ms (median of {len(pings_ms)}, at most {max(pings_ms):.2f})"
    if median < SLOW_PING_MS:
        return ok("ping", seen)
    change = "workers and Redis in one zone; SLOWLOG GET and the CPU of Redis, if they are"
    return (fail if median >= DEAD_SLOW_PING_MS else warn)("ping", seen, change)


def _of(name: str, finding: Finding, seen: str = "") -> Check:
    told = f"{seen}: {finding.message}" if seen else finding.message
    return (fail if finding.critical else warn)(name, told, finding.setting)


def _version(info: Mapping[str, str], too_old: Finding | None) -> Check:
    valkey, version = info.get("valkey_version"), info.get("redis_version", "")
    called = f"Valkey {valkey}" if valkey else f"Redis {version or 'of unknown version'}"
    if too_old is not None:
        return _of("version", too_old)
    if (found := re.match(r"(\d+)\.(\d+)", version)) and (int(found[1]), int(found[2])) < WITH_SELECTORS:
        lacks = "ACL selectors and ACL DRYRUN (`streamfleet acl` needs them), and the count of all that was ever added"
        return warn("version", f"{called}: it lacks {lacks}", "Redis 7.0 or newer, or Valkey")
    return ok("version", called)


def _policy(info: Mapping[str, str], evicting: Finding | None) -> Check:
    if evicting is not None:
        return _of("eviction", evicting)
    return ok("eviction", f"maxmemory-policy {info.get('maxmemory_policy', 'not told')}")


def _memory(info: Mapping[str, str]) -> Check:
    used, most, machine = (_number(info, name) for name in ("used_memory", "maxmemory", "total_system_memory"))
    if not most:
        seen = f"{_bytes(used)} used, no limit; the machine has {_bytes(machine)}"
        return warn("memory", f"{seen}: when that is used up, the system kills Redis", "maxmemory: 60 % of the machine")
    part = used / most
    seen = f"{_bytes(used)} of {_bytes(most)} used ({part:.0%})"
    if part < NEARLY_FULL:
        return ok("memory", seen)
    other = "a smaller result_ttl_ms than `streamfleet queue show` tells"
    change = f"maxmemory, {other}, or `streamfleet dead purge --reason expired`"
    if part < FULL:
        return warn("memory", seen, change)
    return fail("memory", f"{seen}: new requests are refused at the limit", change)


def _persistence(info: Mapping[str, str], no_aof: Finding | None) -> Check:
    if no_aof is not None:
        return _of("persistence", no_aof)
    if info.get("aof_last_write_status", "ok") != "ok":
        return fail("persistence", "the append-only file cannot be written: Redis refuses writes", "room on its disk")
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        change = "room on its disk, and memory for a fork (vm.overcommit_memory 1)"
        return warn("persistence", "the last rewrite of the append-only file failed: it grows and grows", change)
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        change = "room on its disk; until then stop-writes-on-bgsave-error may refuse all writes"
        return warn("persistence", "the last snapshot failed", change)
    size = f", {_bytes(_number(info, 'aof_current_size'))}" if "aof_current_size" in info else ""
    return ok("persistence", f"append-only file{size}")


def _writing(info: Mapping[str, str]) -> Check:
    if info.get("loading", "0") == "1" or info.get("async_loading", "0") == "1":
        left = f", {info['loading_eta_seconds']} s to go" if "loading_eta_seconds" in info else ""
        return fail("background", f"it is loading its data{left}", "nothing: wait for it")
    rewriting, saving = info.get("aof_rewrite_in_progress") == "1", info.get("rdb_bgsave_in_progress") == "1"
    if rewriting or saving:
        doing = "rewriting its append-only file" if rewriting else "saving a snapshot"
        return ok("background", f"it is {doing}: answers may take longer meanwhile")
    return ok("background", "no loading, no rewrite, no snapshot under way")


def _replication(info: Mapping[str, str], replica: Finding | None, too_few: Finding | None) -> Check:
    if replica is not None:
        return _of("replication", replica)
    told = [dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair) for value in _replicas(info)]
    seen = f"a master with {_count(len(told), 'replica')}"
    if too_few is not None:
        return _of("replication", too_few, seen)
    behind = [one for one in told if one.get("state") != "online" or int_or(one.get("lag"), 0) > LAGGING_S]
    if behind:
        names = ", ".join(f"{one.get('ip')}:{one.get('port')} {one.get('state')}" for one in behind)
        change = "the network between them, and client-output-buffer-limit replica"
        return warn("replication", f"{seen}; not in step: {names}", change)
    return ok("replication", seen)


def _replicas(info: Mapping[str, str]) -> list[str]:
    return [value for name, value in info.items() if re.fullmatch(r"slave\d+", name)]


def int_or(text: str | None, default: int) -> int:
    """Parse a whole number; the default for any other text."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else default


def _number(info: Mapping[str, str], name: str) -> int:
    return int_or(info.get(name), 0)


def _bytes(size: int) -> str:
    value, unit = float(size), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
