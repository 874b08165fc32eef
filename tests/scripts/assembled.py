"""Judges the scripts put together, as Redis gets them: luacheck's findings, and sizes within the bounds of bounds.toml.

    .venv/bin/python -m tests.scripts.assembled             fails if luacheck finds something, or a bound is passed
    .venv/bin/python -m tests.scripts.assembled --tighten   moves bounds close to the sizes first, and loosens none
    .venv/bin/python -m tests.scripts.assembled --naming    prints which files name tenants, and which homes

Lua allows 200 local variables in a function, and 60 upvalues. `free` is how many more local variables a real server
loads the script with, in its chunk and in the function inside; a policy's function has 200 of its own. `core` are the
lines without the files of policies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

import redis

from streamfleet.common import scripts
from streamfleet.gateway import broker as gateway
from tests import programs
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

ROOT = Path(__file__).parents[2]
BOUNDS = Path(__file__).parent / "bounds.toml"
PACKAGES = {scripts.PACKAGE: scripts.VERBS, gateway.PACKAGE: gateway.VERBS}
COLUMNS = ("lines", "core", "bytes", "free", "upvalues", "functions", "files")
NAMED = {"tenants": r"\btenants?\b", "homes": r"(?<!connection\.)\bhomes?\b|\bHome\b"}
"""By policy, how files name it: those of common and worker, but for the table of fields, that change where it goes."""
LEAST = ("free",)
"""Sizes whose bound is the least allowed."""
MOST = {"upvalues": 40, "functions": 12}
"""Sizes that may be reached: bounds.toml names upvalues only where there are more, and each table of functions."""
Rows = Mapping[str, Mapping[str, int]]
"""Sizes or bounds: by name of what is measured, by column."""


def main() -> int:
    """Print findings, sizes and what could not be checked; 1 if anything is wrong."""
    if "--naming" in sys.argv:
        print("\n".join(f"{name} {path}" for name in NAMED for path in naming(name)))
        return 0
    programs.on_path()
    lacking = [name for name in ("luacheck", "luac5.1") if not shutil.which(name)]
    wrong = [] if "luacheck" in lacking else findings(PACKAGES)
    rows = dict(sizes(upvalues="luac5.1" not in lacking))
    if "--tighten" in sys.argv:
        BOUNDS.write_text(tightened(BOUNDS.read_text("utf-8"), rows), "utf-8")
    bounds = tomllib.loads(BOUNDS.read_text("utf-8"))
    wrong += passed(rows, bounds)
    print("\n".join(table(rows, bounds)))
    if lacking:
        print(programs.not_run(programs.needs(name) for name in lacking))
    print("\n".join(wrong))
    return 1 if wrong else 0


def findings(packages: Mapping[str, Sequence[str]]) -> list[str]:
    """Faults in the assembled scripts of packages: what luacheck finds, and functions that no script needs.

    Of the variables of a part only those are unused that no script uses.
    """
    origins = {verb: origin(package, verb) for package, verbs in packages.items() for verb in verbs}
    with tempfile.TemporaryDirectory() as folder:
        for verb in origins:
            Path(folder, f"{verb}.lua").write_text(scripts.marked(verb), "utf-8")
        command = ["luacheck", "--config", str(ROOT / ".luacheckrc"), "--formatter", "plain", "--codes", "."]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = re.findall(r"^(?:\./)?(\w+)\.lua:(\d+):\d+: \(([EW]\d+)\) (.*)", ran.stdout, re.MULTILINE)
    if ran.returncode and not lines:
        return [f"luacheck fails: {ran.stdout}{ran.stderr}"]
    found = defaultdict(set)
    for verb, line, code, said in lines:
        of = origins[verb]
        before, on_line, there = said.partition(" on line ")  # of what is shadowed
        number, _, behind = there.partition(" ")
        text = f"{before} in {of[int(number) - 1][1]} {behind}".rstrip() if on_line else said
        found[(*of[int(line) - 1], code, text)].add(verb)
    having = Counter(part for each in origins.values() for part in {part for part, _ in each})
    told = []
    for (part, place, code, said), verbs in found.items():
        if len(verbs) == having[part]:
            told.append(f"{place}: {said} ({code})")
        elif not code.startswith("W2"):
            told.append(f"{place}: {said} ({code}, in {', '.join(sorted(verbs))})")
    return sorted(told + list(needless(packages, {place for of in origins.values() for _, place in of})))


def needless(packages: Mapping[str, Sequence[str]], places: Container[str]) -> Iterator[str]:
    """Functions of parts that the assembler leaves out of each script. `places`: those of all lines that are in one."""
    for package in packages:
        for path in sorted(folder_of(package).rglob("*.lua")):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                place = f"{os.path.relpath(path)}:{number}"
                if place not in places and (head := re.match(r" *(?:local )?function ([\w.]+)", line)):
                    yield f"{place}: no script needs the function {head[1]}"


def folder_of(package: str) -> Path:
    """Folder with the scripts of a package."""
    return Path(str(resources.files(package))) / "lua"


def origin(package: str, verb: str) -> list[tuple[str, str]]:
    """Part and place of each line of an assembled script."""
    folder = os.path.relpath(folder_of(package))
    lines = []
    for piece in scripts.pieces(verb):
        name = f"{folder}/{piece.path}" if piece.path else ""
        lines += [(name, f"{name}:{piece.number + number}") for number in range(piece.text.count("\n"))]
    return [*lines, ("", "")]


def sizes(*, upvalues: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Sizes of the queue's verbs, of the gateway's verbs together, of all parts, and of the tables of functions."""
    with RedisServer(newest(find_servers())) as server, redis.Redis.from_url(server.url) as client:
        for verb in scripts.VERBS:
            yield verb, size(client, verb, upvalues=upvalues)
        others = [size(client, verb, upvalues=upvalues) for verb in gateway.VERBS]
        yield "gateway, the worst", {column: worst(column)(each[column] for each in others) for column in others[0]}
    texts = [path.read_text("utf-8") for path in folder_of(scripts.PACKAGE).rglob("*.lua")]
    yield "all of common", {"lines": sum(text.count("\n") for text in texts)}
    for name in NAMED:
        yield f"naming {name}", {"files": len(naming(name))}
    names = re.findall(r"\bfunction (\w+)\.\w|\b(\w+)\.\w+ = function\b", "\n".join(texts))
    for name, number in sorted(Counter(map("".join, names)).items()):
        yield f"table {name}", {"functions": number}


