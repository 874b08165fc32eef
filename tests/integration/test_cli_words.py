"""Words of the command line: whole help texts, and errors that name what was given."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamfleet.cli.main import app
from streamfleet.common.settings import GROUPS, variable
from tests.integration.cli_processes import Ended, piped, streamfleet
from tests.integration.test_cli_piped import COMMANDS

NOWHERE = "redis://127.0.0.1:1/0"
OPTIONS = [(path, param) for path, each in COMMANDS.items() for param in each.params if param.name != "help"]
ENOUGH = {
    "enqueue": ["hi"],
    "result": ["r-1"],
    "cancel": ["r-1"],
    "trace": ["r-1"],
    "drain": ["w1"],
    "dead show": ["1-1"],
    "dead requeue": ["--all"],
    "dead purge": ["--all", "--yes"],
    "tenants set": ["acme"],
    "queue set": ["lease_ms=20000"],
    "gateway keys create": ["k"],
    "gateway keys set": ["1f0a9c3b5d7e2468", "--weight", "2"],
    "gateway keys revoke": ["1f0a9c3b5d7e2468"],
    "gateway webhooks show": ["1-1"],
    "gateway webhooks requeue": ["--all"],
    "gateway webhooks secret rotate": ["--tenant", "t"],
    "batch": ["{}/in.jsonl", "{}/out.jsonl"],
    "plan": ["--queue", "default", "--rate", "1"],
    "plan measure": ["--out", "{}/engine.json"],
    "worker": ["--engine", "simulated"],
}
"""Arguments with which a command goes as far as Redis."""


def words(text: str) -> list[str]:
    """Words and signs in their order, without what only lays a text out."""
    return re.sub(r"```\w*|[─│╭╮╰╯]", " ", text).replace("`", "").split()


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_every_sign_of_its_texts(path: str) -> None:
    """Brackets are no tags, stars and underscores no emphasis: what is written for a reader is what a reader gets."""
    shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"}).output
    seen = " ".join(words(shown))
    each = COMMANDS[path]
    for text in [inspect.cleandoc(each.help or ""), *(getattr(param, "help", None) or "" for param in each.params)]:
        for part in re.split(r"\n\n|\n(?= *(?:streamfleet|curl|jq|[A-Z_]+=))", text):
            assert " ".join(words(part)) in seen, part


def ended(path: str, tmp_path: Path, *more: str, url: str = NOWHERE, **settings: str) -> Ended:
    (tmp_path / "in.jsonl").write_text("{}\n")
    given = [each.format(tmp_path) for each in ENOUGH.get(path, [])]
    if path == "gateway":  # it registers metrics, which a process can do once
        return piped(url, path, *more, settings=settings)
    return streamfleet(url, *path.split(), *given, *more, **settings)


def takes(option: str) -> list[str]:
    return [path for path, param in OPTIONS if option in param.opts]


@pytest.mark.parametrize(
    ("path", "url"), [("backlog", "redis://127.0.0.1:1/x"), *((path, "nonsense") for path in takes("--redis-url"))]
)
def test_a_wrong_url_is_named_as_it_was_given(path: str, url: str, tmp_path: Path) -> None:
    by_option = ended(path, tmp_path, "--redis-url", url)
    assert by_option.returncode == 2
    assert by_option.stderr.startswith("streamfleet: --redis-url"), by_option.stderr
    assert "REDIS_URL" not in by_option.stderr
    by_variable = ended(path, tmp_path, url=url)
    assert by_variable.returncode == 2
    assert by_variable.stderr.startswith("streamfleet: REDIS_URL"), by_variable.stderr
    assert "--redis-url" not in by_variable.stderr


@pytest.mark.parametrize(
    ("path", "given"),
    [
        *(("backlog", each) for each in (["--queue=a{b"], ["-q", "a{b"], ["-qa{b"])),
        *((path, ["--queue", "a{b"]) for path in takes("--queue")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_queue_is_named_as_it_was_given(path: str, given: list[str], tmp_path: Path) -> None:
    by_option = ended(path, tmp_path, *given)
    assert (by_option.returncode, by_option.stdout) == (2, "")
    assert by_option.stderr.startswith("streamfleet: --queue: "), by_option.stderr
    if path != "plan":
        by_variable = ended(path, tmp_path, STREAMFLEET_QUEUE="a{b")
        assert by_variable.stderr.startswith("streamfleet: STREAMFLEET_QUEUE: "), by_variable.stderr


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        ("worker", ["--engine", "steam"], "--engine: "),
        ("worker", ["--name", "a b~"], "--name: "),
        ("worker", ["--models", "a=b=c=,"], "--models: "),
        ("exporter", ["--port", "70000"], "--port: "),
        ("gateway", ["--port", "70000"], "--port: "),
        ("gateway", ["--models", "=,"], "--models: "),
        ("enqueue", ["--ttl", "soon"], "--ttl: "),
        ("enqueue", ["--ttl", "9999999999999999d"], "--ttl: "),
        ("enqueue", ["--deadline", "soon"], "--deadline: "),
        ("enqueue", ["--id", "a\nb"], "--id: "),
        ("enqueue", ["--endpoint", "chat"], "--endpoint: "),
        ("enqueue", ["--tenant", "a\nb"], "--tenant: "),
        ("enqueue", ["--session", "x" * 300], "--session: "),
        ("enqueue", ["--program", "a\x1bb"], "--program: "),
        ("batch", ["--deadline", "soon"], "--deadline: "),
        ("batch", ["--id-prefix", "a\nb"], "--id-prefix: "),
        ("batch", ["--tenant", "a\nb"], "--tenant: "),
        ("batch", ["--session", "a\nb"], "--session: "),
        ("batch", ["--program", "a\nb"], "--program: "),
        ("gateway webhooks secret rotate", ["--overlap", "soon"], "--overlap: "),
        ("gateway webhooks secret create", ["--tenant", "a\nb"], "--tenant: "),
        ("acl", ["--role", "worker", "--user", "a b"], "--user: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_error_begins_with_the_option(
    path: str, given: list[str], said: str, tmp_path: Path, redis_url: str
) -> None:
    found = ended(path, tmp_path, *given, url=redis_url)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"streamfleet: {said}"), found.stderr


def test_errors_of_a_server_name_the_option_too(redis_url: str) -> None:
    url = f"{redis_url.rpartition('/')[0]}/99"
    for path in ("backlog", "workers", "audit"):
        assert "--redis-url redis://" in streamfleet("", path, "--redis-url", url).stderr
        assert "REDIS_URL redis://" in streamfleet(url, path).stderr
    told = streamfleet("", "doctor", "--redis-url", NOWHERE).stdout
    assert "change: --redis-url, or Redis itself" in told
    assert "REDIS_URL" not in told
    assert "change: REDIS_URL, or Redis itself" in streamfleet(NOWHERE, "doctor").stdout


def test_a_port_that_is_taken_is_named_as_it_was_given(redis_url: str) -> None:
    port = redis_url.rpartition(":")[2].partition("/")[0]
    assert streamfleet(redis_url, "exporter", "--port", port).stderr.startswith("streamfleet: --port: cannot listen")
    by_variable = streamfleet(redis_url, "exporter", STREAMFLEET_EXPORTER_PORT=port)
    assert by_variable.stderr.startswith("streamfleet: STREAMFLEET_EXPORTER_PORT: cannot listen")


def test_an_option_with_the_name_of_a_variable_says_that_it_sets_it() -> None:
    """Errors name such an option by the variable's name, so it must not be another thing of the same name."""
    names = {variable(name) for group in GROUPS for name in group.model_fields}
    for path, param in OPTIONS:
        for option in param.opts if not path.startswith("demo") else []:
            field = option.lstrip("-").replace("-", "_")
            of = (path.split() or [""])[0]
            if (path, option) in {("plan", "--queue"), ("bench", "--model")}:
                continue  # never that of the variable
            for name in names & {variable(field), variable(f"{of}_{field}")}:
                assert name.removeprefix("STREAMFLEET_") in (getattr(param, "help", "") or ""), (path, option, name)
