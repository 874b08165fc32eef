#!/usr/bin/env python3
"""Build the wheel and the sdist into dist/, and check them as a user gets them; a line for each step.

    tools/release.py                  all steps, about ten minutes; downloads 1.5 GB
    tools/release.py worker gateway   of the extras only these
    tools/release.py --set 0.3.0      write the version wherever it stands, and stop

The version is that of pyproject.toml, such as 0.3.0 or 0.3.0.dev0, and has to be the same wherever it stands. Each
extra is installed from the wheel into a fresh environment; `gpu` is only resolved, and `cpu` is installed as
CONTRIBUTING.md says. The first request of README.md is answered from the installed wheel, with the simulated engine and
a real Redis.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST, BUILD = ROOT / "dist", ROOT / "build" / "release"
NUMBER = r"(\d+\.\d+\.\d+(?:[.-]dev\.?\d+)?)"
IMAGE = rf"\bstreamfleet/[a-z-]+:{NUMBER}"
PLACES = {
    "pyproject.toml": rf'^version = "{NUMBER}"$',
    "README.md": rf"^Version {NUMBER},",
    "Dockerfile": rf"^ARG VERSION={NUMBER}$|{IMAGE}",
    "compose.yaml": IMAGE,
    "docs/deploy.md": rf"^ +newTag: {NUMBER}$|{IMAGE}",
    "k8s/Chart.yaml": rf'^version: {NUMBER}$|^appVersion: "{NUMBER}"$',
    "k8s/**/kustomization.yaml": rf"^ +newTag: {NUMBER}$",
}
"""Files, and how the version stands in them."""
TEST_FILE = re.compile(r"(?:^|/)(?:tests?|test_\w+\.py|conftest\.py)(?:/|$)")
TEST_IMPORT = re.compile(r"^\s*(?:import|from) (?:tests|pytest|hypothesis|bench)\b", re.MULTILINE)
FIRST_REQUEST = re.compile(r"^```sh\n(streamfleet enqueue --wait .*?)^```", re.MULTILINE | re.DOTALL)

MISSING = """
from importlib.metadata import PackageNotFoundError, requires, version
from re import match
for line in requires("streamfleet"):
    if "extra" not in line or "'{extra}'" in line.replace('"', "'"):
        name = match(r"[\\w.-]+", line)[0]
        try:
            version(name)
        except PackageNotFoundError:
            print(line)
"""
"""Prints what the installed wheel asks for, with an extra, and does not find."""


class CheckFailed(Exception):
    """Something is not as a release has to be."""


def main() -> int:
    """Do the steps; 1 with a message at the first that fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, extras = project["version"], list(project["optional-dependencies"])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of pyproject.toml ({' '.join(extras)})")
    parser.add_argument("--set", dest="new", metavar="VERSION", help="write the version wherever it stands")
    given = parser.parse_args()
    if unknown := set(given.extras) - set(extras):
        parser.error(f"no extra {', '.join(sorted(unknown))}; there are {', '.join(extras)}")
    if given.new and not re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", given.new):
        parser.error(f"a version is such as 0.3.0 or 0.3.0.dev0, and not {given.new}")
    try:
        if given.new:
            set_version(given.new)
            return 0
        check_version(version)
        wheel = build(version)
        check_contents(wheel)
        answer_first_request(install(wheel, "worker"))
        for extra in given.extras or extras:
            if extra != "worker":
                shutil.rmtree(install(wheel, extra))
    except CheckFailed as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(BUILD)
    if ".dev" in version:
        say("dist/ is ready. A development version gets no tag")
        return 0
    tag = f"v{version}"
    say(
        f"dist/ is ready. Next: the date into CHANGELOG.md, git tag --annotate {tag} -m 'streamfleet {version}', "
        f"git push origin {tag}, then .venv/bin/python -m tests.upgrade.release {tag} and commit what it writes; "
        "then tools/release.py --set the next release's development version"
    )
    return 0


# -- the version ---------------------------------------------------------------------------------------------------


def told(version: str, place: str) -> str:
    """A version as a place tells it: Helm demands Semantic Versioning of the chart's."""
    return version.replace(".dev", "-dev.") if place.startswith("version: ") else version


def other_versions(version: str, root: Path = ROOT) -> list[str]:
    """Places where another version stands, and files where none does."""
    wrong = []
    for name, pattern in PLACES.items():
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.glob(name))}
        found = [(path, match) for path in texts for match in re.finditer(pattern, texts[path], re.MULTILINE)]
        wrong += [] if found else [f"{name} has none"]
        for path, match in found:
            if (other := next(filter(None, match.groups()))) != told(version, match[0]):
                line = texts[path].count("\n", 0, match.end()) + 1
                wrong.append(f"{path.relative_to(root)}:{line} has {other}")
    return wrong


