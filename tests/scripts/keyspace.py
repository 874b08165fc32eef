"""The whole keyspace of a queue as plain data, so that tests compare everything and not only what they think of."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from streamfleet.common.connection import Connection
from streamfleet.common.keys import GROUP, Keys
from streamfleet.common.protocol import LANES

Dump = dict[str, Any]

# One round trip, one instant. A stream: entries, then per group its name, last delivered id, pending rows, consumers.
DUMP = """
local function named(list, name)
  for i = 1, #list, 2 do if list[i] == name then return list[i + 1] end end
end
local function stream(key)
  local groups = {}
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local name, consumers = named(group, 'name'), {}
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', key, name)) do
      consumers[#consumers + 1] = named(consumer, 'name')
    end
    groups[#groups + 1] = {name, named(group, 'last-delivered-id'),
      redis.call('XPENDING', key, name, '-', '+', 100000), consumers}
  end
  return {redis.call('XRANGE', key, '-', '+'), groups}
end
local readers = {
  string = function(key) return redis.call('GET', key) end,
  hash = function(key) return redis.call('HGETALL', key) end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  stream = stream,
}
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  all[#all + 1] = {key, kind, redis.call('PTTL', key), readers[kind](key)}
end
return all
"""

_ELSEWHERE = ("clock", "dead_parts", "listeners", "pace")
"""Keys that have tests of their own."""
_EXPIRING = re.compile(r"(result|reply|request|tokens|named|wake|ended|responses?|kept):|maintain$")
_WAITING = re.compile(r"ready:(\w+)(?::(?:(t|th|ht|h):(.*)|(held|firsts|late|past)))?(?<!:broken:\d{13})$", re.DOTALL)


async def read(connection: Connection, keys: Keys) -> Dump:
    """Everything in Redis, by key without the queue's prefix; empty streams, and `_ELSEWHERE`, are left out.

    Lanes: ``entries`` (id to fields), ``undelivered`` (ids), ``pending`` (id to (consumer, deliveries)). Other streams,
    whose ids come from the server's clock: entries alone, as a list; of notifications the id and the status. The wake
    stream: how many are ``undelivered`` and ``pending``. Sorted sets: (member, score) in order; members of the sets of
    what waits begin with a stream id.

    Raises:
        AssertionError: a key outside the queue; one that should expire and does not, or the other way round; a result
            that came with its notification and is not the stored one; sets of what waits that contradict each other.
    """
    labelled = None
    dump: Dump = {}
    for raw_key, kind, ttl_ms, value in await connection.command("EVAL", DUMP, 0):
        key = text(raw_key)
        assert key.startswith(keys.base), f"{key} is a key outside the queue"
        name = key.removeprefix(keys.base)
        expires = _EXPIRING.match(name) is not None
        assert (ttl_ms > 0) == expires, f"{name} has a TTL of {ttl_ms} ms"
        if name == "lanes" and kind == b"hash":
            labelled = dict(zip(value[::2], value[1::2], strict=True)).get(b"labelled")
        seen = _VALUES[text(kind)](name, value)
        if seen and name not in _ELSEWHERE:
            dump[name] = seen
    contradictions = waiting_problems(dump, text(labelled or b""))
    assert not contradictions, contradictions
    return dump | {name: _notifications(dump, name) for name in dump if name.startswith("reply:")}


def _notifications(dump: Dump, name: str) -> list[dict[str, str]]:
    for told in dump[name]:
        stored = dump.get(f"result:{told['id']}")
        # Where neither names an entry, an earlier result of the id may be told, and another be there.
        if isinstance(stored, dict) and "entry" in told and stored.get("entry") == told["entry"]:
            assert told.items() - {("id", told["id"])} <= stored.items(), f"{name} tells another result"
    return [{"id": told["id"], "status": told["status"]} for told in dump[name]]


def waiting_problems(dump: Dump, labelled: str) -> list[str]:
    """Contradictions between the sets of what waits, the tickets, and the numbers that `lanes` has of them."""
    number: Counter[tuple[str, str]] = Counter()
    tickets: dict[str, str] = {}
    firsts: dict[tuple[str, str], float] = {}
    shown: dict[tuple[str, str], float] = {}
    at_home: dict[str, list[Any]] = {"th": [], "ht": []}
    for key, rows in dump.items():
        lane, kind, name, _ = match.groups() if (match := _WAITING.match(key)) else ("", "", "", "")
        kind = match[4] if match and match[4] else kind
        if not kind:
            continue
        number[lane, kind] += len(rows)
        if kind == "h":
            firsts[lane, name] = rows[0][1]
            tickets |= {f"{LANES.index(lane) + 1}|{member}": f"{name} 0  " for member, _ in rows}
        elif kind == "firsts":
            shown |= {(lane, home): rank for home, rank in rows}
        elif kind in at_home:
            for member, rank in rows:
                stream_id, size, limit, label = member.split(" ", 3)
                home, tenant = (label, name) if kind == "th" else (name, label)
                at_home[kind].append((lane, stream_id, size, limit, home, tenant, rank))
                tickets[f"{LANES.index(lane) + 1}|{stream_id}"] = f"{home} {size} {limit} {tenant}"
    known = dump.get("tickets", {})
    counts = [[number[lane, kind] for kind in ("t", "th", "h", "held")] for lane in LANES]
    said = "".join(f"{' '.join(map(str, row))};" for row in counts) if any(map(any, counts)) else ""
    found = [f"lanes says {labelled!r}, and there are {said!r}"] if labelled != said else []
    if sorted(at_home["th"]) != sorted(at_home["ht"]):
        found.append(f"of tenants with a home {at_home['th']}, of homes with a tenant {at_home['ht']}")
    if tickets != known:
        found.append(f"tickets are {known}, and should be {tickets}")
    if firsts != shown:
        found.append(f"firsts are {shown}, and should be {firsts}")
    return found


def beside_tenants(dump: Dump) -> Dump:
    """A dump without what is known of tenants, which has tests of its own."""
    keys = re.compile(r"served|tenants|turns:|ready:\w+:(t:|late|past)")
    return {name: value for name, value in dump.items() if not keys.match(name)}


def text(value: bytes) -> str:
    """Text of a reply, odd bytes written as ``\\xff``."""
    return value.decode(errors="backslashreplace")


def pairs(flat: list[bytes]) -> dict[str, str] | list[tuple[str, str]]:
    """Fields of an entry; a list of pairs where a name occurs twice."""
    found = [(text(name), text(value)) for name, value in zip(flat[::2], flat[1::2], strict=True)]
    return dict(found) if len(dict(found)) == len(found) else found


def id_key(stream_id: str) -> tuple[int, int]:
    """Stream ids in their order."""
    milliseconds, sequence = stream_id.split("-")
    return int(milliseconds), int(sequence)


def changed(before: Dump, changes: Mapping[str, Any]) -> Dump:
    """`before` with some keys changed; a key changed to None is gone."""
    after = before | dict(changes)
    return {name: value for name, value in after.items() if value is not None}


def _stream(name: str, value: Any) -> Any:
    entries = {text(stream_id): pairs(fields) for stream_id, fields in value[0]}
    if not name.startswith("lane:") and name != "wake":
        return list(entries.values())
    workers = next((group for group in value[1] if text(group[0]) == GROUP), None)
    last = text(workers[1]) if workers else "0-0"
    rows = workers[2] if workers else []
    undelivered = [stream_id for stream_id in entries if id_key(stream_id) > id_key(last)]
    if name == "wake":
        parts: dict[str, Any] = {"undelivered": len(undelivered), "pending": len(rows)}
    else:
        pending = {text(row[0]): (text(row[1]), row[3]) for row in rows}
        parts = {"entries": entries, "undelivered": undelivered, "pending": pending}
    return {part: content for part, content in parts.items() if content}


def _sorted_set(name: str, value: list[bytes]) -> list[tuple[str, float]]:
    match = _WAITING.match(name)
    decode = _stream_id if match and match[4] not in ("firsts", "late", "past") else text
    return [(decode(member), float(score)) for member, score in zip(value[::2], value[1::2], strict=True)]


def _of_lanes(value: list[bytes]) -> dict[str, str]:
    """Of `lanes` and `entries`, what is owed and what is known of interruptions; the rest has tests of its own."""
    known = ("credit:", "interrupted", "kept_bytes")
    return {name: text for name, text in dict(pairs(value)).items() if name.startswith(known)}


def _served(value: list[bytes]) -> dict[str, str]:
    """Records of tenants in words."""
    flat = [*value]
    for i in range(0, len(flat), 2):
        if flat[i].startswith(b"t|"):
            flat[i + 1] = b" ".join(b"%d" % number for number in struct.unpack("<8d", flat[i + 1]))
    return dict(pairs(flat))


def _hash(name: str, value: list[bytes]) -> Any:
    readers = {"lanes": _of_lanes, "entries": _of_lanes, "served": _served}
    return readers.get(name, pairs)(value)


def _stream_id(member: bytes) -> str:
    match = re.fullmatch(r"[A-Z](\d+)-[A-Z](\d+)( .*)?", text(member), re.DOTALL)
    assert match, f"{member!r} is no member of a set of what waits"
    return f"{match[1]}-{match[2]}{match[3] or ''}"


_VALUES: dict[str, Callable[[str, Any], Any]] = {
    "string": lambda _, value: text(value),
    "hash": _hash,
    "list": lambda _, value: [text(item) for item in value],
    "zset": _sorted_set,
    "stream": _stream,
}
