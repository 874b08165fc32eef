"""The Lua scripts: one file per verb; `-- @include` lines insert shared parts, from lua/lib, lua/order or lua/policies.

A queue works without the policies of `POLICIES`: most of them order it. A line `-- @policy NAME` stands for a
function, `make_NAME`, that holds a policy's files: their functions are made only when a call needs the policy, and they
have local variables of their own. `-- @policy NAME FILE` is a part of it that is made apart, by `make_FILE`. The file
ends with what the function returns. Shared parts from lua/lib that a policy includes stand outside, once.

What follows `-- @inside` stands in a function of its own. In Lua 5.1 a closure takes a local variable of the function
that makes it by a walk along all that were taken so far, but one of a function further out by a copy.

Functions that nothing else in a script names are left out: each call makes all functions of its script anew, and a
shared part has more of them than a verb needs. A function begins at `function name(` or `function table.name(`, and
ends on the same line, or at the first `end` below it with the same indent; a policy's function ends with its files.

The queue's scripts are in this package. Another package with scripts adds itself before it calls them.
`-- @guard` lines mark a guard for the tests (CONTRIBUTING.md). Redis never gets them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import groupby

from streamfleet.common.envelope import CARRIED, MAX_META_BYTES, MAX_NAME_CHARS
from streamfleet.common.limits import DEFAULTS
from streamfleet.common.numbers import (
    BYTES_PER_TOKEN,
    DEFAULT_COMPLETION,
    LIMIT_FIELDS,
    MOST_TOKENS,
    USUAL_OUTPUT,
)
from streamfleet.common.protocol import LANES

PACKAGE = "streamfleet.common"
FOLDERS = ("order", "policies")
"""Folders of policies, beside lua/lib."""
POLICIES = ("order", "tenants", "homes", "judging", "bounded", "arrivals", "reused")
"""Policies that a queue works without."""
_PACKAGES: dict[str, str] = {}
_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
_POLICY = re.compile(r"^-- @policy (\w+)(?: (\w+))?\n", re.MULTILINE)
_INSIDE = "-- @inside\n"
_FUNCTION = re.compile(r"^( *)(?:local )?function (?:\w+(\.))?(\w+)\(")
_DECLARED = re.compile(r"^ *local (?!function\b)[\w, ]+")
_NAME = re.compile(r"(?<!\.)\.\w+|\w+")
"""Names as they are used: `.name` of a table's field, else `name`."""
_MARK = re.compile(r"^ *-- @(?:guard|include) .+\n", re.MULTILINE)


def _lua(value: object) -> str:
    """A value of a table as Lua text."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {_lua(each)}' for name, each in value.items() if each is not None)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{{{', '.join(map(_lua, value))}}}"
    return json.dumps(value)


TABLES = f"""\
-- Names of a request's fields that its result has too, from the table in envelope.py. A queue's limits, from the table
-- in limits.py: their defaults, with the lanes, the most urgent first.
local TABLES = {{
  carried = {_lua(" ".join(CARRIED))},
  limits = {_lua(DEFAULTS | {"lanes": LANES, "name_chars": MAX_NAME_CHARS, "meta_bytes": MAX_META_BYTES})},
}}
"""
OUTPUT_LIMITS = f"""\
-- From numbers.py: the fields that limit output, by endpoint; the limit of a completion without one; the largest limit.
local NAMES = {_lua({f"[{json.dumps(endpoint)}]": names for endpoint, names in LIMIT_FIELDS.items()})}
local DEFAULT, MOST_TOKENS = '{DEFAULT_COMPLETION}', {MOST_TOKENS}
"""
USUAL_TOKENS = f"local USUAL_OUTPUT, USUAL_RATE = {USUAL_OUTPUT}, 1 / {BYTES_PER_TOKEN}\n"
MADE = {
    "lib/tables.lua": TABLES,
    "policies/output_limits.lua": OUTPUT_LIMITS,
    "order/usual_tokens.lua": USUAL_TOKENS,
}
"""Parts of scripts that are no files."""


def add(package: str) -> tuple[str, ...]:
    """Make the scripts in a package's folder lua/ known. Returns their verbs, which are the names of the files."""
    files = [file.name for file in resources.files(package).joinpath("lua").iterdir()]
    verbs = tuple(sorted(name.removesuffix(".lua") for name in files if name.endswith(".lua")))
    _PACKAGES.update(dict.fromkeys(verbs, package))
    return verbs


VERBS = add(PACKAGE)


@cache
def source(verb: str, without: Sequence[str] = ()) -> str:
    """Full Lua text of a verb, as Redis gets it.

    Args:
        verb: its name.
        without: policies that are left out. The function in the place of each returns false.

    Raises:
        KeyError: there is no such verb.
    """
    return without_marks(marked(verb, without))


def without_marks(text: str) -> str:
    """A script's text without the marks of its guards."""
    return _MARK.sub("", text)


def read_all() -> None:
    """Put all verbs of the queue together now: at its first call, each would hold an event loop up for 5 to 25 ms."""
    for verb in VERBS:
        source(verb)


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a file that stand together in a script.

    Attributes:
        path: path of the file in the scripts' folder; empty for a line that is in no file.
        number: number of the first line in the file.
        text: the lines.
    """

    path: str
    number: int
    text: str


def marked(verb: str, without: Sequence[str] = ()) -> str:
    """Full Lua text of a verb with its marks: its includes, each once and in order, then its own lines.

    Raises:
        KeyError: there is no such verb.
    """
    text = "".join(piece.text for piece in pieces(verb, without))
    return text.replace(_INSIDE, "return (function()\n") + "end)()\n" * text.count(_INSIDE)


@cache
def pieces(verb: str, without: Sequence[str] = ()) -> Sequence[Piece]:
    """The text that `marked` returns, with the files from which it comes.

    Raises:
        KeyError: there is no such verb.
    """
    if verb not in _PACKAGES:
        raise KeyError(f"no script is called {verb!r}")
    return _needed(_Parts(resources.files(_PACKAGES[verb]).joinpath("lua"), without).of(f"{verb}.lua"))


def sha(verb: str) -> str:
    """SHA-1 of a verb's text, as EVALSHA wants it."""
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