def check_version(version: str) -> None:
    """Check that there is one version. Raises CheckFailed."""
    wrong = other_versions(version)
    expected = "Not released yet" if ".dev" in version else version
    heading = re.search(r"^## (.+?)(?: \(.*)?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or heading[1] != expected:
        wrong.append(f"CHANGELOG.md does not begin with {expected}")
    if wrong:
        raise CheckFailed(f"pyproject.toml has version {version}, and\n  " + "\n  ".join(wrong))
    say(f"version {version} everywhere")


def set_version(version: str, root: Path = ROOT) -> None:
    """Write the version wherever it stands."""

    def renewed(found: re.Match[str]) -> str:
        return re.sub(NUMBER, told(version, found[0]), found[0])

    for name, pattern in PLACES.items():
        for path in root.glob(name):
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(pattern, renewed, text, flags=re.MULTILINE), encoding="utf-8")


# -- the wheel -----------------------------------------------------------------------------------------------------


def build(version: str) -> Path:
    """Build sdist and wheel into an empty dist/, the wheel from the sdist. Returns the wheel. Raises CheckFailed."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(BUILD, ignore_errors=True)
    python = environment("tools")
    run(python, "-m", "pip", "install", "--quiet", "build", "twine")
    run(python, "-m", "build", "--outdir", DIST, ROOT)
    made = sorted(DIST.iterdir())
    run(python, "-m", "twine", "check", "--strict", *made)
    if [path.name for path in made] != [f"streamfleet-{version}-py3-none-any.whl", f"streamfleet-{version}.tar.gz"]:
        raise CheckFailed(f"dist/ has {', '.join(path.name for path in made)}")
    for path in made:
        say(f"built {path.relative_to(ROOT)}, {path.stat().st_size / 1024:.0f} KB")
    return made[0]


def check_contents(wheel: Path) -> None:
    """Check that a wheel has no test code. Raises CheckFailed."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        wrong = [name for name in names if TEST_FILE.search(name)]
        sources = [name for name in names if name.endswith(".py")]
        wrong += [name for name in sources if TEST_IMPORT.search(files.read(name).decode())]
    if wrong:
        raise CheckFailed(f"the wheel has test code: {', '.join(wrong)}")
    say(f"the wheel has {len(names)} files, and no test code")


def install(wheel: Path, extra: str) -> Path:
    """Install the wheel with an extra into a fresh environment. Returns its folder. Raises CheckFailed."""
    started = time.monotonic()
    python = environment(extra)
    pip = (python, "-m", "pip", "install", "--quiet")
    if extra == "gpu":
        run(*pip, "--dry-run", f"{wheel}[{extra}]")
    elif extra == "cpu":
        run(*pip, "--no-deps", "--requirement", ROOT / "requirements/vllm.txt")
        run(*pip, "--no-deps", wheel)
        missing = run(python, "-c", MISSING.format(extra=extra)).strip()
        if missing:
            raise CheckFailed(f"requirements/vllm.txt lacks {missing}")
    else:
        run(*pip, f"{wheel}[{extra}]")
        run(python, "-m", "pip", "check")
    if extra != "gpu":
        run(python.parent / "streamfleet", "--help")
    count = len(list((python.parent.parent / "lib").glob("python*/site-packages/*.dist-info")))
    what = "resolved" if extra == "gpu" else f"{count} packages"
    say(f"streamfleet[{extra}]: {what}, {time.monotonic() - started:.0f} s")
    return python.parent.parent


def answer_first_request(folder: Path) -> None:
    """Have the command of README.md answered by a worker of an installed wheel. Raises CheckFailed."""
    from streamfleet.cli.demo.server import RedisServer

    found = FIRST_REQUEST.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if found is None:
        raise CheckFailed("README.md has no first request")
    user = BUILD / "user"
    user.mkdir()
    (user / ".venv").symlink_to(folder)
    worker = [".venv/bin/streamfleet", "worker", "--engine", "simulated"]
    with RedisServer() as server, (BUILD / "worker.log").open("w") as log:
        variables = clean() | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "REDIS_URL": server.url,
            "STREAMFLEET_HEALTH_PORT": "0",
        }
        with subprocess.Popen(worker, cwd=user, env=variables, stdout=log, stderr=log) as process:
            try:
                answer = run("bash", "-e", "-c", found[1], cwd=user, env=variables, within_s=60)
                process.send_signal(signal.SIGTERM)
                status = process.wait(30)
            finally:
                process.kill()
    if status or "simulated" not in answer:
        raise CheckFailed(f"the worker ended with {status}; the first request of README.md: {answer}")
    say(f"the first request of README.md: {answer.strip()[:80]}")


# -- processes -----------------------------------------------------------------------------------------------------


def environment(name: str) -> Path:
    """Make a fresh environment. Returns its Python. Raises CheckFailed."""
    run(sys.executable, "-m", "venv", BUILD / name)
    return BUILD / name / "bin" / "python"


def clean() -> dict[str, str]:
    """Environment variables without any that let this checkout in."""
    ours = ("PYTHON", "VIRTUAL_ENV", "STREAMFLEET_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: object, cwd: Path = BUILD, env: dict[str, str] | None = None, within_s: float = 1_800) -> str:
    """Run a command. Returns its output. Raises CheckFailed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env or clean(), capture_output=True, text=True, check=False, timeout=within_s
        )
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"{' '.join(words)}: not within {within_s:g} s") from None
    if done.returncode:
        raise CheckFailed(f"{' '.join(words)}:\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}")
    return done.stdout


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
