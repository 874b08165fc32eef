"""The command line as such: quick to start, helpful, one line for each expected error."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from streamfleet.cli.main import app, main
from streamfleet.common import logs
from streamfleet.operator.commands.common import out_record

COMMANDS = ["enqueue", "result", "cancel", "batch", "backlog", "audit", "worker", "demo"]
COMMANDS += ["workers", "trace", "doctor", "bench", "plan", "plan measure"]
COMMANDS += [f"dead {name}" for name in ("list", "show", "requeue", "purge")]
COMMANDS += ["gateway", *(f"gateway keys {name}" for name in ("create", "list", "revoke"))]


def ends_with(arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # the tests' own logging stays as it is
    monkeypatch.setattr(sys, "argv", ["streamfleet", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(command: str) -> None:
    found = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    assert f" streamfleet {command}" in found.output.split("Usage", 1)[1].split("\n", 1)[1]


def test_help_waits_for_nothing_heavy() -> None:
    heavy = "{'redis', 'pydantic', 'structlog', 'rich', 'streamfleet.worker', 'vllm'}"
    code = f"import sys, streamfleet.cli.main; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends_with("--version", monkeypatch) == 0
    assert capsys.readouterr().out.startswith("streamfleet 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("enqueue --prompt hi --deadline tomorrow", "deadline: must be a time"),
        ("enqueue --prompt hi --ttl soon", "ttl: must be a span"),
        ("enqueue --prompt hi --queue {x}", "--queue: must not contain any of {}"),
        ("enqueue --body {", "body: is not JSON"),
        ("enqueue --body @no-such-file.json", "body: cannot read no-such-file.json"),
        ("enqueue", "give either --prompt or --body"),
        ("enqueue --prompt hi --ttl 5s --deadline 5s", "not both"),
        ("dead requeue", "name ids, or give --reason, or --all"),
        ("dead purge x --all", "name ids, or give --reason, or --all"),
        ("batch no-such-file.jsonl out.jsonl", "no-such-file.jsonl"),
        ("enqueue hi --prompt hi", "give either --prompt or --body"),
        ("enqueue hi --json", "give --stream too"),
        ("worker --engine steam", "--engine: "),
        ("worker --engine vllm", "STREAMFLEET_MODEL is not set"),
        ("frobnicate", "frobnicate"),
    ],
)
def test_wrong_usage_is_status_2(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends_with(arguments, monkeypatch) == 2
    captured = capsys.readouterr()
    assert said in " ".join(captured.err.split())
    assert not captured.out
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "command",
    ["audit", "backlog", "enqueue --prompt hi", "result r-1", "cancel r-1", "dead list", "workers", "trace r-1"],
)
def test_without_redis_there_is_one_line_without_the_password(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://me:s3cret@127.0.0.1:1/0")
    assert ends_with(command, monkeypatch) == 1
    error = capsys.readouterr().err
    assert error.startswith("streamfleet: no answer from Redis at redis://127.0.0.1:1/0")
    assert error.count("\n") == 1
    assert "s3cret" not in error


def test_wrong_settings_have_a_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMFLEET_LANE_LIMIT", "many")
    monkeypatch.setenv("STREAMFLEET_SHARES", "1,2")
    assert ends_with("audit", monkeypatch) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["STREAMFLEET_SHARES", "STREAMFLEET_LANE_LIMIT"]


def test_a_record_is_one_line_for_every_reader(capsys: pytest.CaptureFixture[str]) -> None:
    record = {end: f"ü{end}" for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
    out_record(record)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [record]
