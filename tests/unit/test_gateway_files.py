"""Files of the gateway, as far as they need no Redis: forms in pieces, pages, contents in a store."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfleet.common.errors import InvalidRequest, SettingsError
from streamfleet.gateway.batch_records import FILE, BatchNames, FileRecord, Part, is_id, new_id, read_file, read_part
from streamfleet.gateway.errors import exception_to_api_error
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.files.paging import read_page
from streamfleet.gateway.files.store import ContentGone, Store, StoreUnavailable
from streamfleet.gateway.files.upload import MOST_FIELD_BYTES, MOST_PARTS, Form, check_fields

BOUNDARY = "sep"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\nContent-Type: text/plain\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def read(data: bytes, size: int, content_type: str | None = TYPE) -> tuple[Form, bytes]:
    found = Form(content_type)
    content = b"".join(piece for first in range(0, len(data), size) for piece in found.feed(data[first : first + size]))
    return found, content


CONTENT = b'{"a": 1}\r\n--se\r\n\r\n-- --sep not yet\n' * 50


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100_000])
@pytest.mark.parametrize("file_first", [False, True])
def test_a_form_is_read_in_whatever_pieces_it_comes(size: int, file_first: bool) -> None:
    parts = [part("purpose", b"batch"), part("file", CONTENT, "my batch.jsonl")]
    found, content = read(form(*reversed(parts)) if file_first else form(*parts), size)
    assert (found.fields, found.filename, found.complete) == ({"purpose": "batch"}, "my batch.jsonl", True)
    assert content == CONTENT


def test_half_a_form_is_not_complete() -> None:
    found, content = read(form(part("file", CONTENT, "f"))[: len(CONTENT)], 64)
    assert not found.complete
    assert content
    assert CONTENT.startswith(content)


@pytest.mark.parametrize("name", ["../../etc/passwd", "C:\\\\temp\\\\passwd", "/etc/passwd"])
def test_a_filename_is_only_a_name(name: str) -> None:
    assert read(form(part("file", b"x", name)), 10)[0].filename == "passwd"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"what is this", "body"),
        (form(part("", b"x")), "body"),
        (form(part("file", b"x", "a"), part("file", b"y", "b")), "file"),
        (form(part("purpose", b"x" * (MOST_FIELD_BYTES + 1))), "purpose"),
        (form(*[part(f"f{number}", b"x") for number in range(MOST_PARTS + 1)]), "body"),
        (form(part("purpose", b"\xff\xfe")), "body"),
        (b"--sep\r\n" + b"x" * 100_000, "body"),
        (b"--sep\r\n" + b"x: y\r\n" * 1_000, "body"),
    ],
    ids=["no form", "no name", "two files", "long field", "many parts", "not UTF-8", "long header", "many headers"],
)
def test_what_is_no_form_is_said(data: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(data, 64)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "kind", [None, "", "application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
def test_a_request_without_a_form_is_said(kind: str | None) -> None:
    with pytest.raises(InvalidRequest, match="Content-Type"):
        Form(kind)


def test_fields_of_an_upload() -> None:
    assert check_fields({"purpose": "batch"}) == ("batch", None)
    kept = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    assert check_fields({"purpose": "batch", **kept}) == ("batch", 3_600_000)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "59"},
            "expires_after[seconds]",
        ),
    ],
    ids=["nothing", "purpose", "no anchor", "no seconds", "too soon"],
)
def test_a_wrong_field_is_named(fields: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_fields(fields)
    assert refused.value.param == param


@given(st.binary(max_size=400), st.integers(1, 50), st.booleans())
@settings(max_examples=200, deadline=None)
def test_whatever_is_sent_is_read_or_refused(data: bytes, size: int, begins_well: bool) -> None:
    with contextlib.suppress(InvalidRequest):
        read((b"--sep\r\nContent-Disposition: form-data; " if begins_well else b"") + data, size)


def test_ids_sort_by_time_and_are_recognised() -> None:
    early, late = new_id(FILE, 1_790_000_000_000), new_id(FILE, 1_790_000_000_001)
    assert early < late
    assert is_id(early, FILE)
    assert not is_id(early, "batch_")
    assert not is_id(f"{early}x", FILE)
    assert not is_id("file-../../x", FILE)


def test_a_page_is_read_and_shown() -> None:
    after = new_id(FILE, 5)
    page = read_page({"after": after, "limit": "2", "order": "asc"}, FILE, 20, 100)
    assert (page.after, page.limit, page.newest_first) == (after, 2, False)
    shown = page.to_json(["a", "b", "c"])
    assert (shown["first_id"], shown["last_id"], shown["has_more"]) == ("a", "b", True)
    assert page.to_json(["a", "b"])["has_more"] is False
    assert read_page({}, FILE, 20, 100).to_json([])["first_id"] is None


@pytest.mark.parametrize(
    "query",
    [{"after": "x"}, {"limit": "0"}, {"limit": "101"}, {"limit": "²"}, {"limit": "-1"}, {"order": "up"}],
    ids=str,
)
def test_a_wrong_page_is_said(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        read_page(query, FILE, 20, 100)


def test_a_file_is_what_its_hash_says() -> None:
    record = FileRecord(new_id(FILE, 5), "t", "in.jsonl", "batch", 7, 1_000, 2_000)
    fields = {name.encode(): value.encode() for name, value in record.fields().items()}
    assert read_file(record.id, fields) == record
    assert read_file(record.id, {**fields, b"bytes": b"many"}) is None
    assert read_file(record.id, {}) is None
    assert read_part(Part("ab/name", 12).encoded().encode()) == Part("ab/name", 12)
    assert BatchNames("{gateway}/").parts("f") == "{gateway}/parts:f"


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/files" if request.param == "folder" else f"memory://{tmp_path}")


async def test_a_content_is_read_as_it_was_written(store: Store) -> None:
    name = store.new_name("file-1")
    writer = await store.write(name)
    await writer.write(b"a" * 300_000)
    await writer.write(b"b")
    await writer.close()
    blocks = [block async for block in store.read(name)]
    assert b"".join(blocks) == b"a" * 300_000 + b"b"
    assert max(map(len, blocks)) <= 262_144
    await store.delete(name)
    await store.delete(name)
    with pytest.raises(ContentGone):
        _ = [block async for block in store.read(name)]
    await store.close()


async def test_nothing_is_read_of_a_file_whose_last_content_is_gone(store: Store) -> None:
    records: Any = None
    files, parts = Files(records, store, 1, 1), [Part("a", 1), Part("b", 1)]
    for part in parts:
        await store.put(part.name, b"x")
    assert [block async for block in files.read(parts)] == [b"x", b"x"]
    await store.delete("b")
    with pytest.raises(ContentGone):
        await anext(files.read(parts))
    await store.close()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "ab/../../x"])
async def test_nothing_outside_of_the_store_is_reached(store: Store, name: str) -> None:
    with pytest.raises(ContentGone):
        _ = [block async for block in store.read(name)]


async def test_a_store_that_does_not_work_is_said_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file is no folder")
    store = Store(f"file://{tmp_path}/files")
    with pytest.raises(StoreUnavailable) as refused:
        await store.put(store.new_name("file-1"), b"x")
    assert str(tmp_path) not in str(refused.value)
    answer = exception_to_api_error(refused.value)
    assert (answer.status, "retry-after" in answer.headers) == (503, True)


@pytest.mark.parametrize("url", ["nowhere://x", "s3x://bucket"])
def test_a_store_that_nobody_knows_is_said(url: str) -> None:
    with pytest.raises(SettingsError, match="STREAMFLEET_GATEWAY_FILES"):
        Store(url)


async def test_an_object_store_is_sent_small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, opened = Store(f"memory://{tmp_path}"), []
    usual = store._files.open

    def seen(path: str, mode: str, **more: Any) -> Any:
        opened.append(more)
        return usual(path, mode, **more)

    monkeypatch.setattr(store._files, "open", seen)
    await store.put(store.new_name("file-1"), b"x")
    (given,) = opened
    # Each upload and each batch holds one; S3 takes none below 5 MiB, and 10,000 of them for a file.
    assert 5 * 1024**2 <= given["block_size"] <= 16 * 1024**2


@pytest.mark.parametrize(
    ("url", "missing", "command"),
    [
        ("s3://bucket/x", "s3fs", "pip install '.[s3]' in a clone"),
        ("gs://bucket/x", "gcsfs", "pip install gcsfs"),
        ("az://bucket/x", "adlfs", "pip install adlfs"),
    ],
)
def test_what_has_to_be_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, url: str, missing: str, command: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # as where it is not installed
    with pytest.raises(SettingsError) as refused:
        Store(url)
    assert f"STREAMFLEET_GATEWAY_FILES: {url}: " in str(refused.value)
    assert f"needs {missing}, which is not installed: {command}" in str(refused.value)


async def test_no_place_to_write_to_is_no_content_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nowhere(_file: object) -> None:
        raise FileNotFoundError("The specified bucket does not exist")  # s3fs, when the last piece is sent

    store = Store(f"memory://{tmp_path}")
    monkeypatch.setattr("streamfleet.gateway.files.store._sync_and_close", nowhere)
    with pytest.raises(StoreUnavailable, match="is not there"):
        await store.put(store.new_name("file-1"), b"x")


def test_only_what_others_can_reach_is_shared(tmp_path: Path) -> None:
    assert not Store(f"file://{tmp_path}").shared
    assert not Store("memory://").shared
