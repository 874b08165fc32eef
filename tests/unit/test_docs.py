"""The documentation says what the code does: names, numbers, commands, links and pictures are held against it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer.main

from streamfleet.cli.main import app
from streamfleet.common import scripts
from streamfleet.common.envelope import KNOWN
from streamfleet.common.keys import Keys
from streamfleet.common.secret_files import file_variables
from streamfleet.common.settings import GROUPS, PREFIX, variable
from streamfleet.operator.commands.common import USAGE
from streamfleet.worker.lease import EXIT_LOOP_HUNG
from streamfleet.worker.worker import EXIT_BROKEN, EXIT_DRAINED, EXIT_ENGINE_FAILED

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def pages(repository: Path) -> dict[Path, str]:
    """The documentation that describes the program."""
    paths = [
        repository / "README.md",
        *sorted((repository / "docs").glob("*.md")),
    ]
    return {path: path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """Environment variable to default, of every setting."""
    return {variable(name): field.default for group in GROUPS for name, field in group.model_fields.items()}


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown page has, as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_lead_somewhere(repository: Path, pages: dict[Path, str]) -> None:
    broken = []
    more = {path: path.read_text(encoding="utf-8") for path in (*repository.glob("*.md"), repository / "k8s/README.md")}
    for page, text in (pages | more).items():
        for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
                broken.append(f"{page.name}: {link}")
    assert not broken


def arrows(picture: Path) -> set[tuple[str, str, str]]:
    """(from, to, script) of every label on the arrows of the state diagram."""
    name = "{http://www.w3.org/2000/svg}"
    return {
        (arrow.attrib["data-from"], arrow.attrib["data-to"], str(label.text))
        for arrow in ET.parse(picture).iter(f"{name}g")  # noqa: S314 - a file of our own
        if arrow.get("class") == "arrow"
        for label in arrow.iter(f"{name}text")
    }


def test_the_state_diagram_names_scripts_that_exist_and_its_table_is_the_same(repository: Path) -> None:
    text = (repository / "docs/states.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| ([\w -]+) \| (\w+) \| `(\w+)` \|", text, re.MULTILINE))
    drawn = arrows(repository / "docs/pictures/states.svg")
    assert table == drawn
    assert {verb for _, _, verb in drawn} <= set(scripts.VERBS)
    assert set(re.findall(r"\| `(\w+)` \|", text)) == {*scripts.VERBS}


def test_the_pages_for_developers_have_all_keys_and_name_files_that_exist(repository: Path) -> None:
    pages = [(repository / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("architecture", "states")]
    keys = Keys("q")
    made = {key.removeprefix(keys.base).partition(":")[0] for key in every_key(keys)}
    rows = re.findall(r"^\| (`[a-z].*?) \|", pages[0].partition("## Keys")[2].partition("\n## ")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)", row)} == made
    files = [path.as_posix() for folder in ("*/streamfleet", "tests") for path in repository.glob(f"{folder}/**/*.*")]
    named = {name for page in pages for name in re.findall(r"`([\w/]+\.(?:lua|py|toml))`", page)}
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in files)]


def test_every_variable_named_exists(repository: Path, pages: dict[Path, str], settings: dict[str, Any]) -> None:
    aliases = {
        str(choice)
        for group in GROUPS
        for field in group.model_fields.values()
        for choice in getattr(field.validation_alias, "choices", ())
    }
    files = {each for group in GROUPS for item in group.model_fields.items() for each in file_variables(*item, PREFIX)}
    page = (repository / "docs/configuration.md").read_text(encoding="utf-8")
    others = re.findall(r"^\| `(\w+)` \|", page.partition("## Read by other programs")[2], re.MULTILINE)
    # These belong to Redis's own pod, to Kubernetes, and to OpenAI's and Anthropic's clients.
    known = {*settings, *aliases, *files, *others}
    known |= {"REDIS_PASSWORD", "REDISCLI_AUTH", "STREAMFLEET_REDIS_PORT", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    unknown = []
    for path, text in pages.items():
        named = {*re.findall(rf"\b{PREFIX}\w+", text), *re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)[`=]", text)}
        unknown += [f"{path.name}: {name}" for name in named - known]
    assert not unknown


def test_keys_named_are_keys(pages: dict[Path, str]) -> None:
    made = {name for value in every_key(Keys("q")) for name in key_names(value)}
    assert {name for text in pages.values() for name in key_names(text)} <= made


def every_key(keys: Keys) -> list[str]:
    """All keys of a queue, one of each kind."""
    others = ("base", "shared", "typed")
    members = [getattr(keys, name) for name in dir(Keys) if not name.startswith("_") and name not in others]
    values = [member("x") if callable(member) else member for member in members]
    return [value for value in values if isinstance(value, str) and value.startswith(keys.base)]


def key_names(text: str) -> list[str]:
    """Returns the part after the queue's braces of every key in a text."""
    return re.findall(r"\{(?:q|default)\}+:([a-z]+)", text)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every `streamfleet …` in the code of a page: the line, and its words after `streamfleet`."""
    code = "\n".join(body for language, body in FENCE.findall(text) if language in ("sh", "text"))
    lines = code.replace("\\\n", " ").splitlines() + re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in lines:
        if found := re.match(r"(?:[A-Z_]+=\S+ )*(?:\S+/)?streamfleet ((?:.(?!  ))*.)", line):
            yield line, shlex.split(found[1], comments=True)


def test_commands_named_exist_with_their_options(repository: Path, pages: dict[Path, str]) -> None:
    top: Any = typer.main.get_command(app)
    wrong, met = [], set()
    for text in pages.values():
        for line, words in commands(text):
            command, path = top, []
            while hasattr(command, "commands") and words and words[0] in command.commands:
                path.append(words.pop(0))
                command = command.commands[path[-1]]
                met.add(" ".join(path))
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            ours = words[: words.index("--")] if "--" in words else words
            if not path or not {word for word in ours if word.startswith("-")} <= options:
                wrong.append(line)
    assert not wrong
    assert set(top.commands) <= met, "docs/start.md shows every command"


def test_exit_statuses_are_listed(repository: Path) -> None:
    section = (repository / "docs/operate.md").read_text(encoding="utf-8").partition("## Exit statuses")[2]
    listed = {int(status) for status in re.findall(r"^\| (\d+) \|", section.partition("\n## ")[0], re.MULTILINE)}
    assert listed == {EXIT_DRAINED, USAGE, EXIT_ENGINE_FAILED, EXIT_BROKEN, EXIT_LOOP_HUNG}


ADDS = re.compile(r"XADD|xAdd|enqueue|\bxadd\b|\.Ask\(|\brun\(")
FIXED_ID = re.compile(
    r"""--id[ =]["']?[\w-]+ | \bid\ ["']?[\w-]+["']?\ body | \bid\s*[:=]\s*["'](?![^"']*[{$])[\w-]
    | ["']id["']\s*[:,]\s*["'](?![^"']*[{$])[\w-]""",
    re.VERBOSE,
)


def test_no_snippet_carries_a_fixed_id_that_a_second_run_would_collide_with(
    repository: Path, pages: dict[Path, str]
) -> None:
    """The same id again is the same request: who runs such a snippet twice would get the old answer."""
    snippets = [(page.name, text) for page, whole in pages.items() for _, text in FENCE.findall(whole)]
    snippets += [
        (path.name, path.read_text(encoding="utf-8"))
        for path in (repository / "examples").rglob("*")
        if path.suffix in (".sh", ".mjs")
    ]
    fixed = [
        (name, line)
        for name, text in snippets
        if ADDS.search(text)
        for line in text.splitlines()
        if FIXED_ID.search(line) and "cancel_requests" not in line
    ]
    assert fixed == []


def test_the_example_in_go_writes_fields_of_an_entry(repository: Path, pages: dict[Path, str]) -> None:
    """No Go is at hand to run it. Its keys are looked at as those of all pages."""
    (code,) = (body for name, body in FENCE.findall(pages[repository / "docs/protocol.md"]) if name == "go")
    (values,) = re.findall(r"Values: map\[string\]any\{(.*?)\}", code)
    names = re.findall(r'"(\w+)":', values)
    assert names[:2] == ["id", "body"]
    assert set(names) <= set(KNOWN)
