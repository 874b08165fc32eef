"""Files of any bytes at the command line: every line is answered or named with what is wrong, and nothing breaks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.durations import parse_deadline, parse_span
from streamfleet.common.errors import InvalidRequest
from streamfleet.producer.batch_files import AppendFile, BatchFileError, Job
from streamfleet.producer.batch_lines import BadLine, parse_line, parse_written, refusal_line
from tests.fuzz import bodies
from tests.fuzz import strategies as some
from tests.fuzz.attempts import attempt
from tests.fuzz.budget import examples
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

LINE = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 1}}
lines = st.one_of(
    some.raw_bodies,
    some.raw,
    st.fixed_dictionaries({}, optional={name: some.values | st.just(value) for name, value in LINE.items()}).map(
        lambda line: json.dumps(line).encode("utf-8", "surrogatepass")
    ),
    st.sampled_from([1_100, 5_000]).map(lambda depth: b'{"custom_id":' + b"[" * depth),
)
written = st.one_of(
    lines,
    st.fixed_dictionaries({"response": some.values, "custom_id": some.values}, optional={"error": some.values}).map(
        lambda line: json.dumps(line).encode()
    ),
)
files = (
    st.lists(written, max_size=5).map(b"\n".join).flatmap(lambda text: st.sampled_from([text, text + b"\n", text[:-3]]))
)


@given(lines)
@examples(300)
def test_a_line_is_a_request_or_says_what_is_wrong(text: bytes) -> None:
    line = attempt(BadLine, lambda: parse_line(text, 7))
    if isinstance(line, BadLine):
        assert str(line).startswith("line 7: ")
        assert json.loads(refusal_line(line))["error"]["line"] == 7


@given(written)
@examples(200)
def test_a_written_line_is_one_or_none(text: bytes) -> None:
    about = parse_written(text)
    assert about is None or about.custom_id is None or isinstance(about.custom_id, str)


@given(content=files)
@examples(200)
def test_an_output_of_any_bytes_is_gone_on_with_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    earlier = attempt(BatchFileError, lambda: list(AppendFile(path).written()))
    if isinstance(earlier, BatchFileError):
        assert str(path) in str(earlier)
        assert path.read_bytes() == content  # somebody's file: not a byte of it was touched
        return
    cut = content[len(path.read_bytes()) :]
    assert cut == b"" or cut.startswith(b'{"id"') or not cut.strip(b"\x00 \t\r"), "somebody's own text was cut off"
    file = AppendFile(path)
    file.add(refusal_line(BadLine(1, "c", "no", None)))
    file.close()
    assert len(list(AppendFile(path).written())) == len(earlier) + 1


@given(content=st.one_of(files, st.binary(max_size=20).map(lambda text: text + b"\n"), some.values.map(
    lambda value: json.dumps({"job": value}).encode() + b"\n"
)))  # fmt: skip
@examples(200)
def test_a_progress_file_of_any_bytes_is_gone_on_with_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.partial"
    path.write_bytes(content)
    name = attempt(BatchFileError, lambda: job_name(tmp_path / "out.jsonl"))
    if isinstance(name, BatchFileError):
        assert str(path) in str(name)
        assert path.read_bytes() == content
    else:
        assert name


def job_name(output: Path) -> str:
    """Returns the common name of the requests of a run that writes to this file."""
    with Job(output) as job:
        return job.name


@given(
    st.one_of(
        some.texts, st.just("9" * 400 + "s"), st.from_regex(r"[0-9]{1,400}(\.[0-9]{1,3})?(ms|s|m|h|d)?", fullmatch=True)
    )
)
@examples(300)
def test_any_deadline_is_a_time_or_refused(text: str) -> None:
    for found in (
        attempt(InvalidRequest, lambda: parse_span(text)),
        attempt(InvalidRequest, lambda: parse_deadline(text, some.NOW_MS)),
    ):
        assert isinstance(found, int) or found.param


def input_file(chance: random.Random) -> bytes:
    """Some good lines, and whatever else may stand in a file, in any encoding and with any ends of lines."""
    parts = []
    for number in range(chance.randrange(1, 12)):
        line = LINE | {"custom_id": f"c{chance.choice((number, number, 1))}"}
        good = json.dumps(line, ensure_ascii=False).encode()
        odd = bytes(chance.choice(good) if chance.random() < 0.02 else byte for byte in good)
        kinds = (
            good,
            good,
            odd,
            good[: chance.randrange(len(good))],
            bodies.body(chance)[:5_000],
            b"",
            b"\x00",
            b" \t",
        )
        parts.append(chance.choice((*kinds, json.dumps(line | {"body": {"prompt": "x" * 1_100_000}}).encode())))
    text = chance.choice((b"\n", b"\n", b"\r\n", b"\n\n", b"\r")).join(parts) + chance.choice((b"", b"\n"))
    match chance.randrange(8):
        case 0:
            return b"\xef\xbb\xbf" + text
        case 1:
            return text.decode("latin-1").encode("utf-16")
        case _:
            return text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis with a worker, by its URL."""
    with RedisServer(newest(find_servers())) as server:
        worker = WorkerProcess(server.url, tmp_path_factory.mktemp("files"), "w1", speed=1_000_000)
        try:
            worker.ready_blocking()
            yield server.url
        finally:
            worker.destroy()


