"""Files of a batch survive being killed at any instant."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from io import BytesIO
from pathlib import Path

import pytest

from streamfleet.producer.batch_files import AppendFile, BatchFileError, Job, count_lines, default_error_file, lines_of
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
