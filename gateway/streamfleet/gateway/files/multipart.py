"""Parser for an uploaded form: small fields, and one file whose pieces are passed on as they arrive. No I/O.

Starlette's own form reader stores what it reads, large files on disk; this one keeps only the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from streamfleet.common.errors import InvalidRequest

MOST_PARTS, MOST_FIELD_BYTES, MOST_NAME_CHARS = 16, 4_096, 512
FILE = "file"


@dataclass(slots=True)
class _Part:
    """The part of the form that is being read."""

    name: str = ""
    filename: str | None = None
    header: bytes = b""
    value: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


class Form:
    """Parses a form that arrives in pieces of any size.

    Args:
        content_type: header of the request.

    Attributes:
        fields: fields by name, without the file.
        filename: name of the file, once the file began.
        complete: True after the end of the form.

    Raises:
        InvalidRequest: the header names no form.
    """

    def __init__(self, content_type: str | None) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidRequest(
                "must be multipart/form-data with a boundary: send purpose and file as a form",
                "Content-Type",
                "invalid_content_type",
            )
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.complete = False
        self._parts = 0
        self._part = _Part()
        self._pieces: list[bytes] = []
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_begin": self._header,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_headers_finished": self._named,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._complete,
                },
            )
        except FormParserError as error:
            raise _broken(error) from None

    def feed(self, data: bytes) -> list[bytes]:
        """Parse a piece. Returns the pieces of the file in it.

        Raises:
            InvalidRequest: the data is no form, or not such a form.
        """
        self._pieces = []
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(error) from None
        return self._pieces

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise InvalidRequest(f"has more than {MOST_PARTS} parts", "body", "invalid_form")
        self._part = _Part()

    def _header(self) -> None:
        self._part.header = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        # Sizes and numbers of headers are bounded by the parser.
        self._part.header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        part.headers[part.header] = part.headers.get(part.header, b"") + data[start:end]

    def _named(self) -> None:
        part = self._part
        headers = {name.lower(): value for name, value in part.headers.items()}
        _, options = parse_options_header(headers.get(b"content-disposition", b"").decode("latin-1"))
        part.name = _text(options.get(b"name", b""))
        if not part.name:
            raise InvalidRequest("a part of the form has no name", "body", "invalid_form")
        if part.name != FILE:
            return
        if self.filename is not None:
            raise InvalidRequest("is there twice: upload one file at a time", FILE, "invalid_form")
        name = _text(options.get(b"filename", b""))
        self.filename = part.filename = name.replace("\\", "/").rpartition("/")[2][:MOST_NAME_CHARS] or "upload.jsonl"

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.filename is not None:
            self._pieces.append(data[start:end])
            return
        part.value += data[start:end]
        if len(part.value) > MOST_FIELD_BYTES:
            raise InvalidRequest(f"must be at most {MOST_FIELD_BYTES} bytes", part.name[:80], "invalid_form")

    def _end(self) -> None:
        part = self._part
        if part.filename is None:
            self.fields[part.name] = _text(part.value)

    def _complete(self) -> None:
        self.complete = True


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("holds a name or field that is not UTF-8", "body", "invalid_encoding") from None
    return "".join(char for char in text if char.isprintable())


def _broken(error: FormParserError) -> InvalidRequest:
    return InvalidRequest(f"is no readable form: {error}", "body", "invalid_form")