def _needed(found: Sequence[Piece]) -> list[Piece]:
    """Pieces without the functions that no other needed line names."""
    text = [line for piece in found for line in piece.text.splitlines(keepends=True)]
    in_file = [piece.path != "" for piece in found for _ in piece.text.splitlines()]
    functions = list(_functions(text, in_file))
    inside: dict[int, int] = {}  # by line, the innermost function that it is part of
    named = defaultdict[str, list[int]](list)
    for number, (name, lines) in enumerate(functions):
        inside.update(dict.fromkeys(lines, number))
        named[name].append(number)
    used = defaultdict[int, set[str]](set)  # by function; -1 is the script itself
    for i, line in enumerate(text):
        used[inside.get(i, -1)].update(_used(line))
    needed, seen, more = {-1}, set[str](), used[-1]
    while more:
        seen |= more
        new = {number for name in more for number in named[name]} - needed
        needed |= new
        more = {name for number in new for name in used[number]} - seen
    dropped = {i for number, (_, lines) in enumerate(functions) if number not in needed for i in lines}
    return list(_without(found, dropped))


@cache  # most lines stand in many scripts
def _used(line: str) -> Sequence[str]:
    """The names that a line uses; not those that it declares."""
    if line.lstrip().startswith("--"):
        return []
    return _NAME.findall(_FUNCTION.sub("", _DECLARED.sub("", line)))


@cache
def _head(line: str) -> re.Match[str] | None:
    """The beginning of a function, if the line is one."""
    return _FUNCTION.match(line)


def _functions(text: Sequence[str], in_file: Sequence[bool]) -> Iterator[tuple[str, range]]:
    """Functions in the order of their beginnings: the name as `_NAME` finds it, the lines with the comment above."""
    for i, line in enumerate(text):
        if head := _head(line):
            first, last = i, i
            if not re.search(r"\bend( +--.*)?$", line):
                last = next(k for k in range(i, len(text)) if text[k] == f"{head[1]}end\n" and in_file[k] == in_file[i])
            while re.match(rf"{head[1]}--(?! @)", text[first - 1]):
                first -= 1
            yield (head[2] or "") + head[3], range(first, last + 1)


def _without(found: Sequence[Piece], dropped: Set[int]) -> Iterator[Piece]:
    """Pieces without these lines, which are counted through all of them from 0."""
    at = 0
    for piece in found:
        lines = list(enumerate(piece.text.splitlines(keepends=True), at))
        for gone, run in groupby(lines, lambda line: line[0] in dropped):
            kept = list(run)
            if not gone:
                yield Piece(piece.path, piece.number + kept[0][0] - at, "".join(text for _, text in kept))
        at += len(lines)


class _Parts:
    """The files of one script, each once; a policy's once in each of its functions.

    Args:
        folder: the folder of the scripts.
        without: policies that are left out.
    """

    def __init__(self, folder: Traversable, without: Sequence[str]) -> None:
        self._folder, self._without = folder, without
        self._seen: list[str] = []

    def of(self, path: str) -> list[Piece]:
        """A file, behind those parts that it needs and no other has needed yet."""
        text = self._read(path)
        before: list[Piece] = []
        found: list[Piece] = []
        at = 0
        for name in map(self._path, _INCLUDE.findall(text)):
            before += self._once(name)
        for match in _POLICY.finditer(text):
            found.append(Piece(path, text.count("\n", 0, at) + 1, text[at : match.start()]))
            outside, function = self._function(match[1], match[2] or match[1])
            before, found, at = before + outside, found + function, match.end()
        return [*before, *found, Piece(path, text.count("\n", 0, at) + 1, text[at:])]

    def _once(self, path: str) -> list[Piece]:
        if path in self._seen:
            return []
        self._seen.append(path)
        return self.of(path)

    def _function(self, policy: str, name: str) -> tuple[list[Piece], list[Piece]]:
        """Parts that stand outside of a policy's function, and the function."""
        if policy in self._without:
            return [], [Piece("", 1, f"local function make_{name}() return false end\n")]
        outside: list[Piece] = []
        inside: list[str] = []
        self._collect(self._path(name, FOLDERS), outside, inside)
        files = [Piece(path, 1, self._read(path)) for path in inside]
        return outside, [Piece("", 1, f"local function make_{name}()\n"), *files, Piece("", 1, "end\n")]

    def _collect(self, path: str, outside: list[Piece], inside: list[str]) -> None:
        for name in map(self._path, _INCLUDE.findall(self._read(path))):
            if not name.startswith(FOLDERS):
                outside += self._once(name)
            elif name not in inside:
                self._collect(name, outside, inside)
        inside.append(path)

    def _path(self, name: str, folders: Sequence[str] = ("lib", *FOLDERS)) -> str:
        paths = [f"{folder}/{name}.lua" for folder in folders]
        return next((path for path in paths if path in MADE or self._folder.joinpath(path).is_file()), paths[-1])

    def _read(self, path: str) -> str:
        if path in MADE:
            return MADE[path]
        return self._folder.joinpath(*path.split("/")).read_text("utf-8")