def naming(policy: str, tree: Path = ROOT) -> list[str]:
    """Files of common and worker that name a policy, but for the table of fields."""
    files = [
        path for part in ("common", "worker") for kind in ("lua", "py") for path in (tree / part).rglob(f"*.{kind}")
    ]
    files = [path for path in files if path.name != "envelope.py" and path.parent.name != "connection"]
    named = [path for path in files if re.search(NAMED[policy], path.read_text("utf-8"))]
    return sorted(str(path.relative_to(tree)) for path in named)


def size(client: redis.Redis, verb: str, *, upvalues: bool) -> dict[str, int]:
    """Sizes of one verb by column."""
    text = scripts.source(verb)
    core = "".join(piece.text for piece in scripts.pieces(verb) if piece.path.partition("/")[0] not in scripts.FOLDERS)
    found = {"lines": text.count("\n"), "core": scripts.without_marks(core).count("\n"), "bytes": len(text.encode())}

    def free_at(place: int) -> int:
        return free(lambda more: client.script_load(text[:place] + more + text[place:]))

    inside = [match.end() for match in re.finditer(r"(?m)^return \(function\(\)\n", text)]
    found["free"] = min(map(free_at, (0, *inside)))
    if upvalues:
        found["upvalues"] = most_upvalues(text)
    return found


def free(load: Callable[[str], object]) -> int:
    """Number of local variables that a text may have more, so that a server still loads it."""

    def refused(number: int) -> bool:
        try:
            load(f"local {', '.join(f'free_{each}' for each in range(number))}\n")
        except redis.ResponseError as error:
            if "local variables" not in str(error):
                raise
            return True
        return False

    return bisect(range(1, 201), False, key=refused)


def most_upvalues(text: str) -> int:
    """The most upvalues that a function in a text has."""
    command = ["luac5.1", "-p", "-l", "-"]
    listed = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return max(map(int, re.findall(r"^\S+ params?, .* (\d+) upvalues?,", listed, re.MULTILINE)))


def worst(column: str) -> Callable[[Iterable[int]], int]:
    """The function that finds the worst of the sizes in a column."""
    return min if column in LEAST else max


def bound_of(bounds: Rows, name: str, column: str) -> int | None:
    """Bound of a size; None if there is none."""
    return bounds.get(name, {}).get(column, MOST["upvalues"] if column == "upvalues" else None)


def passed(rows: Rows, bounds: Rows) -> list[str]:
    """The bounds that are passed or lacking, and those of things that are gone."""
    gone = [f"{name} is gone: take its line out of {BOUNDS.name}" for name in bounds if name not in rows]
    return gone + [
        f"{name}: {column} {value:,}, bound {bound}: write less, or argue for another bound in {BOUNDS.name}"
        for name, row in rows.items()
        for column, value in row.items()
        if (bound := bound_of(bounds, name, column)) is None or worst(column)((value, bound)) != bound
    ]


def tightened(text: str, rows: Rows) -> str:
    """The text of bounds.toml with each bound close to the size, where that is tighter."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for name, bounds in tomllib.loads(line).items():
            new = ", ".join(
                f"{each} = {tighter(each, bounds[each], rows.get(name, {}).get(each, bounds[each]))}" for each in bounds
            )
            lines[number] = f'"{name}" = {{{new}}}'
    return "\n".join([*lines, ""])


def tighter(column: str, bound: int, value: int) -> int:
    """The bound that leaves a size a little room, or the one there is."""
    if column in LEAST:
        return max(bound, value - 3)
    return min(bound, max(value, MOST[column]) if column in MOST else value + value // 50 + 2)


def table(rows: Rows, bounds: Rows) -> Iterator[str]:
    """Lines of a table of sizes, each before its bound."""
    yield f"{'size / bound':26}" + "".join(f"{column:>18}" for column in COLUMNS)
    for name, row in rows.items():
        cells = (f"{row[each]:,} / {bound_of(bounds, name, each)}" if each in row else "" for each in COLUMNS)
        yield f"{name:26}" + "".join(f"{cell:>18}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
