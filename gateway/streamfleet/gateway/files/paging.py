"""Pages of a list, in OpenAI's pagination. Pure.

A query goes in, a `Page` comes out; its `to_json` makes what is beside the items in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.batch_records import is_id


@dataclass(frozen=True, slots=True)
class Page:
    """Parameters of a page.

    Attributes:
        after: id to begin after; empty for the first page.
        limit: most items.
        newest_first: order of the items.
    """

    after: str
    limit: int
    newest_first: bool

    def to_json(self, ids: Sequence[str]) -> dict[str, Any]:
        """Returns the page as OpenAI shows it, without its data.

        Args:
            ids: of the items that were found, with one more than the limit if there are more.
        """
        return {
            "object": "list",
            "first_id": ids[0] if ids else None,
            "last_id": ids[: self.limit][-1] if ids else None,
            "has_more": len(ids) > self.limit,
        }


def read_page(query: Mapping[str, str], kind: str, usual: int, most: int) -> Page:
    """Returns the page that a query asks for.

    Args:
        query: `after`, `limit`, `order`; all optional.
        kind: prefix of the ids; empty for ids of any form.
        usual, most: default and largest limit.

    Raises:
        InvalidRequest: a parameter is wrong.
    """
    after, limit, order = query.get("after", ""), query.get("limit", str(usual)), query.get("order", "desc")
    if after and kind and not is_id(after, kind):
        raise InvalidRequest(f"must be the id of the last one that you have, {kind}…, not {after[:40]!r}", "after")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= most):
        raise InvalidRequest(f"must be a number from 1 to {most}", "limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("must be asc or desc", "order")
    return Page(after, int(limit), order == "desc")
