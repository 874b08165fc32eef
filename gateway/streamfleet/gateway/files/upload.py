"""Receives an uploaded form into a file, in bounded memory.

`receive_file` reads the request, parses it with `Form`, and writes to the store through `Files`. It removes an
incomplete upload. Starlette's own form reader stores what it reads, large files on disk; `Form` keeps only the fields.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.flow_control import FlowControl

from streamfleet.common.errors import BrokerUnavailable, InvalidRequest
from streamfleet.gateway.batch_records import FileRecord
from streamfleet.gateway.body import check_encoding
from streamfleet.gateway.call import call_of
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.files import Files, Upload

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
        self._pieces: list[memoryview] = []
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

    def feed(self, data: bytes) -> list[memoryview]:
        """Parse a piece. Returns the pieces of the file in it, which are no copies.

        Raises:
            InvalidRequest: the data is no form, or not such a form.
        """
        pieces: list[memoryview] = []
        self._pieces = pieces
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(error) from None
        finally:
            self._pieces = []  # a form that waits for more keeps nothing
        return pieces

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
            self._pieces.append(memoryview(data)[start:end])
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


FORM_BYTES = 65_536
"""Most bytes of a form, in addition to the file."""
IDLE_S = 30.0
"""Time over which the pace of an upload is measured: a line that stalls for less goes on."""
LEAST_BYTES_S = 16_384
"""Pace at which an upload has to come, in bytes a second."""
PURPOSES = ("batch",)
Described = tuple[str, str, int | None]
"""Name and purpose of a file, and its lifetime (ms; None for the default)."""
LEAST_KEPT_S, MOST_KEPT_S = 3_600, 2_592_000
_SECONDS = re.compile(r"[0-9]{1,9}")


async def receive_file(request: Request, files: Files, tenant: str, most_bytes: int) -> FileRecord:
    """Receive an uploaded file, and return its record.

    Args:
        request: has a form with ``purpose`` and ``file``.
        files: destination.
        tenant: owner of the file.
        most_bytes: limit for the file.

    Raises:
        InvalidRequest: a field is wrong, or the file is too large; nothing is kept.
        ApiError: the client is too slow, its key ends, its file too large for its tenant, or its body encoded.
        ClientDisconnect: the client left; nothing is kept.
    """
    form = Form(request.headers.get("content-type"))

    async def take(data: bytes, upload: Upload) -> None:
        for piece in form.feed(data):
            await upload.write(piece)

    def end(upload: Upload) -> Described:
        if not form.complete:
            raise InvalidRequest("the form ends in the middle", "body", "invalid_form")
        if not upload.bytes:
            raise InvalidRequest("is missing or empty", FILE, "missing_required_parameter")
        return form.filename or "", *check_fields(form.fields)

    return await receive(request, files, tenant, most_bytes, take, end, FORM_BYTES)


async def receive(
    request: Request,
    files: Files,
    tenant: str,
    most_bytes: int,
    take: Callable[[bytes, Upload], Awaitable[None]],
    end: Callable[[Upload], Described],
    around_bytes: int = 0,
) -> FileRecord:
    """Receive a body of which a file is made, and return the file's record.

    Args:
        request: has the body.
        files, tenant: as in `receive_file`.
        most_bytes: limit for the file with `around_bytes`, else for the body alone.
        take: writes what is of the file in a piece of the body.
        end: checks that it was all, and describes the file.
        around_bytes: most bytes of the body that are not of the file.

    Raises:
        as `receive_file`, and what `take` and `end` raise; nothing is kept.
    """
    least = check_head(request, most_bytes, around_bytes)
    await files.check_quota(tenant, max(least, 1))
    upload = await files.begin_upload(tenant, bounded=around_bytes > 0)
    adding = False
    try:
        await read(request, lambda data: take(data, upload), most_bytes + around_bytes)
        described = end(upload)
        await upload.close()
        adding = True
        return await files.add(upload, tenant, *described)
    except BaseException as error:
        if not (adding and isinstance(error, BrokerUnavailable)):  # the file may exist
            # Shielded, because a cancelled handler has to clean up as well.
            await asyncio.shield(upload.abort())
        raise


def check_head(request: Request, most_bytes: int, around_bytes: int = 0) -> int:
    """Refuse a body that is encoded, or too large by its length. Returns the least bytes of the file, as announced."""
    check_encoding(request)
    announced = request.headers.get("content-length", "")
    least = int(announced) - around_bytes if announced.isdecimal() else 0
    if least > most_bytes:
        named, what = (FILE, "the file is") if around_bytes else ("body", "is")
        raise InvalidRequest(f"{what} larger than {most_bytes} bytes, which is the limit", named, "request_too_large")
    return least


async def read(request: Request, take: Callable[[bytes], Awaitable[None]], most_bytes: int) -> None:
    """Give a body to `take`, piece by piece. Raises as `receive_file`, and what `take` raises."""
    size, client = 0, _Client(request)
    with client.call.until_key_ends(client.end):
        while not client.call.body_read:
            size += await _take(client, take)
            if size > most_bytes:
                raise InvalidRequest(f"is larger than {most_bytes} bytes", "body", "request_too_large")


async def _take(client: _Client, take: Callable[[bytes], Awaitable[None]]) -> int:
    """Take what comes next. Returns its length. A function of its own, so that nothing of it is kept afterwards."""
    data = await client.receive()
    await take(data)
    return len(data)


class _Client:
    """The sender of an upload, who has to keep a pace.

    Attributes:
        call: state of the request.
    """

    def __init__(self, request: Request) -> None:
        self.call = call_of(request)
        self._request = request
        self._flow: FlowControl | None = request.scope["state"].get("flow")
        self._waited_s, self._came = 0.0, 0
        self._waiting: asyncio.Timeout | None = None
        self._error: ApiError | None = None

    def end(self, error: ApiError) -> None:
        """Receive no more: the sender's key has ended."""
        self._error = error
        if self._waiting is not None:
            with contextlib.suppress(RuntimeError):  # its time is up at this moment
                self._waiting.reschedule(0)

    async def receive(self) -> bytes:
        """Returns what comes next. Raises ApiError, ClientDisconnect."""
        loop = asyncio.get_running_loop()
        message = None
        while message is None:
            if self._error is not None:
                raise self._error
            since_s = loop.time()
            try:
                async with asyncio.timeout(IDLE_S - self._waited_s) as self._waiting:
                    message = await self._request.receive()
            except TimeoutError:
                pass
            finally:
                self._waiting = None
            self._waited_s += loop.time() - since_s
            if self._waited_s >= IDLE_S:
                self._judge()
        if message["type"] != "http.request":
            raise ClientDisconnect
        self.call.body_read = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        self._came += len(data)
        if self._flow is not None and not self.call.body_read:
            self._flow.pause_reading()  # until this is written: `receive` resumes
        return data

    def _judge(self) -> None:
        if self._came < LEAST_BYTES_S * IDLE_S:
            text = f"the upload came with less than {LEAST_BYTES_S} bytes a second for {IDLE_S:g} s"
            headers = {"connection": "close"}
            raise ApiError(408, text, "body_too_slow", headers=headers, reason="body_too_slow")
        self._waited_s, self._came = 0.0, 0


def check_fields(fields: Mapping[str, str]) -> tuple[str, int | None]:
    """Returns the purpose, and the lifetime of the file (ms; None for the default).

    Raises:
        InvalidRequest: a field is wrong.
    """
    purpose = fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"must be {' or '.join(PURPOSES)}, not {purpose[:40]!r}", "purpose")
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return purpose, None
    if anchor != "created_at":
        raise InvalidRequest("must be created_at", "expires_after[anchor]")
    if seconds is None or not _SECONDS.fullmatch(seconds) or not LEAST_KEPT_S <= int(seconds) <= MOST_KEPT_S:
        raise InvalidRequest(f"must be {LEAST_KEPT_S} to {MOST_KEPT_S} seconds", "expires_after[seconds]")
    return purpose, int(seconds) * 1000