@given(some.seeds)
@examples(12)
def test_a_batch_of_any_file_answers_every_line(served: str, tmp_path: Path, seed: int) -> None:
    source, output, errors = (tmp_path / f"{seed}.{name}.jsonl" for name in ("in", "out", "errors"))
    source.write_bytes(input_file(random.Random(seed)))
    ended = streamfleet(served, "batch", str(source), str(output), "--errors", str(errors))
    count = sum(1 for line in source.read_bytes().split(b"\n") if line and not line.isspace())
    answers, failures = (path.read_bytes().split(b"\n")[:-1] if path.exists() else [] for path in (output, errors))
    assert len(answers) + len(failures) == count, ended.stderr
    assert ended.returncode == (2 if count == 0 else 1 if failures else 0), ended.stderr
    assert "Traceback" not in ended.stderr
    for failure in map(json.loads, failures):
        assert failure["error"]["message"]
    again = streamfleet(served, "batch", str(source), str(output), "--errors", str(errors))
    assert f"({count} of them by earlier runs)" in again.stderr or count == 0, again.stderr


@given(content=st.one_of(some.raw_bodies, st.binary(max_size=50)), options=st.lists(
    st.tuples(st.sampled_from(["--id", "--deadline", "--ttl", "--endpoint", "--max-tokens"]), some.texts), max_size=2,
    unique_by=lambda pair: pair[0],
))  # fmt: skip
@examples(40)
def test_enqueue_takes_a_body_from_a_file_or_says_what_is_wrong(
    served: str, tmp_path: Path, content: bytes, options: list[tuple[str, str]]
) -> None:
    (tmp_path / "body.json").write_bytes(content)
    words = [f"{name}={value.replace(chr(0), '')}" for name, value in options]
    ended = streamfleet(served, "enqueue", "--body", f"@{tmp_path / 'body.json'}", *words)
    assert ended.returncode in {0, 2} or "taken" in ended.stderr, ended.stderr
    assert (ended.returncode == 0) == bool(ended.stdout), ended
    assert ended.stdout or "streamfleet: " in ended.stderr or "Error" in ended.stderr


@pytest.mark.parametrize("name", ["a folder", "nothing there"])
def test_files_that_are_none(served: str, tmp_path: Path, name: str) -> None:
    path = tmp_path if name == "a folder" else tmp_path / "none.jsonl"
    for words in (["batch", str(path), str(tmp_path / "out.jsonl")], ["enqueue", "--body", f"@{path}"]):
        ended = streamfleet(served, *words)
        assert ended.returncode == 2, ended
        assert str(path)[-9:] in ended.stderr.replace("\n", "")
