"""Receives an uploaded form into a file, in bounded memory.

`receive_file` reads the request, parses the form with `multipart`, and writes to the store through `Files`. It removes
an incomplete upload.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping

from starlette.requests import ClientDisconnect, Request

from streamfleet.common.errors import BrokerUnavailable, InvalidRequest
from streamfleet.gateway.batch_records import FileRecord
from streamfleet.gateway.call import call_of
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.files import Files, Upload
from streamfleet.gateway.files.multipart import FILE, Form

FORM_BYTES = 65_536
"""Most bytes of a form, in addition to the file."""
PURPOSES = ("batch",)
LEAST_KEPT_S, MOST_KEPT_S = 3_600, 2_592_000
_SECONDS = re.compile(r"[0-9]{1,9}")


async def receive_file(request: Request, files: Files, tenant: str, most_bytes: int, idle_s: float) -> FileRecord:
    """Receive an uploaded file, and return its record.

    Args:
        request: has a form with ``purpose`` and ``file``.
        files: destination.
        tenant: owner of the file.
        most_bytes: limit for the file.
        idle_s: longest time without a byte.

    Raises:
        InvalidRequest: a field is wrong, or the file is too large; nothing is kept.
        ApiError: the client is too slow.
        ClientDisconnect: the client left; nothing is kept.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes + FORM_BYTES:
        text = f"the file is larger than {most_bytes} bytes, which is the limit"
        raise InvalidRequest(text, FILE, "request_too_large")
    form = Form(request.headers.get("content-type"))
    upload = await files.begin_upload()
    adding = False
    try:
        await _read(request, form, upload, idle_s, most_bytes + FORM_BYTES)
        purpose, kept_ms = check_fields(form.fields)
        await upload.close()
        adding = True
        return await files.add(upload, tenant, form.filename or "", purpose, kept_ms)
    except BaseException as error:
        if not (adding and isinstance(error, BrokerUnavailable)):  # the file may exist
            # Shielded, because a cancelled handler has to clean up as well.
            await asyncio.shield(upload.abort())
        raise


async def _read(request: Request, form: Form, upload: Upload, idle_s: float, most_bytes: int) -> None:
    size = 0
    async for data in _pieces(request, idle_s):
        size += len(data)
        if size > most_bytes:
            raise InvalidRequest(f"is larger than {most_bytes} bytes", "body", "request_too_large")
        for piece in form.feed(data):
            await upload.write(piece)
    if not form.complete:
        raise InvalidRequest("the form ends in the middle", "body", "invalid_form")
    if not upload.bytes:
        raise InvalidRequest("is missing or empty", FILE, "missing_required_parameter")


async def _pieces(request: Request, idle_s: float) -> AsyncIterator[bytes]:
    call = call_of(request)
    while not call.body_read:
        try:
            async with asyncio.timeout(idle_s):
                message = await request.receive()
        except TimeoutError:
            text = f"nothing of the upload came for {idle_s:g} s"
            headers = {"connection": "close"}
            raise ApiError(408, text, "body_too_slow", headers=headers, reason="body_too_slow") from None
        if message["type"] != "http.request":
            raise ClientDisconnect
        call.body_read = not message.get("more_body", False)
        yield message.get("body", b"")


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
