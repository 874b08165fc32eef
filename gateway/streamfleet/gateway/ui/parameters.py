"""Parameters of the page's requests, read from a query or body and checked. Pure.

Every function returns the checked value, or raises InvalidRequest with the name of the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import LANES, Lane
from streamfleet.gateway.ui.search import STATES, SearchCriteria
from streamfleet.operator.broker.inspecting import read_entry_name

USUAL_LIMIT, MOST_LIMIT, MOST_IDS = 20, 100, 100
MOST_CHARS = 256
_DIGITS = re.compile(r"[0-9]{1,4}")


def read_criteria(query: Mapping[str, str]) -> SearchCriteria:
    """Returns the search criteria. Raises InvalidRequest."""
    lane, state = query.get("lane") or None, query.get("state") or None
    if lane is not None and lane not in LANES:
        raise InvalidRequest(f"must be one of {', '.join(LANES)}", "lane")
    if state is not None and state not in STATES:
        raise InvalidRequest(f"must be one of {', '.join(STATES)}", "state")
    for name in ("query", "tenant"):
        if len(query.get(name, "")) > MOST_CHARS:
            raise InvalidRequest(f"must be at most {MOST_CHARS} characters", name)
    return SearchCriteria(
        query.get("query", "").strip(),
        None if lane is None else Lane(lane),
        state,
        query.get("tenant") or None,
        read_limit(query),
    )


def read_limit(query: Mapping[str, str]) -> int:
    """Returns the number of rows asked for. Raises InvalidRequest."""
    text = query.get("limit") or str(USUAL_LIMIT)
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= MOST_LIMIT:
        raise InvalidRequest(f"must be 1 to {MOST_LIMIT}", "limit")
    return int(text)


def read_before(query: Mapping[str, str]) -> str | None:
    """Returns the id of the dead letter after which a page begins; None for the first page. Raises InvalidRequest."""
    text = query.get("before") or None
    return None if text is None else _check_dead_letter_id(text, "before")


def read_queue(asked: Mapping[str, Any]) -> str | None:
    """Returns the queue that a body names. Raises InvalidRequest."""
    queue = asked.get("queue")
    if queue is not None and not isinstance(queue, str):
        raise InvalidRequest("must be a string", "queue", "invalid_type")
    return queue


def read_dead_letter_ids(asked: Mapping[str, Any]) -> list[str]:
    """Returns the dead letters that a body names, each once. Raises InvalidRequest."""
    ids = asked.get("ids")
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise InvalidRequest("must be a list of ids of dead letters", "ids", "invalid_type")
    if not 1 <= len(ids) <= MOST_IDS:
        raise InvalidRequest(f"must be 1 to {MOST_IDS} of them", "ids")
    return list(dict.fromkeys(_check_dead_letter_id(each, "ids") for each in ids))


def read_lanes(asked: Mapping[str, Any]) -> list[Lane]:
    """Returns the lanes that a body names; all lanes if it names none. Raises InvalidRequest."""
    lanes = asked.get("lanes")
    if lanes is None:
        return list(LANES)
    if not isinstance(lanes, list) or not lanes or not all(isinstance(each, str) for each in lanes):
        raise InvalidRequest("must be a list of lanes; leave it out for all of them", "lanes", "invalid_type")
    if any(each not in LANES for each in lanes):
        raise InvalidRequest(f"must be some of {', '.join(LANES)}", "lanes")
    return [lane for lane in LANES if lane in lanes]


def _check_dead_letter_id(text: str, param: str) -> str:
    # Dead letters have stream ids; Redis refuses ids with numbers that are too large.
    named = read_entry_name(f"{Lane.NORMAL}:{text}")
    if named is None or named[1] == "0-0":
        raise InvalidRequest(f"{text[:40]!r} is no id of a dead letter, such as 1790000000000-0", param)
    return named[1]
