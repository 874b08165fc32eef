"""The files of the page /ui: packaged, small, one idea each, and without any way from data to markup or code."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources

import pytest

STATIC = resources.files("streamfleet.gateway.ui") / "static"
FILES = {file.name: file.read_text(encoding="utf-8") for file in STATIC.iterdir()}
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc"
    r"|\beval\b|new Function|javascript:|localStorage|document\.cookie|\.style\b"
)
ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/2000/svg)")
IMPORT = re.compile(r'^(?:import|export) .*?from "([^"]+)";|^import "([^"]+)";', re.MULTILINE)
MOST_LINES, MOST_CHARS, MOST_BYTES = 220, 120, 120_000


class Page(HTMLParser):
    """A page's contents: what the strict Content-Security-Policy forbids, the ids, and what is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")
            if name == "id":
                self.ids.append(value or "")
            if tag in ("script", "link", "img") and name in ("src", "href"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style") and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._open = ""


@pytest.fixture(scope="module")
def page() -> Page:
    parsed = Page()
    parsed.feed(FILES["index.html"])
    return parsed


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_text_never_markup(name: str) -> None:
    assert not FORBIDDEN.findall(FILES[name])
    assert not re.findall(r"[\"']style[\"']", FILES[name]), "the policy refuses style attributes: use a class"


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    assert not ELSEWHERE.findall(FILES[name])
    assert "@import" not in FILES[name]
    assert "url(" not in FILES[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_small_and_imports_what_is_there(name: str) -> None:
    lines = FILES[name].splitlines()
    assert lines[0].startswith("// "), "its first line says what it is for"
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_CHARS
    for imported in (first or second for first, second in IMPORT.findall(FILES[name])):
        assert imported.startswith("./"), imported
        assert imported.removeprefix("./") in FILES, imported


def test_every_script_is_used() -> None:
    used = {name for text in FILES.values() for pair in IMPORT.findall(text) for name in pair if name}
    assert {f"./{name}" for name in SCRIPTS} - used == {"./app.js"}


def test_the_page_is_plain(page: Page) -> None:
    assert page.inline == []
    assert len(page.ids) == len(set(page.ids))
    assert page.fetched
    for path in page.fetched:
        assert path.removeprefix("/ui/static/") in FILES, path


def test_scripts_ask_for_ids_that_are_there(page: Page) -> None:
    asked = {name for text in FILES.values() for name in re.findall(r'byId\("([^"]+)"\)', text)}
    made = {name for text in FILES.values() for name in re.findall(r'\bid: "([^"]+)"', text)}
    assert asked - set(page.ids) - made == set()


def test_all_of_it_is_small() -> None:
    assert sum(len(text.encode()) for text in FILES.values()) < MOST_BYTES
