"""Count what makes the code hard to enter: lines, modules, settings, metrics, keys, long functions, sentences.

    .venv/bin/python tools/house.py                     the figures of this tree
    .venv/bin/python tools/house.py --since 240adab     two columns: that commit, and this tree

Reads the files that git knows; writes nothing.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("common", "producer", "worker", "operator", "gateway", "cli")
"""Source roots of the product."""
HEADLESS = re.compile(r"(What|Whatever|Who|Whoever|Whose|How|Whether|One that|Where|When|Which)\b")
"""First words that make a reader look for the subject; "Whether" reads better as "True if"."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTION)


def main() -> None:
    """Print the figures, a line each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--since", metavar="COMMIT", help="show the figures of this commit as well")
    since = options.parse_args().since
    tree = Path(__file__).parent.parent
    columns = [figures(tree)]
    if since:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "archive", since], cwd=tree, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            columns.insert(0, figures(Path(folder)))
        print(f"{'':34}{since[:12]:>34}{'now':>34}")
    for name in dict.fromkeys(name for column in columns for name in column):
        print(f"{name:34}" + "".join(f"{column.get(name, '-'):>34}" for column in columns))


def figures(tree: Path) -> dict[str, str]:
    """Figures of the tree in one folder, by name."""
    product = {path: path.read_text(encoding="utf-8") for root in ROOTS for path in sources(tree / root, "py")}
    lua = [path for root in ROOTS for path in sources(tree / root, "lua")]
    parsed = {path: ast.parse(text) for path, text in product.items()}
    lines = {path: len(text.splitlines()) for path, text in product.items()}
    longest = max(lines, key=lambda path: lines[path])
    length, function = max(
        (node.end_lineno - node.lineno + 1, f"{path.stem}.{node.name}")
        for path, module in parsed.items()
        for node in ast.walk(module)
        if isinstance(node, FUNCTION) and node.end_lineno
    )
    importers = imported_by(parsed)
    found = {
        "lines of the product": f"{sum(lines.values()):,}",
        "lines of tests, bench": f"{length_of(tree / 'tests'):,}, {length_of(tree / 'bench'):,}",
        "KB of Markdown": f"{sum(path.stat().st_size for path in sources(tree, 'md')) / 1000:.0f}",
        "settings": str(len(settings(parsed))),
        "metrics": str(len(metrics(parsed))),
        "keys of a queue": str(len(keys(parsed))),
        "verbs of queue, gateway": ", ".join(str(count) for count in verbs(lua).values()),
        "modules": str(len(product)),
        "modules with one importer": str(sum(importers[name] == 1 for name in map(dotted, product))),
        "Lua files": f"{len(lua)} ({sum(len(path.read_text(encoding='utf-8').splitlines()) for path in lua):,} lines)",
        "longest file": f"{lines[longest]} {longest.relative_to(tree).name}",
        "longest function": f"{length} {function}",
    }
    found |= {f"methods of {name}": str(count) for name, count in methods(parsed).items()}
    found["headless docstrings, comments"] = "{}, {}".format(*headless(tree))
    return found


def sources(folder: Path, suffix: str) -> list[Path]:
    """Files of one kind below a folder, but for what is installed or built there."""
    skipped = {".venv", "node_modules", "build", "dist"}
    return sorted(path for path in folder.rglob(f"*.{suffix}") if not skipped & set(path.parts))


def dotted(path: Path) -> str:
    """Name under which a module is imported."""
    parts = path.with_suffix("").parts
    parts = parts[parts.index("streamfleet") :] if "streamfleet" in parts else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(parsed: dict[Path, ast.Module]) -> Counter[str]:
    """Number of the product's modules that import each module."""
    names = {dotted(path) for path in parsed}
    counted: Counter[str] = Counter()
    for path, module in parsed.items():
        wanted = set()
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        counted.update((wanted & names) - {dotted(path)})
    return counted


def length_of(folder: Path) -> int:
    """Lines of the Python sources in a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(folder, "py"))


def settings(parsed: dict[Path, ast.Module]) -> set[str]:
    """Fields of the groups of settings, with those of their bases."""
    classes = {
        node.name: node for module in parsed.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    }

    def lineage(name: str) -> set[str]:
        bases = {base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes}
        return {name}.union(*map(lineage, bases))

    groups: set[str] = set().union(*(found for name in classes if "Group" in (found := lineage(name))))
    fields = (node for name in groups for node in classes[name].body if isinstance(node, ast.AnnAssign))
    return {node.target.id for node in fields if isinstance(node.target, ast.Name)}


def metrics(parsed: dict[Path, ast.Module]) -> set[str]:
    """Names of the metrics: the first argument of the call that makes one."""
    calls = (node for module in parsed.values() for node in ast.walk(module) if isinstance(node, ast.Call))
    first = (call.args[0].value for call in calls if len(call.args) > 1 and isinstance(call.args[0], ast.Constant))
    return {name for name in first if isinstance(name, str) and re.fullmatch(r"streamfleet_\w+", name)}


def keys(parsed: dict[Path, ast.Module]) -> set[str]:
    """Methods and properties of `Keys` that name a key."""
    (names,) = (
        node
        for module in parsed.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and node.name == "Keys"
    )
    return {
        node.name for node in names.body if isinstance(node, FUNCTION) and ast.unparse(node.returns or node) == "str"
    }


def verbs(lua: list[Path]) -> Counter[str]:
    """Number of scripts that each part has, without their libraries and policies."""
    return Counter(path.parent.parent.name for path in lua if path.parent.name == "lua")


def methods(parsed: dict[Path, ast.Module]) -> dict[str, int]:
    """Public methods of each class whose name ends in Broker, those of its bases included."""
    classes = {
        node.name: node for module in parsed.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    }

    def of(name: str) -> set[str]:
        node = classes.get(name)
        if node is None:
            return set()
        own = {each.name for each in node.body if isinstance(each, FUNCTION) and not each.name.startswith("_")}
        return own.union(*(of(base.id) for base in node.bases if isinstance(base, ast.Name)))

    return {name: len(of(name)) for name in sorted(classes) if name.endswith("Broker")}


def headless(tree: Path) -> tuple[int, int]:
    """Docstrings and comments, of everything, that begin with a relative or interrogative word."""
    python = sources(tree, "py")
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in python]
    nodes = (node for module in modules for node in ast.walk(module) if isinstance(node, DOCUMENTED))
    docstrings = sum(bool(HEADLESS.match(ast.get_docstring(node) or "")) for node in nodes)
    return docstrings, sum(
        bool(HEADLESS.match(text)) for path in (*python, *sources(tree, "lua")) for text in comments(path)
    )


def comments(path: Path) -> Iterator[str]:
    """Each comment's first line."""
    mark, inside = ("--" if path.suffix == ".lua" else "#"), False
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith(mark) and not inside:
            yield text.removeprefix(mark).strip()
        inside = text.startswith(mark)


if __name__ == "__main__":
    main()
