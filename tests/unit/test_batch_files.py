"""Files of a batch survive being killed at any instant."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import re
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from streamfleet.producer.batch_files import (
    AppendFile,
    BatchFileError,
    GzipAppendFile,
    Job,
    count_lines,
    default_error_file,
    lines_of,
    readable_twice,
)
from streamfleet.producer.batch_lines import Written


def line(custom_id: str) -> bytes:
    return json.dumps({"id": "r", "custom_id": custom_id, "response": {}, "error": None}).encode() + b"\n"


def test_appends_after_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line("a") + b"\n" + line("b"))
    file = AppendFile(path)
    assert list(file.written()) == [Written("a", None), Written("b", None)]
    file.add(line("c"))
    file.close()
    assert path.read_bytes() == line("a") + b"\n" + line("b") + line("c")


@pytest.mark.parametrize("kept", range(1, len(line("b")) - 1))
def test_half_a_line_is_cut_off(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line("a") + line("b")[:kept])
    assert list(AppendFile(path).written()) == [Written("a", None)]
    assert path.read_bytes() == line("a")


def test_a_whole_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line("a") + line("b").rstrip(b"\n"))
    assert list(AppendFile(path).written()) == [Written("a", None), Written("b", None)]
    assert path.read_bytes() == line("a") + line("b")


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nof today")
    with pytest.raises(BatchFileError, match="line 1"):
        list(AppendFile(path).written())
    assert path.read_text() == "my notes\nof today"


@pytest.mark.parametrize("text", [b"my notes", b"{}", b'{"id', b"\x00" * 9, b" "], ids=repr)
def test_only_what_a_batch_began_to_write_is_cut_off(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    if text in {b"my notes", b"{}"}:
        with pytest.raises(BatchFileError, match="line 1"):
            list(AppendFile(path).written())
        assert path.read_bytes() == text
    else:
        assert list(AppendFile(path).written()) == []
        assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "text", [b"\x80\n", b"[" * 5_000 + b"\n", b'{"job":"a b"}\n', b'{"job":7}\n'], ids=lambda text: repr(text[:9])
)
def test_a_progress_file_that_is_none_is_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "out.jsonl.partial"
    path.write_bytes(text)
    with pytest.raises(BatchFileError, match="was not written by a batch"), Job(tmp_path / "out.jsonl"):
        pass
    assert path.read_bytes() == text


def test_of_a_line_that_is_too_long_only_the_beginning_is_read() -> None:
    file = BytesIO(b"a\n" + b"b" * 70_000 + b"\nc\n" + b"d" * 5)
    assert list(lines_of(file, 4)) == [b"a\n", b"bbbbb", b"c\n", b"ddddd"]


def test_no_file_until_there_is_a_line(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "out.errors.jsonl")
    assert list(file.written()) == []
    file.flush()
    file.close()
    assert not file.path.exists()


def test_an_unfinished_job_keeps_its_name(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Job(output) as job:
        name = job.name
    with Job(output) as again:
        assert again.name == name
        again.finish()
    assert not again.path.exists()
    with Job(output) as fresh:
        assert fresh.name != name


def test_a_job_file_cut_short_by_a_crash_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.partial").write_text('{"job": "bat')
    with Job(tmp_path / "out.jsonl") as job:
        assert job.name.startswith("batch-")
    assert json.loads(job.path.read_text())["job"] == job.name


def test_a_job_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.partial").write_text("[1]\n")
    with pytest.raises(BatchFileError, match="not written by a batch"), Job(tmp_path / "out.jsonl"):
        pass


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with Job(tmp_path / "out.jsonl"), pytest.raises(BatchFileError, match="another run"), Job(tmp_path / "out.jsonl"):
        pass


def broken(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Let a call of the operating system fail."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl if name == "flock" else os, name, fail)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_a_file_system_without_locks_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    broken(monkeypatch, "flock", code)
    with Job(tmp_path / "out.jsonl") as job:
        assert os.strerror(code) in job.unlocked
        name = job.name
    with Job(tmp_path / "out.jsonl") as again:
        assert again.name == name
        again.finish()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    with Job(tmp_path / "out.jsonl") as locked:
        assert locked.unlocked == ""


@pytest.mark.parametrize(("name", "code"), [("flock", errno.EIO), ("flock", errno.EPERM), ("fsync", errno.ENOSPC)])
def test_a_job_that_cannot_begin_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    broken(monkeypatch, name, code)
    with pytest.raises(BatchFileError, match=f"out.jsonl.partial cannot be used: {os.strerror(code)}"):
        Job(tmp_path / "out.jsonl").__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_goes_on_keeps_its_file_through_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Job(tmp_path / "out.jsonl") as job:
        name = job.name
    broken(monkeypatch, "flock", errno.EIO)
    with pytest.raises(BatchFileError, match="cannot be used"):
        Job(tmp_path / "out.jsonl").__enter__()
    monkeypatch.undo()
    with Job(tmp_path / "out.jsonl") as again:
        assert again.name == name


def test_counts_lines_that_hold_something(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n\n  \nb")
    assert count_lines(path) == 2


def test_error_file_stands_beside_the_output() -> None:
    assert default_error_file(Path("d/out.jsonl")) == Path("d/out.errors.jsonl")
    assert default_error_file(Path("d/out")) == Path("d/out.errors")
    assert default_error_file(Path("d/out.jsonl.gz")) == Path("d/out.errors.jsonl.gz")


def zipped(path: Path, *groups: list[str]) -> list[int]:
    """Write lines, a flush after each group. Returns the sizes of the file after each flush."""
    file, sizes = GzipAppendFile(path), [0]
    for group in groups:
        for name in group:
            file.add(line(name))
        file.flush()
        sizes.append(path.stat().st_size)
    file.close()
    return sizes


def test_a_killed_run_leaves_whole_lines_of_a_gzip_file_wherever_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.gz"
    groups = [["a", "b"], ["c"], ["d", "e", "f"]]
    sizes = zipped(path, *groups)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        file = GzipAppendFile(path)
        kept = [str(about.custom_id) for about in file.written()]
        flushed = sum(size <= length for size in sizes) - 1
        assert kept == [name for group in groups[:flushed] for name in group]
        file.add(line("z"))
        file.close()
        assert gzip.decompress(path.read_bytes()) == b"".join(map(line, [*kept, "z"]))


def test_of_a_gzip_file_of_somebody_all_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.gz"
    path.write_bytes(gzip.compress(line("a") + line("b").rstrip()) + b"\0" * 100_000)
    file = GzipAppendFile(path)
    assert [about.custom_id for about in file.written()] == ["a", "b"]
    file.add(line("c"))
    file.close()
    assert gzip.decompress(path.read_bytes()).splitlines(keepends=True) == [line("a"), line("b"), line("c")]


@pytest.mark.parametrize(
    "content",
    [b"xy", line("a"), gzip.compress(b"hello\n", mtime=0), gzip.compress(line("a"), mtime=0) + b"tail"],
    ids=["text", "line", "gzip", "tail"],
)
def test_a_file_that_is_no_gzip_of_a_batch_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(BatchFileError, match=re.escape(str(path))):
        list(GzipAppendFile(path).written())
    assert path.read_bytes() == content


def test_an_input_may_be_gzip(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b"{}\n\n{}\n") + gzip.compress(b"{}\n"))
    assert count_lines(tmp_path / "in.jsonl.gz") == 3


@pytest.mark.parametrize(
    "spoilt", [lambda text: text[:-9], lambda text: text[:12] + b"\xff\xff" + text[14:], gzip.decompress]
)
def test_a_damaged_gzip_input_is_named(tmp_path: Path, spoilt: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(spoilt(gzip.compress(b"{}\n" * 100)))
    with pytest.raises(BatchFileError, match=re.escape(f"{path} is a damaged gzip file")):
        count_lines(path)


def test_a_pipe_is_copied_and_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"{}\n",))
    writer.start()
    (tmp_path / "folder").mkdir()
    copy = readable_twice(pipe, tmp_path / "folder")
    writer.join()
    assert (copy.read_bytes(), copy.read_bytes()) == (b"{}\n", b"{}\n")
    assert readable_twice(copy, tmp_path) == copy
