"""Lines of a batch's input: numbered, checked to be requests, and remembered as finished. Pure.

`number_lines` takes blocks of any size and yields groups of lines; it holds a block and one line in memory.
`LineChecker` parses lines one by one. `LineSet` is a set of line numbers as bits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import MESSAGES, RESPONSES
from streamfleet.gateway.messages.translation import to_engine
from streamfleet.gateway.request_parameters import check_fields, ignored_text, leave_out_tools
from streamfleet.producer.batch_lines import BadLine, BatchLine, parse_line

Line = tuple[int, bytes]
MOST_TOGETHER = 500
_OF_A_CALLER = ("stream", "background", "store", "previous_response_id", "conversation")
"""Fields of a response that need a caller, or a store of responses: a batch has only its two files."""
_TEXT = re.compile(rb"\S[^\n]*")
"""A line from its first character that is not blank; the regular expression skips blank lines faster than Python."""


async def number_lines(blocks: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[list[Line]]:
    """Yields groups of lines with their numbers, from 1, without blank lines.

    Args:
        blocks: the content.
        most_bytes: longest line that is given whole; of a longer one only the first `most_bytes + 1` bytes are given.
    """
    ended = 0  # lines before `at`
    rest = bytearray()
    async for block in blocks:
        first = block.find(b"\n")
        rest += block[: len(block) if first < 0 else first][: max(0, most_bytes + 1 - len(rest))]
        if first < 0:
            continue
        group: list[Line] = []
        ended += 1
        if rest and not rest.isspace():
            group.append((ended, bytes(rest)))
        at, end = first + 1, block.rfind(b"\n") + 1
        for match in _TEXT.finditer(block, at, end):
            ended += block.count(b"\n", at, match.start())
            at = match.start()
            begin = block.rfind(b"\n", 0, at) + 1
            group.append((ended + 1, block[begin : min(match.end(), begin + most_bytes + 1)]))
            if len(group) == MOST_TOGETHER:
                yield group
                group = []
        ended += block.count(b"\n", at, end)
        rest[:] = block[end:][: most_bytes + 1]
        if group:
            yield group
    if rest and not rest.isspace():
        yield [(ended + 1, bytes(rest))]


class LineSet:
    """A set of finished lines, one bit each.

    Args:
        found: bits as Redis stores them: the highest bit of the first byte is line 1.
    """

    def __init__(self, found: bytes) -> None:
        self._found = bytearray(found)

    def __contains__(self, line: int) -> bool:
        at, bit = divmod(line - 1, 8)
        return at < len(self._found) and bool(self._found[at] & 0x80 >> bit)

    def add(self, line: int) -> None:
        """Add a line."""
        at, bit = divmod(line - 1, 8)
        if at >= len(self._found):
            self._found.extend(bytes(at + 1 - len(self._found)))
        self._found[at] |= 0x80 >> bit


LINE_OVERHEAD_BYTES = 65_536


def most_line_bytes(most_body_bytes: int) -> int:
    """Longest line that is read: a body at its limit with every character escaped, and the fields around the body."""
    return 6 * most_body_bytes + LINE_OVERHEAD_BYTES


def _least_bytes(text: bytes) -> int:
    """Smallest size of a line's text when written without blanks and escapes; a larger one is not parsed."""
    return len(text) - 5 * text.count(b"\\u") - sum(map(text.count, (b" ", b"\t", b"\r")))


class LineChecker:
    """Checks the lines of one file, in their order.

    Args:
        endpoint: the endpoint that every line has to name.
        most_body_bytes: largest body of a request.

    Attributes:
        refused: number of lines that `check` refused.
    """

    def __init__(self, endpoint: str, most_body_bytes: int) -> None:
        self._endpoint, self._most_body_bytes = endpoint, most_body_bytes
        self._most_bytes, self._plain_bytes = most_line_bytes(most_body_bytes), most_body_bytes + LINE_OVERHEAD_BYTES
        self.refused = 0
        # Digests, because a custom_id may be long and a file may have a million of them.
        self._seen: set[bytes] = set()

    def check(self, number: int, text: bytes) -> BatchLine:
        """Returns the request on a line.

        Raises:
            BadLine: the line is no valid request. Its custom_id is None if an earlier line has the same one.
        """
        try:
            line = self._read_checked(number, text)
            self._check_custom_id(number, line.custom_id)
        except BadLine:
            self.refused += 1
            raise
        return line

    def _read_checked(self, number: int, text: bytes) -> BatchLine:
        try:
            return self.read(number, text)
        except BadLine as error:
            if error.custom_id is not None:
                self._check_custom_id(number, error.custom_id)
            raise

    def read(self, number: int, text: bytes) -> BatchLine:
        """Returns the request on a line; does not compare it with other lines."""
        if (len(text) > self._plain_bytes and _least_bytes(text) > self._plain_bytes) or len(text) > self._most_bytes:
            said = f"the line is too long for a request, whose body has at most {self._most_body_bytes} bytes"
            raise BadLine(number, None, said, None, "request_too_large")
        line = parse_line(text, number, self._most_body_bytes)
        if line.url != self._endpoint:
            text_ = f"must be {self._endpoint}, the endpoint of the batch, not {line.url[:80]}"
            raise BadLine(number, line.custom_id, text_, "url", "mismatched_endpoint")
        try:
            line = _response(line) if self._endpoint == RESPONSES else line
            line = _message(line) if self._endpoint == MESSAGES else line
            check_fields(self._endpoint, line.body)
        except InvalidRequest as error:
            raise BadLine(number, line.custom_id, error.message, f"body.{error.param}", error.code) from None
        return line

    def _check_custom_id(self, number: int, custom_id: str) -> None:
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            said = f"{custom_id[:80]!r} is the custom_id of an earlier line: this line was not run"
            raise BadLine(number, None, said, "custom_id", "duplicate_custom_id")
        self._seen.add(digest)


def _response(line: BatchLine) -> BatchLine:
    """Returns a line of a response without tools that need a server of their own.

    Raises:
        InvalidRequest: it asks for more than an answer in the output file, or for nothing but such tools.
    """
    for name in _OF_A_CALLER:
        if line.body.get(name):
            text = "is not supported in a batch: its answers come whole, and are stored in its output file alone"
            raise InvalidRequest(text, name, "unsupported_parameter")
    given = line.body.get("input")
    for at, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") == "item_reference":
            raise InvalidRequest(
                "is not supported in a batch: send the item itself", f"input.{at}", "unsupported_parameter"
            )
    body, left_out = leave_out_tools(dict(line.body))
    return replace(line, body=body, ignored=ignored_text(left_out))


def _message(line: BatchLine) -> BatchLine:
    """Returns a line of a message as an engine takes it. Raises InvalidRequest."""
    body, left_out = to_engine(line.body)
    return replace(line, body=body, ignored=ignored_text(left_out))


def error_object(error: BadLine) -> dict[str, object]:
    """Returns a refused line as OpenAI shows it among a batch's errors."""
    return {"code": error.code, "message": str(error)[:500], "param": error.param, "line": error.number}
