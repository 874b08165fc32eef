"""Nothing that comes from outside is ever unpickled, evaluated or given to a shell: the whole source is read for it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "jsonpickle",
    "marshal",
    "shelve",
    "dbm",
    "joblib",
    "code",
    "codeop",
}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "system",
    "popen",
    "getoutput",
    "getstatusoutput",
    "unsafe_load",
    "full_load",
}
LUA = re.compile(r"\b(?:loadstring|load|loadfile|dofile|setfenv|require)\s*[(\"']")
SOURCES = ("common", "producer", "worker", "gateway", "cli", "tools")


@cache
def trees(repository: Path) -> list[tuple[str, ast.AST]]:
    paths = [path for root in SOURCES for path in sorted((repository / root).rglob("*.py"))]
    return [(str(path.relative_to(repository)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def dangers(tree: ast.AST) -> list[str]:
    """Returns the names in a module's source that turn data into code."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            found += called(node)
    return found


def called(node: ast.Call) -> list[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = getattr(node.func, "value", None)
    whose = owner.id if isinstance(owner, ast.Name) else ""
    found = [name] if name in CALLS and whose not in {"re", "platform"} else []
    if name == "load" and whose == "yaml":
        found.append("yaml.load")
    shell = [keyword for keyword in node.keywords if keyword.arg == "shell"]
    found += [f"{name}(shell=…)" for keyword in shell if getattr(keyword.value, "value", True) is not False]
    return found + [f"{name}(allow_pickle)" for keyword in node.keywords if keyword.arg == "allow_pickle"]


def test_no_source_turns_data_into_code(repository: Path) -> None:
    seen = trees(repository)
    assert len(seen) > 80
    assert {name: found for name, tree in seen if (found := dangers(tree))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from marshal import loads", "import shelve as s", "eval(x)", "exec('a')", "__import__(x)",
        "builtins.exec(x)", "os.system(x)", "os.popen(x)", "subprocess.run(x, shell=True)", "Popen(x, shell=flag)",
        "yaml.load(x)", "yaml.unsafe_load(x)", "numpy.load(x, allow_pickle=True)", "compile(x, '', 'exec')",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert dangers(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    ["re.compile(x)", "subprocess.run([x], shell=False)", "json.loads(x)", "yaml.safe_load(x)", "platform.system()"],
)
def test_the_search_leaves_the_rest_alone(text: str) -> None:
    assert not dangers(ast.parse(text))


def test_no_script_turns_data_into_code(repository: Path) -> None:
    scripts = sorted(path for root in ("common", "gateway") for path in (repository / root).rglob("*.lua"))
    assert len(scripts) > 15
    found = {path.name: LUA.findall(re.sub(r"--.*", "", path.read_text(encoding="utf-8"))) for path in scripts}
    assert {name: words for name, words in found.items() if words} == {}
    assert LUA.search("loadstring(ARGV[1])()")


def test_script_texts_are_never_put_together_from_data(repository: Path) -> None:
    """EVAL gets what the package's own files hold, and only the broker's connection sends it."""
    senders = {
        Path(name).parent.name
        for name, tree in trees(repository)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in ("EVAL", "EVALSHA", "SCRIPT")
    }
    assert senders == {"connection"}
