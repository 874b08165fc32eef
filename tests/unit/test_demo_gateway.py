"""Decisions of `streamfleet demo-gateway` itself: whether a signature is right, and what an output file lacks."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from streamfleet.cli.demo import gateway_calls
from streamfleet.cli.demo.gateway_process import port_in
from streamfleet.cli.demo.gateway_run import QUESTIONS, batch_lines, output_problems
from streamfleet.cli.demo.hook import verified
from streamfleet.cli.demo.own_process import environment
from streamfleet.cli.demo.shell import Shell
from streamfleet.cli.main import app
from streamfleet.gateway.webhooks.deliverer import signatures
from streamfleet.gateway.webhooks.signing import Secret

BODY = b'{"type":"batch.completed","data":{"id":"batch_1"}}'
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()


def signed(*secrets: str, age_s: int = 0) -> dict[str, str]:
    """The headers of a webhook as the gateway signs it."""
    at_s = int(time.time()) - age_s
    made = signatures([Secret(secret, 0) for secret in secrets], "msg_1", at_s, BODY.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at_s), "webhook-signature": made}


def test_a_signature_of_the_gateways_is_right() -> None:
    assert verified(SECRET, signed(SECRET), BODY)
    assert verified(SECRET, signed(OTHER, SECRET), BODY), "one of several is enough"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (lambda: signed(OTHER), BODY),
        (lambda: signed(SECRET), BODY + b" "),
        (lambda: signed(SECRET), b"\xff"),
        (lambda: signed(SECRET) | {"webhook-id": "msg_2"}, BODY),
        (lambda: signed(SECRET, age_s=301), BODY),
        (lambda: signed(SECRET) | {"webhook-timestamp": "soon"}, BODY),
        (lambda: signed(SECRET) | {"webhook-signature": "v1,ä"}, BODY),
        (lambda: signed(SECRET) | {"webhook-signature": "v1"}, BODY),
        (dict, BODY),
    ],
    ids=["other secret", "other body", "no text", "other id", "old", "no time", "no base64", "no value", "nothing"],
)
def test_any_other_is_not(headers: Callable[[], dict[str, str]], body: bytes) -> None:
    assert not verified(SECRET, headers(), body)


def output(numbers: list[int], status: int = 200) -> str:
    """An output file that answers these lines."""
    return "".join(f"{json.dumps({'custom_id': f'line-{n}', 'response': {'status_code': status}})}\n" for n in numbers)


ALL = list(range(1, len(QUESTIONS) + 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (output(ALL), ""),
        (output(ALL[::-1]), ""),
        (output(ALL[1:]), "each custom_id once"),
        (output([*ALL, 1]), "each custom_id once"),
        (output(ALL, 500), "status_code 200"),
        ('{"error": {"message": "no"}}', "each custom_id once"),
        ("", "each custom_id once"),
    ],
    ids=["all", "in any order", "one missing", "one twice", "failed", "an error", "nothing"],
)
def test_what_is_wrong_with_an_output_file(text: str, said: str) -> None:
    problems = " ".join(output_problems(text))
    assert said in problems
    assert bool(problems) == bool(said)


def test_each_line_of_the_batch_has_its_own_id() -> None:
    lines = [json.loads(line) for line in batch_lines("m")]
    assert [line["custom_id"] for line in lines] == [f"line-{number}" for number in ALL]
    assert {line["body"]["model"] for line in lines} == {"m"}


@pytest.mark.parametrize(
    ("log", "port"),
    [
        ("", 0),
        ('{"event":"gateway_ready","port":81', 0),
        ('{"event":"files_are_local"}\nnot JSON\n[1]\n{"event":"gateway_ready","port":8123}\n', 8123),
    ],
    ids=["nothing", "half a line", "among others"],
)
def test_the_port_stands_in_the_log(log: str, port: int) -> None:
    assert port_in(log) == port


def test_settings_of_another_fleet_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAMFLEET_GATEWAY_KEYS", "REDIS_URL", "REDIS_URL_FILE", "BATCH_SIZE"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = environment("redis://ours", gateway_port="0")
    assert found["REDIS_URL"] == "redis://ours"
    assert found["STREAMFLEET_GATEWAY_PORT"] == "0"
    assert found["LANG"] == "C.UTF-8"
    assert "theirs" not in found.values()


async def test_without_the_sdk_it_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    screen = Console(record=True, width=120)
    assert await gateway_calls.ask_with_sdk(Shell(screen, tmp_path, {}), "m", tmp_path, "Paris") == []
    assert "pip install openai" in screen.export_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "steam"], "--engine: must be vllm or simulated"),
        (["--engine", "simulated"], "apt-get install curl"),
    ],
    ids=["engine", "curl"],
)
def test_what_is_missing_is_said_before_anything_starts(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    ended = CliRunner().invoke(app, ["demo-gateway", *arguments])
    assert said in str(ended.exception)
    assert not ended.output


def test_its_help_has_examples() -> None:
    found = CliRunner().invoke(app, ["demo-gateway", "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    assert " streamfleet demo-gateway --open" in found.output


def test_its_set_up_installs_all_that_it_needs(repository: Path) -> None:
    """`make demo-gateway` sets up the profile `vllm` alone, which has the gateway's packages as vLLM needs them."""
    recipe = (repository / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo-gateway: setup-vllm ", recipe, re.MULTILINE)
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^a-z0-9-]", line)[0] for line in project["optional-dependencies"]["gateway"]} | {"openai"}
    pinned = {line.partition("==")[0] for line in (repository / "requirements/vllm.txt").read_text().splitlines()}
    assert needed <= pinned
