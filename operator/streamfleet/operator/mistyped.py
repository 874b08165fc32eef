"""Finds streams that a mistyped XADD made: no worker ever sees the requests in them. Reads only.

A stream's name tells most. If it may be another program's too, its newest entry decides: requests have a field `body`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from streamfleet.common.connection import Connection
from streamfleet.common.errors import NotPermitted
from streamfleet.common.protocol import LANES

AT_ONCE, MOST_READ, LONGEST_NAME = 2_000, 1_000, 1_000
"""Keys that one SCAN looks at, about a millisecond for Redis; streams of a node that are read; bytes of a name."""
SURE, UNSERVED = 3, 9
_OURS = re.compile(
    rf"[^{{}}]*\{{gateway\}}/.*|(?P<base>[^{{}}]*\{{[^{{}}]+\}}:)(?:lane:(?P<lane>{'|'.join(LANES)})"
    r"|dead|wake|cancels|cancel_requests|(?:reply|tokens):.*|.*:broken:.*)",
    re.DOTALL,
)
_LANE_WORD = re.compile(r"(.*(?<![a-z]))(lane)(?:s(?![a-z]))?(.*)", re.DOTALL | re.IGNORECASE)
_LAST_WORD = re.compile(r"(.*[^a-z0-9])()([a-z0-9]+)[^a-z0-9]*", re.DOTALL | re.IGNORECASE)


async def find_mistyped(
    connection: Connection, own: str, rounds: float = math.inf
) -> tuple[list[str], list[str], bool]:
    """Look through the database, in a cluster through that of each node, with at most so many calls of SCAN.

    Args:
        connection: to the queue's server.
        own: what the queue's keys begin with.
        rounds: largest number of SCAN calls at each node.

    Returns:
        One line about each mistyped stream; one about each lane of another queue that no worker has served yet; and
        True if no bound cut it off.
    """
    mistyped, unserved, whole = [], [], True
    async for node in connection.each_node():
        names, complete = await _streams(node, rounds)
        lanes = {ours["base"]: ours[0] for ours in map(_OURS.fullmatch, names) if ours and ours["lane"]}
        # The first worker of a queue makes the groups of its lanes.
        groups = {base: await _ask(node, "XINFO", "GROUPS", names[lane]) for base, lane in lanes.items()}
        served = [base for base, found in groups.items() if found != []]
        # Without a worker, the examined queue may be the mistyped one.
        served = served if groups.get(own) == [] and _nearest(own, served) else [own, *served]
        judged = {name: judge(name, served) for name in sorted(names)}
        likely = [name for name, (sure, _) in judged.items() if sure >= SURE - 1]
        whole = whole and complete and len(likely) <= MOST_READ
        for name in likely[:MOST_READ]:
            sure, meant = judged[name]
            newest = await _ask(node, "XREVRANGE", names[name], "+", "-", "COUNT", 1)
            if newest != [] and (sure >= SURE or (newest and b"body" in newest[0][1][::2])):
                count = await _ask(node, "XLEN", names[name])
                held = "entries" if count is None else f"{count} {'entry' if count == 1 else 'entries'}"
                if sure == UNSERVED:
                    unserved.append(f"{name!r} holds {held}, and no worker has ever served {meant}")
                else:
                    mistyped.append(f"{name!r} holds {held} that no worker sees; meant was {meant}")
    return mistyped, unserved, whole


def judge(name: str, served: Sequence[str]) -> tuple[int, str]:
    """Judge by the name of a stream if it was to be a lane.

    Args:
        name: the name.
        served: what the keys of queues that have workers begin with, first those of the examined queue.

    Returns:
        A number, `SURE` or more if the name alone says so; and the name that was probably meant. `UNSERVED` for a lane
        of a queue that no worker has served, and whose name is unlike those of queues that have workers; and the queue.
    """
    if ours := _OURS.fullmatch(name):
        base, lane = ours["base"], ours["lane"]
        if not lane or base in served:
            return 0, ""
        meant = _nearest(base, served)
        return (SURE, f"{meant}lane:{lane}, as no worker has ever served {base}") if meant else (UNSERVED, base)
    if (parts := _LANE_WORD.fullmatch(name) or _LAST_WORD.fullmatch(name)) is None:
        return 0, ""
    head, word, tail = parts.groups()
    braced = re.search(r"\{([^{}]+)", head)
    queue = (braced[1] if braced else head).strip(" :.-_/}")
    base = next((each for each in served if _plain(queue) in (_plain(each), _plain(each.partition("{")[2]))), None)
    lane = _lane(tail)
    sure = bool(base) + bool(braced or (base and word)) + bool(word) + bool(lane)
    meant = base or (f"{{{queue}}}:" if queue else served[0])
    return sure, f"{meant}lane:{lane or ' and one of ' + ', '.join(LANES)}"


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _nearest(base: str, served: Sequence[str]) -> str | None:
    """The queue that was meant: one letter more or less, two exchanged, another case, or the prefix left out.

    A letter or digit in another's place is no mistake, as queues may be named a and b.
    """
    name = _plain(base)
    for each in served:
        other = _plain(each[each.index("{") :] if base.startswith("{") else each)
        apart = Counter(name) - Counter(other) + (Counter(other) - Counter(name))
        if apart.total() <= (len(name) > 3) and re.sub("[a-z]", "", name) == re.sub("[a-z]", "", other):
            return each
    return None


def _lane(text: str) -> str:
    """The lane that a text is or nearly is; empty for none."""
    word = _plain(text)
    begun = [lane for lane in LANES if len(word) > 1 and lane.startswith(word)]
    return next(iter(begun or difflib.get_close_matches(word, LANES, 1, 0.75)), "")


async def _streams(node: Connection, rounds: float) -> tuple[dict[str, bytes], bool]:
    """Streams by their names as text, and True if these are all."""
    names: dict[str, bytes] = {}
    cursor = b"0"
    while rounds > 0:
        cursor, some = await node.command("SCAN", cursor, "COUNT", AT_ONCE, "TYPE", "stream")
        names |= {key.decode(errors="backslashreplace"): key for key in some if len(key) <= LONGEST_NAME}
        if cursor == b"0":
            return names, True
        rounds -= 1
    return names, False


async def _ask(node: Connection, *words: Any) -> Any:
    """The answer of Redis; None if this user may not ask."""
    try:
        return await node.command(*words)
    except NotPermitted:
        return None
