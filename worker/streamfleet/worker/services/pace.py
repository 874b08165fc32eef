"""Pace of a queue: how fast requests come and are taken. Expected times follow from it (lua/policies/pace.lua).

An arrival is counted where it is read from its lane's stream, which Redis 6.2 does not count: there, times do not know
of requests that are still to come. The key `pace` is JSON; its sums and means fade:

- ``at``: time of the look. ``busy``: something waited. ``gone``: requests that had left the ready sets for good.
- ``took``, ms, and ``left``: the time in which something waited, and how many requests left in it. ``span``, ms: all
  the time. ``run``, ms: mean time of a run.
- ``lanes``: of each lane ``read``, entries that had come, and the ``last`` of them; ``bytes``, size of such an entry;
  ``waits``: some waited; ``came``: how many came. ``who``: hashes of the tenants that sent them, with numbers;
  ``spans``: the same by classes of their times from enqueueing to the deadline, eighths of powers of e; ``gone``:
  those that were taken and answered between two looks, while others waited.
- And while tenants share the lane, ``rows`` of some that wait, in order of their turns: a hash of the name, tokens for
  its weight, tokens for its weight of a usual request, and number of its requests; ``each``: number of tenants for
  which a row stands. Names are hashed, because producers read this, and need not know each other's tenants.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any

from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import LANES, LEAST_WEIGHT, Lane, stream_ms
from streamfleet.common.replies import entries, labelled_lanes, mapping, number, tenant_rule
from streamfleet.worker.services.turn import Turn

STALE_MS, FADE_MS, LONGEST_FADE_MS, FADE_REQUESTS, ARRIVALS_FADE_MS = 10_000, 10_000, 120_000, 100, 30_000
MOST_LATEST, MOST_BYTES, MOST_SENDERS, LEAST = 8, 65_536, 32, 0.01
MOST_ROWS, MOST_TENANTS, USUAL_TOKENS = 64, 4_000, 256
_DIGITS, _RECORD = re.compile(rb"[0-9]{1,16}"), struct.Struct("<8d")


async def measure_pace(turn: Turn) -> None:
    """Measure the pace, by the last one."""
    keys = turn.keys
    text, staged, delayed, states, *rows = await turn.ask(
        ("GET", keys.pace),
        ("HGET", keys.counts, "staged"),
        ("ZCARD", keys.delayed),
        ("HMGET", keys.lane_states, "labelled", *(f"paused:{lane}" for lane in LANES)),
        *(("ZCARD", keys.ready(lane)) for lane in LANES),
        *(("XINFO", "GROUPS", keys.lane(lane)) for lane in LANES),
    )
    labelled, gone, running, lanes = labelled_lanes(states[0]), number(staged or b"") - delayed, 0, []
    for lane, ready, paused, reply in zip(LANES, rows, states[1:], rows[len(LANES) :], strict=False):
        groups: list[dict[bytes, Any]] = [*map(mapping, reply)]
        group = next((each for each in groups if each[b"name"] == GROUP.encode()), {})
        waiting = ready + sum(labelled.get(lane, ()))
        gone, running = gone - waiting, running + group.get(b"pending", 0)
        last = group.get(b"last-delivered-id", b"0-0").decode()
        waits = waiting > 0 and paused is None
        lanes.append({"read": group.get(b"entries-read") or 0, "last": last, "waits": waits})
    pace = {"at": turn.now_ms, "busy": any(lane["waits"] for lane in lanes), "gone": gone, "lanes": lanes}
    try:
        await _go_on(turn, pace, json.loads(text or b"{}"), running)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):  # it was written by hand
        await _go_on(turn, pace, {}, running)
    for lane, ready, told in zip(LANES, rows, lanes, strict=False):
        if lane in labelled and labelled[lane].shared:
            told.update(await _turns(turn, lane, ready + labelled[lane].home))
    await turn.ask(("SET", keys.pace, json.dumps(pace)))


async def _go_on(turn: Turn, pace: dict[str, Any], before: Mapping[str, Any], running: int) -> None:
    """Add to a pace what goes on from the one before; of one that is empty, nothing does. `running`: number of runs."""
    passed = turn.now_ms - before.get("at", math.inf)
    # Neither a step of the clock counts, nor time in which nobody looked.
    if not 0 <= passed <= STALE_MS:
        before, passed = {}, 0
    slowly, span = math.exp(-passed / ARRIVALS_FADE_MS), before.get("span", 0)
    took, left, run = (before.get(name, 0) for name in ("took", "left", "run"))
    # An idle fleet does not show how fast it is.
    if before and pace["busy"] and before["busy"]:
        rate = left / took if took > 0 else 1
        fade = math.exp(-passed / min(LONGEST_FADE_MS, max(FADE_MS, FADE_REQUESTS / max(rate, 1e-6))))
        took, left = took * fade + passed, left * fade + max(0, pace["gone"] - before["gone"])
        mean = running * took / max(1, left)
        run = run + (1 - fade) * (mean - run) if run > 0 else mean
    pace |= {"took": took, "left": left, "run": run, "span": span * slowly + passed}
    for lane, told, known in zip(LANES, pace["lanes"], before.get("lanes") or [{}] * len(LANES), strict=True):
        told.update(
            {name: known.get(name, 0) * slowly for name in ("came", "gone")}, bytes=known.get("bytes", MOST_BYTES)
        )
        for name in ("who", "spans"):
            told[name] = {key: sent * slowly for key, sent in known.get(name, {}).items() if sent * slowly >= LEAST}
        if known and told["read"] > known["read"]:
            await _add_arrivals(turn, lane, told, known, passed, span)


async def _add_arrivals(
    turn: Turn, lane: Lane, told: dict[str, Any], known: Mapping[str, Any], passed: int, span: float
) -> None:
    """Add to what is told of a lane what has come into it since: the latest entries stand for all.

    Args:
        turn: the turn.
        lane: the lane.
        told: what is told of it now.
        known: what was told of it at the last look.
        passed: ms since then.
        span: faded sum of such times before.
    """
    came, who, spans = told["read"] - known["read"], told["who"], told["spans"]
    # Bodies are copied: few are read where the last were large.
    asked = min(came, MOST_LATEST, max(1, MOST_BYTES // (1 + told["bytes"])))
    command = ("XREVRANGE", turn.keys.lane(lane), told["last"], f"({known['last']}", "COUNT", asked)
    (latest,) = map(entries, await turn.ask(command))
    told["came"] += came
    each = 1.0
    if len(latest) == asked and (asked == MOST_LATEST or asked < came):
        # A burst does not go on.
        lately = passed * asked / max(1, turn.now_ms - stream_ms(latest[-1][0]))
        each = min(came, lately, max(MOST_LATEST, 4 * sum(who.values()) * passed / max(1, span))) / asked
    elif told["waits"] and known["waits"]:
        told["gone"] += came - len(latest)
    for stream_id, fields in latest if each > 0 else []:  # 0: no time has passed
        deadline, ttl = (fields.get(name, b"") for name in (b"deadline", b"ttl"))
        span_ms = int(ttl) if _DIGITS.fullmatch(ttl) else turn.broker.limits.patience_ms
        if _DIGITS.fullmatch(deadline):
            span_ms = int(deadline) - min(stream_ms(stream_id), turn.now_ms)
        kind, sender = str(math.floor(8 * math.log(max(1, span_ms)))), _hash(fields.get(b"tenant", b""))
        who[sender], spans[kind] = who.get(sender, 0) + each, spans.get(kind, 0) + each
    if latest:
        told["bytes"] = sum(len(word) for _, fields in latest for item in fields.items() for word in item) // len(
            latest
        )
    for name in sorted(who, key=lambda name: -who[name])[MOST_SENDERS:]:
        told["gone"] += who.pop(name)


async def _turns(turn: Turn, lane: Lane, without_tenant: int) -> dict[str, Any]:
    """Turns of some tenants that wait in a lane, as far apart as can be; the number of those that wait without one."""
    keys = turn.keys
    flat, usual = await turn.ask(
        ("ZRANGEBYSCORE", keys.turns(lane), 0, "inf", "WITHSCORES", "LIMIT", 0, MOST_TENANTS),
        ("HGET", keys.served, "usual"),
    )
    waiting = list(mapping(flat).items())
    most = min(MOST_ROWS, len(waiting))
    some = dict(waiting[i * len(waiting) // most] for i in range(most))
    if not some:
        return {}
    sets = [f"{keys.ready(lane)}:{kind}:".encode() + name for kind in ("t", "th") for name in some]
    records, rules, *numbers = await turn.ask(
        ("HMGET", keys.served, *(b"t|" + name for name in some)),
        ("HMGET", keys.tenants, *some),
        *(("ZCARD", key) for key in sets),
    )
    rows = []
    for i, (name, tokens) in enumerate(some.items()):
        _, requests, _, used, *_ = _RECORD.unpack(records[i] or bytes(_RECORD.size))
        cost, own = used / requests if requests else USUAL_TOKENS, sum(numbers[i::most])
        if name == b"":
            cost, own = float(usual or USUAL_TOKENS), without_tenant
        rows.append([_hash(name), float(tokens), max(1, cost) / _weight(rules[i]), own])
    return {"each": len(waiting) / most, "rows": rows}


def _weight(rule: bytes | None) -> float:
    with contextlib.suppress(ValueError):  # it was written by hand
        return max(LEAST_WEIGHT, tenant_rule((rule or b"1").decode()).weight)
    return 1.0


def _hash(name: bytes) -> str:
    return hashlib.sha1(name, usedforsecurity=False).hexdigest()[:8]
