"""What a batch writes survives being killed at any instant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamfleet.producer.batch_files import AppendFile, BatchFileError, Job, count_lines, default_error_file
from streamfleet.producer.batchfile import Written


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


def test_counts_lines_that_hold_something(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n\n  \nb")
    assert count_lines(path) == 2


def test_error_file_stands_beside_the_output() -> None:
    assert default_error_file(Path("d/out.jsonl")) == Path("d/out.errors.jsonl")
    assert default_error_file(Path("d/out")) == Path("d/out.errors")
