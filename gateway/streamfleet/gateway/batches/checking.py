"""Whether a line of a batch's file is a request that can be run. Pure."""

from __future__ import annotations

import hashlib

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.wishes import check_fields
from streamfleet.producer.batchfile import BadLine, BatchLine, parse_line

LINE_OVERHEAD_BYTES = 65_536


def most_line_bytes(most_body_bytes: int) -> int:
    """Longest line that is read: a body at its limit with every character escaped, and what stands around it."""
    return 6 * most_body_bytes + LINE_OVERHEAD_BYTES


class Checker:
    """Checks the lines of one file, in their order.

    Args:
        endpoint: where all of them have to go.
        most_bytes: longest line; one that was cut behind it is refused.
    """

    def __init__(self, endpoint: str, most_bytes: int) -> None:
        self._endpoint, self._most_bytes = endpoint, most_bytes
        # Digests, because custom_ids may be long, and there may be a million of them.
        self._seen: set[bytes] = set()

    def check(self, number: int, text: bytes) -> BatchLine:
        """The request on a line.

        Raises:
            BadLine: it is none. Its custom_id is None where another line has that already.
        """
        try:
            line = self.read(number, text)
        except BadLine as error:
            if error.custom_id is not None:
                self._first(number, error.custom_id)
            raise
        self._first(number, line.custom_id)
        return line

    def read(self, number: int, text: bytes) -> BatchLine:
        """The same, whatever stands on other lines."""
        if len(text) > self._most_bytes:
            raise BadLine(number, None, f"the line is longer than {self._most_bytes} bytes", None, "request_too_large")
        line = parse_line(text, number)
        if line.url != self._endpoint:
            text_ = f"must be {self._endpoint}, the endpoint of the batch, not {line.url[:80]}"
            raise BadLine(number, line.custom_id, text_, "url", "mismatched_endpoint")
        try:
            check_fields(self._endpoint, line.body)
        except InvalidRequest as error:
            raise BadLine(number, line.custom_id, error.message, f"body.{error.param}", error.code) from None
        return line

    def _first(self, number: int, custom_id: str) -> None:
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            said = f"{custom_id[:80]!r} is the custom_id of an earlier line: this line was not run"
            raise BadLine(number, None, said, "custom_id", "duplicate_custom_id")
        self._seen.add(digest)


def shown_error(error: BadLine) -> dict[str, object]:
    """A refused line, as OpenAI shows it among a batch's errors."""
    return {"code": error.code, "message": str(error)[:500], "param": error.param, "line": error.number}
